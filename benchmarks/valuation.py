"""What a valuation costs, and how far it is from the exact values.

    python -m benchmarks.valuation --data-dir DIR [--quick] [--check] [--threads 1]

Updates of a real round with M clients: MNIST with the MLP, and CIFAR-10 with the CNN, both with
5,000 validation images and the released code's label draw. Three tables:

- Seconds of an evaluation: all images in one batch, as the authors' code does it; one model after
  the other in chunks; and ours, the mean over a whole valuation. The share is that of the rate at
  which the same core multiplies two matrices of 2,048 × 2,048.
- Estimators: evaluations of a valuation, and the seconds that these take; cosine distance and rank
  correlation to the exact values of all 2^M coalitions, medians over seeds. For M = 20 the values
  are of the game of 200 validation images: of all 2^20 coalitions for the MLP, and for the CNN the
  mean over antithetic pairs of permutations.
- A round at M = 20 on CIFAR-10 beside the local training of its clients, and the most memory of a
  process that values 20 updates on 5,000 images.
"""

import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.round import Updates, as_written, bare_loop, timed
from client_app.data import simulated_client
from common.config import RunConfig, ValuationConfig
from common.datasets import Dataset, Splits, load_splits
from common.evaluation import CHUNK, evaluate
from common.models import build_model
from common.params import ParamSpec
from common.training import local_sgd
from experiments.cli import main
from experiments.figures import rank_correlation
from experiments.settings import check_data
from server_app.utility import ModelAverageUtility, ServerModel
from server_app.valuation import (
    CachedUtility,
    Utility,
    Valuation,
    exact_shapley,
    gtg_shapley,
    valuation_from,
)

CLIENTS = {"mnist": 300, "cifar10": 200}  # as in the paper
ROUNDS = 3  # the last of which is valued
COHORTS = 3, 5, 10, 20
FEW = 200  # validation images of the game at M = 20
MIN_TO_BATCH, MIN_SHARE, MIN_TO_LOOP = 6.0, 0.4, 3.0
MAX_DISTANCE, MIN_FEWER, MAX_TO_TRAINING, MAX_GIB = 1e-3, 3.0, 3.0, 1.5
SPEED = (
    "evaluations",
    "one batch",
    "chunks",
    "ours",
    "a second",
    "× batch",
    "× chunks",
    "of matmul",
    "",
)
QUALITY = "estimator", "evaluations", "seconds", "cosine distance", "rank", "reference", ""
PAIRS = 1000  # of permutations, where 2^20 coalitions are too many
Values = NDArray[np.float64]


def cached(valuation: Valuation, game: Utility, m: int, seed: int) -> tuple[Values, int]:
    """Values and evaluations."""
    utility = CachedUtility(game)
    values = valuation(utility, m, np.random.default_rng(seed)).values
    return values, utility.num_evaluations


def written(game: Utility, m: int, seed: int) -> tuple[Values, int]:
    """Those of Alg. 2 as it is written, without memory."""
    return as_written(game, m, np.random.default_rng(seed))


AUTO = valuation_from(ValuationConfig(), "gtg") or gtg_shapley
BETTER = "auto"
ESTIMATORS: dict[str, Callable[[Utility, int, int], tuple[Values, int]]] = {
    "Alg. 2 as written": written,
    "gtg, released": partial(cached, partial(gtg_shapley, stop="released")),
    "gtg": partial(cached, gtg_shapley),
    BETTER: partial(cached, AUTO),
}


def cosine_distance(values: Values, exact: Values) -> float:
    return 1 - float(values @ exact / np.linalg.norm(values) / np.linalg.norm(exact))


def matrix_rate(device: str, size: int = 2048) -> float:
    """Floating-point operations a second of a large matrix product."""
    a, b = torch.rand(size, size, device=device), torch.rand(size, size, device=device)

    def product() -> None:
        (a @ b)[0, 0].item()  # waits for a GPU

    return 2 * size**3 / statistics.median(timed(product) for _ in range(9))


def antithetic(utility: CachedUtility, m: int, pairs: int, rng: np.random.Generator) -> Values:
    """Mean marginal contributions over pairs of a permutation and its reverse."""
    total = np.zeros(m)
    for _ in range(pairs):
        order = rng.permutation(m)
        for one in (order, order[::-1]):
            prefixes = np.tri(m + 1, m, -1, dtype=bool)[:, np.argsort(one)]
            total[one] += np.diff(utility(prefixes))
    return total / (2 * pairs)


