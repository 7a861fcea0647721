"""What a run of each algorithm costs beside a bare loop, and what a second process gains.

    python -m benchmarks.sweep --data-dir DIR [--quick] [--check]

MNIST as in experiments/mnist.toml. The bare loop trains, values and evaluates the same clients to
the same result, without Flower, records or files. Both sides run in turn, on one core and with one
thread. Then four runs of FedAvg by one process and by two, on two cores; starting the processes and
loading the data, a few seconds, is not counted: both have done runs before.
"""

import io
import logging
import os
import statistics
import tempfile
from functools import partial
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch.nn import Module

from benchmarks.round import SETTING, Updates, local_grid, ours, timed
from client_app.data import simulated_client
from common.config import RunConfig
from common.datasets import Dataset, load_splits
from common.evaluation import evaluate
from common.models import build_model
from common.params import ParamSpec, Vector
from common.seeding import Stream, client_key, rng_for
from common.training import local_sgd
from experiments.cli import main
from experiments.parallel import Workers, run_all
from experiments.settings import check_data, read_toml, simulated
from server_app.algorithms import ALGORITHMS
from server_app.selection import Indices, SelectionView
from server_app.server_model import ServerModel
from server_app.state import ClientStats
from server_app.utility import weighted_average

MAX_OVERHEAD, MIN_SPEED_UP = 1.15, 1.7


def bare_loop(config: RunConfig) -> float:
    """The algorithm written straight down; returns the last test accuracy."""
    splits, seed = load_splits(config.data, config.seed), config.seed
    shape, classes = splits.input_shape, splits.num_classes
    row, picked = ALGORITHMS[config.selection.algorithm], config.selection
    m = row.cohort or picked.clients_per_round
    server_net = build_model(config.training.model, shape, classes, seed)
    server = ServerModel(server_net, splits.val, splits.test, classes)
    worker = build_model(config.training.model, shape, classes, seed)
    spec, policy = ParamSpec.of(worker), row.policy(picked)
    n = config.data.num_clients
    clients = {me.info.client_id: me for me in (simulated_client(config, k) for k in range(n))}
    stats = ClientStats().with_clients({c: len(me.data) for c, me in clients.items()})
    params = spec.flatten(server.model)
    val_loss, accuracy = server.val_loss(params), 0.0
    for t in range(1, config.num_rounds + 1):
        ask = partial(_losses, [clients[c].data for c in stats.client_ids], worker, spec, params)
        view = SelectionView(t, m, stats, np.ones(n, dtype=bool), ask)
        cohort = np.sort(policy.select(view, rng_for(seed, Stream.SELECT, t)))
        updates = []
        for k in cohort:
            me = clients[stats.client_ids[k]]
            spec.load(worker, params)
            rng = rng_for(seed, Stream.LOCAL_SGD, t, client_key(me.info.client_id))
            local_sgd(worker, me.data, config.training, me.local_epochs, rng, me.batch_size)
            updates.append(spec.flatten(worker))
        stacked, weights = np.stack(updates), stats.num_examples[cohort].astype(np.float64)
        values, given = None, Updates(params, stacked, weights, val_loss)
        everyone = np.ones((1, len(cohort)), dtype=bool)
        params = weighted_average(everyone, stacked, weights)[0]
        if not row.valued:
            val_loss = server.val_loss(params)
        else:
            utility, values = ours(server, given, rng_for(seed, Stream.VALUE, t))
            val_loss = -float(utility(everyone)[0])  # known
        none = np.array([], np.int64)
        stats = stats.with_round(t, cohort, none, values, row.cumulative(picked))
        accuracy = server.test(params).accuracy
    return accuracy


def _losses(
    data: list[Dataset], worker: Module, spec: ParamSpec, params: Vector, asked: Indices
) -> NDArray[np.float64]:
    spec.load(worker, params)
    return np.array([evaluate(worker, data[k]).loss for k in asked])


def overhead(config: RunConfig, repeats: int, folder: str) -> tuple[float, float]:
    """Median seconds a round of a run through Flower's apps, and of the bare loop."""
    assert bare_loop(config) == local_grid(config, folder), "the two runs must agree"
    bare, grid = list[float](), list[float]()
    for _ in range(repeats):
        bare.append(timed(partial(bare_loop, config)))
        grid.append(timed(partial(local_grid, config, folder)))
    return statistics.median(grid) / config.num_rounds, statistics.median(bare) / config.num_rounds


def throughput(config: RunConfig, jobs: int, repeats: int, folder: str) -> float:
    """Median seconds of four runs by some processes, which are warm."""
    console, seconds = Console(file=io.StringIO()), list[float]()
    for repeat in range(repeats + 1):  # the first starts the processes
        where = tempfile.mkdtemp(dir=folder)
        runs = [config.with_values(seed=s, output_dir=where) for s in range(4)]
        spent = timed(partial(run_all, runs, Workers(jobs), console))
        seconds += [spent] * (repeat > 0)
    return statistics.median(seconds)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    data_dir: Annotated[str, typer.Option(help="Folder with MNIST in torchvision's layout.")],
    quick: Annotated[bool, typer.Option(help="Fewer rounds and repetitions.")] = False,
    check: Annotated[bool, typer.Option(help="Exit with 1 when a bar is missed.")] = False,
) -> None:
    """Print the table."""
    rounds, repeats = (15, 1) if quick else (400, 3)
    keys = read_toml(SETTING) | {"data-dir": data_dir, "num-rounds": rounds}
    config = simulated(RunConfig.from_flat(keys))
    check_data(config)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set[int]()
    torch.set_num_threads(1)
    logging.getLogger("greedyfed").addHandler(logging.NullHandler())  # else rounds are printed
    table = Table(title=f"MNIST, N=300, M=3, {rounds} rounds × {repeats}, 1 thread")
    for heading in ("", "first", "second", "ratio", "bar", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    all_met = True

    def add(name: str, first: float, second: float, bar: str, met: bool) -> None:
        nonlocal all_met
        all_met &= met
        ratio = f"{first / second:.2f}"
        table.add_row(name, f"{first:.4f}", f"{second:.4f}", ratio, bar, "met" if met else "MISSED")

    with tempfile.TemporaryDirectory() as folder:
        if cores:
            os.sched_setaffinity(0, {min(cores)})
        for algorithm in ALGORITHMS:
            mu = 0.1 if algorithm == "fedprox" else 0.0
            one = config.with_values(algorithm=algorithm, proximal_mu=mu)
            grid, bare = overhead(one, repeats, folder)
            met = grid / bare <= MAX_OVERHEAD
            name = f"{algorithm} / bare loop, seconds a round"
            add(name, grid, bare, f"at most {MAX_OVERHEAD}", met)
        if cores:
            os.sched_setaffinity(0, set(sorted(cores)[:2]))
        one = config.with_values(algorithm="fedavg", num_rounds=2 * rounds)
        alone, both = (throughput(one, jobs, repeats, folder) for jobs in (1, 2))
        met = alone / both >= MIN_SPEED_UP
        add(
            "one job / two jobs, seconds of four runs", alone, both, f"at least {MIN_SPEED_UP}", met
        )
    Console(width=110).print(table)
    if check and not all_met:
        raise typer.Exit(1)


if __name__ == "__main__":
    main(app)
