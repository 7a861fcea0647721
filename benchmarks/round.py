"""What a round costs: Flower's share of it, and the valuation's, as ratios within one run.

    python -m benchmarks.round --data-dir DIR [--quick] [--check]

MNIST as in experiments/mnist.toml, on one core. Two tables' worth of ratios:

- LocalGrid against a bare loop that trains, values and evaluates the same clients with the same
  result, without Flower, records or files.
- GTG-Shapley with memory against Alg. 2 as it is written: every prefix of every permutation is
  evaluated, one after the other. Both see the same updates of the same rounds.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from client_app.app import app as client_app
from client_app.data import simulated_client
from common.config import RunConfig
from common.datasets import load_splits
from common.models import build_model
from common.params import ParamSpec, Vector
from common.seeding import Stream, client_key, rng_for
from common.training import local_sgd
from experiments.cli import main
from experiments.local_grid import run_in_process
from experiments.settings import check_data, read_toml
from server_app.app import app as server_app
from server_app.run_directory import read_history
from server_app.selection import Greedy, RoundRobinFirst, SelectionView
from server_app.server_model import ServerModel
from server_app.state import ClientStats, Cumulative
from server_app.utility import ModelAverageUtility, weighted_average
from server_app.valuation import CachedUtility, Utility, gtg_shapley, gtg_sweeps

SETTING = Path(__file__).parents[1] / "experiments" / "mnist.toml"
MAX_OVERHEAD, MIN_FEWER_EVALUATIONS, MIN_LESS_TIME = 1.10, 8.0, 6.0


@dataclass(frozen=True)
class Updates:
    """A round's inputs of a valuation."""

    previous: Vector
    updates: Vector
    weights: NDArray[np.float64]
    previous_loss: float


def bare_loop(config: RunConfig) -> tuple[float, list[Updates]]:
    """GreedyFed written straight down; returns the last accuracy and what was valued."""
    splits = load_splits(config.data, config.seed)
    n, m = config.data.num_clients, config.selection.clients_per_round
    shape, classes, seed = splits.input_shape, splits.num_classes, config.seed
    server = ServerModel(
        build_model(config.training.model, shape, classes, seed), splits.val, splits.test, classes
    )
    worker = build_model(config.training.model, shape, classes, seed)
    spec = ParamSpec.of(worker)
    clients = {me.info.client_id: me for me in (simulated_client(config, k) for k in range(n))}
    stats = ClientStats().with_clients({c: len(me.data) for c, me in clients.items()})
    params, policy, kept = spec.flatten(server.model), RoundRobinFirst(Greedy()), []
    val_loss, accuracy = server.val_loss(params), 0.0
    for t in range(1, config.num_rounds + 1):
        view = SelectionView(t, m, stats, np.ones(n, dtype=bool))
        cohort = np.sort(policy.select(view, rng_for(seed, Stream.SELECT, t)))
        updates = []
        for k in cohort:
            me = clients[stats.client_ids[k]]
            spec.load(worker, params)
            rng = rng_for(seed, Stream.LOCAL_SGD, t, client_key(me.info.client_id))
            local_sgd(worker, me.data, config.training, me.local_epochs, rng)
            updates.append(spec.flatten(worker))
        stacked, weights = np.stack(updates), stats.num_examples[cohort].astype(np.float64)
        kept.append(Updates(params, stacked, weights, val_loss))
        utility, estimate = ours(server, kept[-1], rng_for(seed, Stream.VALUE, t))
        everyone = np.ones((1, m), dtype=bool)
        params = weighted_average(everyone, stacked, weights)[0]
        val_loss = -float(utility(everyone)[0])
        stats = stats.with_round(t, cohort, np.array([], np.int64), estimate, Cumulative())
        accuracy = server.test(params).accuracy
    return accuracy, kept


def ours(
    server: ServerModel, given: Updates, rng: np.random.Generator
) -> tuple[CachedUtility, NDArray[np.float64]]:
    """GTG-Shapley as the strategy runs it."""
    average = ModelAverageUtility(server, given.previous, given.updates, given.weights)
    utility = CachedUtility(average, empty=-given.previous_loss)
    estimate = gtg_shapley(utility, len(given.updates), rng, stop="released")
    return utility, estimate.values