class Bench:
    """The updates of a real round of one data set with M clients, and the ways to value them."""

    def __init__(self, dataset: str, m: int, data_dir: str, device: str) -> None:
        keys = {"dataset": dataset, "data-dir": data_dir, "num-clients": CLIENTS[dataset]}
        keys |= {"clients-per-round": m, "num-rounds": ROUNDS, "valuation-stop": "released"}
        keys |= {"partition": "dirichlet-float32", "dirichlet-alpha": 1e-4}
        self.config = RunConfig.from_flat(keys)
        check_data(self.config)
        self.splits: Splits = load_splits(self.config.data, self.config.seed)
        self.m, self.device = m, device
        self.given: Updates = bare_loop(self.config)[1][-1]

    def network(self) -> nn.Module:
        shape, classes = self.splits.input_shape, self.splits.num_classes
        return build_model("auto", shape, classes, self.config.seed)

    def utility(self, examples: int = 0) -> ModelAverageUtility:
        val, test, classes = self.splits.val, self.splits.test, self.splits.num_classes
        server = ServerModel(self.network(), val, test, classes, self.device, examples)
        return ModelAverageUtility(
            server, self.given.previous, self.given.updates, self.given.weights
        )

    def operations(self) -> float:
        """Floating-point operations of layers with weights, for all validation images."""
        network, total = self.network(), 0

        def count(layer: nn.Module, given: object, output: torch.Tensor) -> None:
            nonlocal total
            total += 2 * output.numel() * next(layer.parameters())[0].numel()

        for layer in network.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.register_forward_hook(count)
        network(torch.zeros(1, *self.splits.input_shape))
        return float(total * len(self.splits.val))

    def rates(self, repeats: int) -> tuple[list[str], bool | None]:
        """Seconds of an evaluation in three ways, in turn; whether ours meets the bars."""
        plain, val = self.network().to(self.device), self.splits.val.to(self.device)
        batch, loop, ours = list[float](), list[float](), list[float]()
        count = 0
        for _ in range(repeats):
            batch.append(timed(partial(evaluate, plain, val, len(val))))
            loop.append(timed(partial(evaluate, plain, val, CHUNK)))
            started = time.perf_counter()
            utility = CachedUtility(self.utility(), empty=-self.given.previous_loss)
            count = AUTO(utility, self.m, np.random.default_rng(0)).num_evaluations
            ours.append((time.perf_counter() - started) / count)
        one, two, three = (statistics.median(times) for times in (batch, loop, ours))
        share = self.operations() / three / matrix_rate(self.device)
        met = None
        if self.m == 20 and self.config.data.dataset == "cifar10":
            met = one / three >= MIN_TO_BATCH and share >= MIN_SHARE
        elif self.m == 20:
            met = two / three >= MIN_TO_LOOP
        figures = [f"{count}", f"{one:.4f}", f"{two:.4f}", f"{three:.4f}", f"{1 / three:.0f}"]
        return [*figures, f"{one / three:.1f}", f"{two / three:.1f}", f"{share:.0%}"], met

    def exact(self) -> tuple[Utility, Values, str]:
        """A game of these updates with its exact values, and what they are of."""
        m, rng = self.m, np.random.default_rng(0)
        if m <= 10:
            game = self.utility()
            return game, exact_shapley(CachedUtility(game), m, rng).values, "exact"
        game = self.utility(FEW)
        if self.config.data.dataset == "mnist":
            return game, exact_shapley(CachedUtility(game), m, rng).values, "exact"
        reference = antithetic(CachedUtility(game), m, PAIRS, rng)
        return game, reference, f"{2 * PAIRS} permutations"

    def estimators(
        self, seeds: int, per_evaluation: float
    ) -> Iterator[tuple[list[str], bool | None]]:
        """Of each: evaluations, their seconds, cosine distance and rank correlation."""
        game, exact, reference = self.exact()
        known = CachedUtility(game)  # what another estimator or seed asked for
        of_written = 0.0
        for name, estimator in ESTIMATORS.items():
            runs = [estimator(known, self.m, seed) for seed in range(seeds)]
            count = statistics.median(c for _, c in runs)
            distance = statistics.median(cosine_distance(v, exact) for v, _ in runs)
            rank = statistics.median(rank_correlation(v, exact) for v, _ in runs)
            of_written = of_written or count
            met = None
            if name == BETTER and self.m == 20:
                met = distance <= MAX_DISTANCE and of_written / count >= MIN_FEWER
            elif name == BETTER and self.m <= 10:
                met = count <= 2**self.m - 1
            seconds = f"{count * per_evaluation:.2f}"
            yield [name, f"{count:.0f}", seconds, f"{distance:.1e}", f"{rank:.3f}", reference], met

    def round(self) -> tuple[float, float]:
        """Seconds of the local training of the cohort, and of the rest of the round."""
        config, given = self.config, self.given
        worker, spec = self.network(), ParamSpec.of(self.network())
        chosen = [simulated_client(config, k) for k in range(self.m)]

        def train() -> None:
            for k, me in enumerate(chosen):
                spec.load(worker, given.previous)
                rng = np.random.default_rng(k)
                local_sgd(worker, me.data, config.training, me.local_epochs, rng)

        def value() -> None:
            utility = CachedUtility(self.utility(), empty=-given.previous_loss)
            AUTO(utility, self.m, np.random.default_rng(0))
            evaluate(self.network(), self.splits.test)

        return timed(train), timed(value)


