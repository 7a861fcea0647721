"""What a valuation costs, and how far it is from the exact values.

    python -m benchmarks.valuation --data-dir DIR [--quick] [--check] [--threads 1] [--device cpu]

Updates of a real round with M clients: MNIST with the MLP, and CIFAR-10 with the CNN, both with
5,000 validation images and the released code's label draw. Three tables:

- Seconds of an evaluation: all images in one batch, as the authors' code does it; one model after
  the other in chunks; and ours, the mean over a whole GTG valuation, estimator included. The share
  is that of the rate at which the same core multiplies two matrices of 2,048 × 2,048; where the
  first layer of averages comes from that of the updates, it can be more than 100 %.
- Estimators: evaluations, seconds of a whole valuation, and over seeds the medians of the cosine
  distance and the rank correlation to the exact values of all 2^M coalitions. At M = 20 these are
  of the game of 200 validation images, and of the MLP only: the CNN would take an hour.
- A round at M = 20 on CIFAR-10 beside the local training of its clients, a valuation that tells
  values by class beside one that does not, and the most memory of a process that values 20 updates
  on 5,000 images.
"""

import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table as Printed

from benchmarks.games import CLIENTS, Game, Table, matrix_rate
from benchmarks.round import timed
from common.config import ValuationConfig
from common.datasets import Dataset
from common.models import build_model
from experiments.cli import main
from experiments.figures import rank_correlation
from server_app.groups import by_class
from server_app.server_model import ServerModel
from server_app.utility import ModelAverageUtility
from server_app.valuation import (
    Valuation,
    exact_shapley,
    gtg_shapley,
    valuation_from,
)

COHORTS, FEW = (3, 5, 10, 20), 200
MIN_TO_BATCH, MIN_SHARE, MIN_TO_LOOP = 6.0, 0.4, 3.0
MAX_DISTANCE, MIN_FEWER, MAX_TO_TRAINING, MAX_GIB = 1e-3, 3.0, 3.0, 1.5
MAX_TO_SCALAR = 1.1
AUTO = valuation_from(ValuationConfig(), True) or gtg_shapley
RELEASED: Valuation = partial(gtg_shapley, stop="released")
ESTIMATORS = {"gtg, released stop": RELEASED, "gtg": gtg_shapley, "auto": AUTO}
EXACT = {"exact": exact_shapley}  # where a cohort has at most 10
SPEED = "evaluations", "one batch", "chunks", "ours", "× batch", "× chunks", "of matmul", ""
QUALITY = "estimator", "evaluations", "seconds", "1 − cosine", "rank", "fewer", ""
Line = tuple[list[str], bool | None]  # its cells, and whether it meets its bar, where it has one


def speed(game: Game, repeats: int) -> Line:
    """Seconds of an evaluation in three ways, in turn."""
    batch, loop, ours = list[float](), list[float](), list[float]()
    count = game.value(RELEASED)
    for _ in range(repeats):
        batch.append(timed(partial(game.loop, len(game.splits.val))))
        loop.append(timed(game.loop))
        ours.append(timed(partial(game.value, RELEASED)) / count)
    one, two, three = (statistics.median(seconds) for seconds in (batch, loop, ours))
    share, met = game.operations() / three / matrix_rate(game.device), None
    if game.m == 20 and game.config.data.dataset == "cifar10":
        met = one / three >= MIN_TO_BATCH and share >= MIN_SHARE
    elif game.m == 20:
        met = two / three >= MIN_TO_LOOP
    seconds = f"{one:.4f}", f"{two:.4f}", f"{three:.5f}"
    return [str(count), *seconds, f"{one / three:.1f}", f"{two / three:.1f}", f"{share:.0%}"], met


def quality(game: Game, table: Table, seeds: int) -> list[Line]:
    """A line for each estimator; seconds are those of valuations on all images."""
    lines, of_written = list[Line](), 0.0
    known = ESTIMATORS | (EXACT if game.m <= 10 else {})
    for name, valuation in {"Alg. 2 as written": None, **known}.items():
        one = partial(table.valued, valuation) if valuation else table.written
        runs = [one(seed) for seed in range(seeds)]
        count = statistics.median(c for _, c in runs)
        distance = statistics.median(table.distance(values) for values, _ in runs)
        rank = statistics.median(rank_correlation(values, table.exact) for values, _ in runs)
        of_written, met = of_written or count, None
        if name == "auto" and game.m == 20:
            met = distance <= MAX_DISTANCE and of_written >= MIN_FEWER * count
        elif name == "exact":
            met = count <= 2**game.m - 1 and distance <= 1e-12
        seconds = f"{timed(partial(game.value, valuation)):.3f}" if valuation else ""
        figures = [f"{distance:.1e}", f"{rank:.3f}", f"{of_written / count:.1f} ×"]
        lines.append(([name, f"{count:.0f}", seconds, *figures], met))
    return lines


