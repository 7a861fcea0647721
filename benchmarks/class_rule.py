"""What each part of the rule of greedyfed-classes does: the rule, and the rule without the part.

    python -m benchmarks.class_rule --data-dir DIR [--seeds 5] [--jobs 2] [--rounds 400]

The settings of experiments/classes.toml where each client has one class, and where all have all of
them (Dirichlet 100). Test accuracy in %, mean of the last 50 rounds as mean ± std over seeds, and
the std of those rounds in one run, mean over seeds. About half an hour on two cores.
"""

import logging
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from joblib import Parallel, delayed, parallel_config
from rich.console import Console
from rich.table import Table

from client_app.app import app as client_app
from common.config import RunConfig
from experiments.cli import main
from experiments.local_grid import run_in_process
from experiments.sweep import check_datasets, read_spec
from server_app import algorithms
from server_app.app import app as server_app
from server_app.coverage import GreedyByGroup
from server_app.run_directory import read_history
from server_app.selection import Indices, RoundRobinFirst, SelectionPolicy, SelectionView

SPEC = Path(__file__).parents[1] / "experiments/classes.toml"
NAME, LAST = "greedyfed-classes", 50
Change = Callable[[SelectionView], SelectionView]


def without_values(view: SelectionView) -> SelectionView:
    return replace(view, stats=replace(view.stats, value=np.zeros_like(view.stats.value)))


def without_memory(view: SelectionView) -> SelectionView:
    return replace(view, stats=replace(view.stats, recent=np.zeros_like(view.stats.recent)))


def without_sizes(view: SelectionView) -> SelectionView:
    return replace(view, stats=replace(view.stats, num_examples=np.ones_like(view.stats.count)))


def by_roots(view: SelectionView) -> SelectionView:
    """Roots of what clients gained, whose squares, which the rule takes, are the gains."""
    gains = view.stats.group_gain
    roots = np.where(gains > 0, np.sqrt(np.maximum(gains, 0)), gains)
    return replace(view, stats=replace(view.stats, group_gain=roots))


def all_harm(view: SelectionView) -> SelectionView:
    """As if each loss of a class, however small, were the whole of it."""
    gains = view.stats.group_gain
    return replace(view, stats=replace(view.stats, group_gain=np.where(gains < 0, -1.0, gains)))


@dataclass(frozen=True)
class Changed:
    """The rule, which sees a changed view."""

    change: Change

    def select(self, view: SelectionView, rng: np.random.Generator) -> Indices:
        return GreedyByGroup().select(self.change(view), rng)


VARIANTS: dict[str, SelectionPolicy] = {
    "the rule": RoundRobinFirst(GreedyByGroup()),
    "no memory of the last rounds": RoundRobinFirst(Changed(without_memory)),
    "clients alike, however many examples": RoundRobinFirst(Changed(without_sizes)),
    "shares by gains, not their squares": RoundRobinFirst(Changed(by_roots)),
    "as if all harm were whole": RoundRobinFirst(Changed(all_harm)),
    "at random among those who cover well": RoundRobinFirst(Changed(without_values)),
    "0.025 in place of 0.05": RoundRobinFirst(GreedyByGroup(slack=0.025)),
    "0.1 in place of 0.05": RoundRobinFirst(GreedyByGroup(slack=0.1)),
}


def accuracies(variant: str, config: RunConfig) -> list[float]:
    """Test accuracies of the last rounds, in %."""
    policy = VARIANTS[variant]
    # By the module: a table that this function names would be sent to the process as a copy.
    algorithms.ALGORITHMS[NAME] = algorithms.Algorithm(lambda c: policy, valued=True)
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
    runs = [run for run in read_spec(SPEC, changes, yes=True) if world(run) and run.seed < seeds]
    check_datasets(runs)
    cells = list(product(VARIANTS, runs))
    found = list[list[float]]()
    with parallel_config("loky", inner_max_num_threads=1):
        each = Parallel(n_jobs=jobs, return_as="generator")(delayed(accuracies)(*c) for c in cells)
        for (variant, run), last in zip(cells, each, strict=True):
            found.append(last)
            about = f"{len(found)}/{len(cells)}  {world(run)}, seed {run.seed}, {variant}"
            print(f"{about}: {np.mean(last):.2f} ± {np.std(last):.2f}", file=sys.stderr, flush=True)
    worlds = list(dict.fromkeys(world(run) for run in runs))
    head = [text for name in worlds for text in (name, "std of rounds")]
    table = Table("", *head, title=f"{rounds} rounds, {seeds} seeds")
    for variant in VARIANTS:
        texts = list[str]()
        for name in worlds:
            of_seeds = [
                last
                for (of, run), last in zip(cells, found, strict=True)
                if (of, world(run)) == (variant, name)
            ]
            means, std = np.mean(of_seeds, axis=1), np.std(of_seeds, axis=1).mean()
            texts += [f"{means.mean():.2f} ± {means.std():.2f}", f"{std:.2f}"]
        table.add_row(variant, *texts)
    Console(width=140).print(table)


def world(run: RunConfig) -> str:
    """What the table says of a run's data; empty for those that are none of its columns."""
    data = run.data
    if run.selection.algorithm != NAME or data.partition != "dirichlet":
        return ""
    if data.dirichlet_alpha == 1e-4:
        return f"{data.dataset}, one class each"
    return "mnist, Dirichlet 100" if (data.dataset, data.dirichlet_alpha) == ("mnist", 100) else ""


if __name__ == "__main__":
    main(app)