def peak_gib(m: int) -> float:
    """The most memory of this process, when it has valued random updates on 5,000 images."""
    torch.set_num_threads(1)
    network, rng = build_model("cnn", (3, 32, 32), 10, 0), np.random.default_rng(0)
    val = Dataset(torch.rand(5000, 3, 32, 32), torch.randint(10, (5000,)))
    server = ServerModel(network, val, val.take(np.arange(1)), 10)
    before = server.spec.flatten(network)
    updates = before + rng.normal(scale=0.01, size=(m, len(before))).astype(np.float32)
    utility = CachedUtility(ModelAverageUtility(server, before, updates, np.ones(m)))
    AUTO(utility, m, rng)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    data_dir: Annotated[str, typer.Option(help="Folder with MNIST and CIFAR-10.")],
    quick: Annotated[bool, typer.Option(help="M = 3 and 20 only, fewer repetitions.")] = False,
    check: Annotated[bool, typer.Option(help="Exit with 1 when a bar is missed.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Cores and threads.")] = 1,
    device: Annotated[str, typer.Option(help="`cpu` or `cuda`.")] = "cpu",
) -> None:
    """Print the tables."""
    torch.set_num_threads(threads)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
    repeats, seeds, cohorts = (3, 5, (3, 20)) if quick else (9, 25, COHORTS)
    title = f"5,000 validation images, {threads} thread, {device}"
    speed = Table("", "M", *SPEED, title=f"Seconds of an evaluation; {title}")
    quality = Table("", "M", *QUALITY, title="Estimators, medians over seeds")
    marks, rest = list[bool | None](), Table("", "", "bar", "", title="A round, and memory")
    for dataset, m in product(CLIENTS, cohorts):
        bench = Bench(dataset, m, data_dir, device)
        figures, met = bench.rates(repeats)
        add(speed, marks, [dataset, str(m), *figures], met)
        if not (quick and dataset == "cifar10"):
            for row, met in bench.estimators(seeds, float(figures[3])):
                add(quality, marks, [dataset, str(m), *row], met)
        if (dataset, m) == ("cifar10", 20):
            training, others = bench.round()
            ratio = (training + others) / training
            texts = ["whole round / local training", f"{ratio:.2f}", f"at most {MAX_TO_TRAINING}"]
            add(rest, marks, texts, ratio <= MAX_TO_TRAINING)
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        peak = alone.submit(peak_gib, 20).result()
    texts = ["peak memory, CNN, M = 20, GiB", f"{peak:.2f}", f"at most {MAX_GIB}"]
    add(rest, marks, texts, peak <= MAX_GIB)
    for table in (speed, quality, rest):
        Console(width=120).print(table)
    if check and False in marks:
        raise typer.Exit(1)


def add(table: Table, marks: list[bool | None], texts: list[str], met: bool | None) -> None:
    marks.append(met)
    table.add_row(*texts, {None: "", True: "met", False: "MISSED"}[met])


if __name__ == "__main__":
    main(app)