def by_class_to_scalar(game: Game, repeats: int) -> float:
    """Seconds of `auto` with values by class as a ratio to those without; medians, in turn."""
    nobody, seconds = np.zeros((1, game.m), dtype=bool), (list[float](), list[float]())
    servers = game.server(), game.server(by_class)
    empty = [game.average(server)(nobody)[0] for server in servers]  # the strategy knows it

    def value(k: int) -> None:
        AUTO(game.average(servers[k]).cached(empty[k]), game.m, np.random.default_rng(0))

    for k in [0, 1] * repeats:
        seconds[k].append(timed(partial(value, k)))
    return statistics.median(seconds[1]) / statistics.median(seconds[0])


def peak_gib(m: int) -> float:
    """The most memory of this process, which values random updates on 5,000 images (Linux)."""
    torch.set_num_threads(1)
    network, rng = build_model("cnn", (3, 32, 32), 10, 0), np.random.default_rng(0)
    val = Dataset(torch.rand(5000, 3, 32, 32), torch.randint(10, (5000,)))
    server = ServerModel(network, val, val.take(np.arange(1)), 10)
    before = server.spec.flatten(network)
    updates = before + rng.normal(scale=0.01, size=(m, len(before))).astype(np.float32)
    average = ModelAverageUtility(server, before, updates, np.ones(m))
    AUTO(average.cached(), m, rng)
    status = Path("/proc/self/status").read_text()  # `ru_maxrss` begins with the parent's
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**20


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    data_dir: Annotated[str, typer.Option(help="Folder with MNIST and CIFAR-10.")],
    quick: Annotated[bool, typer.Option(help="M = 5 and 20, fewer repetitions.")] = False,
    check: Annotated[bool, typer.Option(help="Exit with 1 when a bar is missed.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Cores and threads.")] = 1,
    device: Annotated[str, typer.Option(help="`cpu` or `cuda`.")] = "cpu",
) -> None:
    """Print the tables."""
    torch.set_num_threads(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
    repeats, seeds, cohorts = (3, 5, (5, 20)) if quick else (5, 15, COHORTS)
    about = f"5,000 validation images, {threads} thread, {device}"
    rates = Printed("", "M", *SPEED, title=f"Seconds of an evaluation; {about}")
    values = Printed("", "M", *QUALITY, title=f"Estimators, medians over {seeds} seeds")
    rest, marks = Printed("", "", "bar", "", title="A round, and memory"), list[bool | None]()
    for dataset, m in product(CLIENTS, cohorts):
        game = Game(dataset, m, data_dir, device)
        add(rates, marks, [dataset, str(m)], speed(game, repeats))
        ratio = by_class_to_scalar(game, 25 if m < 10 else repeats)
        texts, met = [f"{ratio:.2f}", f"at most {MAX_TO_SCALAR}"], ratio <= MAX_TO_SCALAR
        add(rest, marks, [f"values by class / without, {dataset}, M = {m}"], (texts, met))
        if (dataset, m) != ("cifar10", 20):
            few = Game(dataset, m, data_dir, device, FEW) if m == 20 else game
            for line in quality(game, Table(few), seeds):
                add(values, marks, [dataset, str(m)], line)
        else:
            training = statistics.median(timed(game.train) for _ in range(3))
            valuation = statistics.median(timed(partial(game.value, AUTO, s)) for s in range(5))
            ratio = (training + valuation) / training
            texts = [f"{ratio:.2f}", f"at most {MAX_TO_TRAINING}"]
            met = ratio <= MAX_TO_TRAINING
            add(rest, marks, ["(training + valuation) / training"], (texts, met))
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        peak = alone.submit(peak_gib, 20).result()
    add(rest, marks, ["peak memory, GiB"], ([f"{peak:.2f}", f"at most {MAX_GIB}"], peak <= MAX_GIB))
    for table in (rates, values, rest):
        Console(width=110).print(table)
    if check and False in marks:
        raise typer.Exit(1)


def add(table: Printed, marks: list[bool | None], first: list[str], line: Line) -> None:
    texts, met = line
    marks.append(met)
    table.add_row(*first, *texts, {None: "", True: "met", False: "MISSED"}[met])


if __name__ == "__main__":
    main(app)
