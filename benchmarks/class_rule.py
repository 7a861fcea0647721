"""What each part of the rule of greedyfed-classes does: the rule, and the rule without the part.

    python -m benchmarks.class_rule --data-dir DIR [--seeds 5] [--jobs 2] [--rounds 400]

The settings of experiments/classes.toml where each client has one class, MNIST and FashionMNIST.
Test accuracy in %, mean of the last 50 rounds as mean ± std over seeds, and the std of those rounds
in one run, mean over seeds. About half an hour on two cores.
"""

import logging
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from joblib import Parallel, delayed, parallel_config
from rich.console import Console
from rich.table import Table

from client_app.app import app as client_app
from client_app.data import simulated_client
from common.config import RunConfig
from experiments.cli import main
from experiments.local_grid import run_in_process
from experiments.sweep import check_datasets, read_spec
from server_app import algorithms
from server_app.app import app as server_app
from server_app.coverage import GreedyByGroup
from server_app.run_directory import read_history
from server_app.selection import (
    Greedy,
    Indices,
    RoundRobinFirst,
    SelectionPolicy,
    SelectionView,
    Uniform,
)

SPEC = Path(__file__).parents[1] / "experiments/classes.toml"
NAME, LAST = "greedyfed-classes", 50
Change = Callable[[SelectionView], SelectionView]


def without_values(view: SelectionView) -> SelectionView:
    return replace(view, stats=replace(view.stats, value=np.zeros_like(view.stats.value)))


def by_power(view: SelectionView, *, power: float) -> SelectionView:
    """Weights by the losses to another power; classes have next to the same shares here."""
    weights = view.group_weights**power
    return replace(view, group_weights=weights / weights.sum())


def without_others(view: SelectionView) -> SelectionView:
    """What clients gained in the class in which they gained most, and in no other."""
    gains = view.stats.group_gain
    most = np.where(gains == gains.max(axis=1, keepdims=True), gains, 0.0)
    return replace(view, stats=replace(view.stats, group_gain=most))


def mixes(config: RunConfig) -> dict[str, Any]:
    """The shares of classes (10,) that clients have, by client id."""
    clients = [simulated_client(config, k) for k in range(config.data.num_clients)]
    counts = {me.info.client_id: np.bincount(me.data.y.numpy(), minlength=10) for me in clients}
    return {client: count / count.sum() for client, count in counts.items()}


def with_labels(view: SelectionView, *, known: dict[str, Any]) -> SelectionView:
    """The clients' true mixes of classes in place of what their updates tell."""
    gains = np.stack([known[client] for client in view.stats.client_ids])
    return replace(view, stats=replace(view.stats, group_gain=gains))


@dataclass(frozen=True)
class Changed:
    """The rule, which sees a changed view."""

    change: Change

    def select(self, view: SelectionView, rng: np.random.Generator) -> Indices:
        return GreedyByGroup().select(self.change(view), rng)


def by_labels(config: RunConfig) -> SelectionPolicy:
    return RoundRobinFirst(Changed(partial(with_labels, known=mixes(config))))


def always(policy: SelectionPolicy) -> Callable[[RunConfig], SelectionPolicy]:
    return lambda config: policy


def changed(change: Change) -> Callable[[RunConfig], SelectionPolicy]:
    return always(RoundRobinFirst(Changed(change)))


VARIANTS = {
    "the rule": always(RoundRobinFirst(GreedyByGroup())),
    "classes alike, however large their losses": changed(partial(by_power, power=0.0)),
    "losses by their roots": changed(partial(by_power, power=0.5)),
    "losses by their squares": changed(partial(by_power, power=2.0)),
    "a client serves one class": changed(without_others),
    "at random among those who cover well": changed(without_values),
    "within 0.05 of the best": always(RoundRobinFirst(GreedyByGroup(slack=0.05))),
    "within 0.25 of the best": always(RoundRobinFirst(GreedyByGroup(slack=0.25))),
    "labels known": by_labels,
    "largest values only (GreedyFed)": always(RoundRobinFirst(Greedy())),
    "at random (FedAvg)": always(Uniform()),
}


def accuracies(variant: str, config: RunConfig) -> list[float]:
    """Test accuracies of the last rounds, in %."""
    policy = VARIANTS[variant](config)
    # By the module: a table that this function names would be sent to the process as a copy.
    algorithms.ALGORITHMS[NAME] = algorithms.Algorithm(lambda c: policy, "gtg")
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        mine = config.with_values(output_dir=folder)
        nodes = [dict[str, Any]() for _ in range(config.data.num_clients)]
        run_in_process(server_app, client_app, mine.to_flat(), nodes)
        history = read_history(Path(folder) / mine.run_id)
    return [100 * record["test_accuracy"] for record in history[-LAST:]]


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    data_dir: Annotated[str, typer.Option(help="Folder with MNIST and FashionMNIST.")],
    seeds: Annotated[int, typer.Option(min=1, max=5, help="Runs of a cell.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a run.")] = 400,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one core each.")] = 2,
) -> None:
    """Print the accuracies of each variant of the rule; about half a minute a run."""
    changes = {"data-dir": data_dir, "num-rounds": rounds}
    runs = [run for run in read_spec(SPEC, changes, yes=True) if is_one_class(run)]
    runs = [run for run in runs if run.seed < seeds]
    check_datasets(runs)
    cells = list(product(VARIANTS, runs))
    found = list[list[float]]()
    with parallel_config("loky", inner_max_num_threads=1):
        each = Parallel(n_jobs=jobs, return_as="generator")(delayed(accuracies)(*c) for c in cells)
        for (variant, run), last in zip(cells, each, strict=True):
            found.append(last)
            about = f"{len(found)}/{len(cells)}  {run.data.dataset}, seed {run.seed}, {variant}"
            print(f"{about}: {np.mean(last):.2f} ± {np.std(last):.2f}", file=sys.stderr, flush=True)
    datasets = list(dict.fromkeys(run.data.dataset for run in runs))
    head = [text for name in datasets for text in (name, "std of rounds")]
    table = Table("", *head, title=f"One class each, {rounds} rounds, {seeds} seeds")
    for variant in VARIANTS:
        texts = list[str]()
        for dataset in datasets:
            of_seeds = [
                last
                for (name, run), last in zip(cells, found, strict=True)
                if (name, run.data.dataset) == (variant, dataset)
            ]
            means, std = np.mean(of_seeds, axis=1), np.std(of_seeds, axis=1).mean()
            texts += [f"{means.mean():.1f} ± {means.std():.1f}", f"{std:.1f}"]
        table.add_row(variant, *texts)
    Console(width=110).print(table)


def is_one_class(run: RunConfig) -> bool:
    data, algorithm = run.data, run.selection.algorithm
    return (data.partition, data.dirichlet_alpha, algorithm) == ("dirichlet", 1e-4, NAME)


if __name__ == "__main__":
    main(app)