def as_written(game: Utility, m: int, rng: np.random.Generator) -> tuple[NDArray[np.float64], int]:
    """Alg. 2 line by line, with the stopping rule of the released code; values and evaluations."""
    epsilon, count = 1e-4, 0

    def utility(members: list[int]) -> float:
        nonlocal count
        count += 1
        row = np.zeros((1, m), dtype=bool)
        row[0, members] = True
        return float(game(row)[0])

    v0, v_all = utility([]), utility(list(range(m)))
    values = np.zeros(m)
    if abs(v_all - v0) < epsilon:
        return values, count
    means: list[float] = []
    for sweep in gtg_sweeps(m, 50, rng):
        for order in sweep:
            tau, v = len(means) + 1, v0
            for j in range(m):
                after = v if abs(v_all - v) < epsilon else utility(order[: j + 1].tolist())
                values[order[j]] += (after - v - values[order[j]]) / tau
                v = after
            means.append(values.mean())
        change = np.abs(np.array(means[-10:]) - means[-1]).mean()
        if len(means) >= 19 and change < 0.01 * abs(means[-1]):
            break
    return values, count


def timed(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def local_grid(config: RunConfig, folder: str) -> float:
    """The same run through Flower's apps; returns the last accuracy."""
    config = config.with_values(output_dir=tempfile.mkdtemp(dir=folder))
    run_in_process(
        server_app, client_app, config.to_flat(), [{} for _ in range(config.data.num_clients)]
    )
    accuracy: float = read_history(Path(config.output_dir) / config.run_id)[-1]["test_accuracy"]
    return accuracy


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    data_dir: Annotated[str, typer.Option(help="Folder with MNIST in torchvision's layout.")],
    quick: Annotated[bool, typer.Option(help="Fewer rounds and repetitions.")] = False,
    check: Annotated[bool, typer.Option(help="Exit with 1 when a bar is missed.")] = False,
) -> None:
    """Print the table."""
    rounds, repeats = (60, 3) if quick else (100, 7)
    keys = read_toml(SETTING) | {"data-dir": data_dir, "num-rounds": rounds}
    config = RunConfig.from_flat(keys)
    check_data(config)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w", encoding="utf-8") as quiet:
        stdout, sys.stdout = sys.stdout, quiet
        try:
            accuracy, kept = bare_loop(config)  # also warms every cache
            assert accuracy == local_grid(config, folder), "the two runs must agree"
            times: dict[str, list[float]] = {"bare": [], "grid": [], "written": [], "ours": []}
            for _ in range(repeats):
                times["bare"].append(timed(partial(bare_loop, config)))
                times["grid"].append(timed(partial(local_grid, config, folder)))
            splits = load_splits(config.data, config.seed)
            network = build_model("auto", splits.input_shape, splits.num_classes, config.seed)
            server = ServerModel(network, splits.val, splits.test, splits.num_classes)
            some = kept[:: len(kept) // 10][:10]
            counts = {"written": 0, "ours": 0}
            for t, given in enumerate(some):
                rng = partial(rng_for, config.seed, Stream.VALUE, t)
                started = time.perf_counter()
                average = ModelAverageUtility(server, given.previous, given.updates, given.weights)
                counts["written"] += as_written(average, len(given.updates), rng())[1]
                middle = time.perf_counter()
                utility, _ = ours(server, given, rng())
                times["ours"].append(time.perf_counter() - middle)
                times["written"].append(middle - started)
                counts["ours"] += utility.num_evaluations
        finally:
            sys.stdout = stdout
    median = {name: statistics.median(values) for name, values in times.items()}
    rows = [
        (
            "LocalGrid / bare loop, seconds a round",
            median["grid"] / rounds,
            median["bare"] / rounds,
            median["grid"] / median["bare"],
            f"at most {MAX_OVERHEAD:.2f}",
            median["grid"] / median["bare"] <= MAX_OVERHEAD,
        ),
        (
            "Alg. 2 as written / ours, evaluations a round",
            counts["written"] / len(some),
            counts["ours"] / len(some),
            counts["written"] / counts["ours"],
            f"at least {MIN_FEWER_EVALUATIONS:g}",
            counts["written"] / counts["ours"] >= MIN_FEWER_EVALUATIONS,
        ),
        (
            "Alg. 2 as written / ours, seconds a round",
            median["written"],
            median["ours"],
            median["written"] / median["ours"],
            f"at least {MIN_LESS_TIME:g}",
            median["written"] / median["ours"] >= MIN_LESS_TIME,
        ),
    ]
    table = Table(title=f"MNIST, N=300, M=3, {rounds} rounds × {repeats}, 1 core, 1 thread")
    for heading in ("", "first", "second", "ratio", "bar", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, first, second, ratio, bar, met in rows:
        table.add_row(
            name, f"{first:.4f}", f"{second:.4f}", f"{ratio:.2f}", bar, "met" if met else "MISSED"
        )
    Console().print(table)
    if check and not all(row[-1] for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    main(app)
