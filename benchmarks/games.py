"""Games of real rounds: updates of M clients, what coalitions are worth, and the exact values."""

import statistics

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.round import as_written, bare_loop, timed
from client_app.data import simulated_client
from common.config import RunConfig
from common.datasets import load_splits
from common.evaluation import CHUNK, evaluate
from common.models import build_model
from common.params import ParamSpec
from common.training import local_sgd
from experiments.settings import check_data
from server_app.groups import Grouping
from server_app.server_model import ServerModel
from server_app.utility import ModelAverageUtility
from server_app.valuation import CachedUtility, Valuation, exact_shapley

CLIENTS = {"mnist": 300, "cifar10": 200}  # as in the paper
ROUNDS = 3  # the last of which is valued
Values = NDArray[np.float64]


class Game:
    """A round's updates of M clients: MNIST with the MLP, or CIFAR-10 with the CNN.

    Args:
        examples: validation images on which coalitions are evaluated; 0: all 5,000.
    """

    def __init__(
        self, dataset: str, m: int, data_dir: str, device: str = "cpu", examples: int = 0
    ) -> None:
        keys = {"dataset": dataset, "data-dir": data_dir, "num-clients": CLIENTS[dataset]}
        keys |= {"clients-per-round": m, "num-rounds": ROUNDS, "valuation-stop": "released"}
        keys |= {"partition": "dirichlet-float32", "dirichlet-alpha": 1e-4}
        self.config = RunConfig.from_flat(keys)
        check_data(self.config)
        self.splits = load_splits(self.config.data, self.config.seed)
        self.m, self.device, self._examples = m, device, examples
        self.given = bare_loop(self.config)[1][-1]

    def network(self) -> nn.Module:
        shape, classes = self.splits.input_shape, self.splits.num_classes
        return build_model("auto", shape, classes, self.config.seed)

    def server(self, grouping: Grouping | None = None) -> ServerModel:
        val, test, classes = self.splits.val, self.splits.test, self.splits.num_classes
        about = (self.device, self._examples)
        return ServerModel(self.network(), val, test, classes, *about, grouping=grouping)

    def average(self, server: ServerModel) -> ModelAverageUtility:
        given = self.given
        return ModelAverageUtility(server, given.previous, given.updates, given.weights)

    def utility(self) -> CachedUtility:
        """As the strategy makes it, without any coalition evaluated."""
        empty = None if self._examples else -self.given.previous_loss
        return self.average(self.server()).cached(empty)

    def value(self, valuation: Valuation, seed: int = 0) -> int:
        """Make a valuation; returns its evaluations."""
        return valuation(self.utility(), self.m, np.random.default_rng(seed)).num_evaluations

    def loop(self, chunk: int = CHUNK) -> None:
        """Evaluate one model, in chunks of images."""
        evaluate(self.network().to(self.device), self.splits.val.to(self.device), chunk)

    def train(self) -> None:
        """The local training of M clients with as many examples as those of the round."""
        worker, spec = self.network(), ParamSpec.of(self.network())
        config, n = self.config, self.config.data.num_clients
        by_size = {len(me.data): me for me in (simulated_client(config, k) for k in range(n))}
        for k, size in enumerate(self.given.weights):
            me = by_size[int(size)]
            spec.load(worker, self.given.previous)
            rng = np.random.default_rng(k)
            local_sgd(worker, me.data, config.training, me.local_epochs, rng)

    def operations(self) -> float:
        """Floating-point operations of an evaluation in layers with weights."""
        network, total = self.network(), 0

        def count(layer: nn.Module, given: object, output: torch.Tensor) -> None:
            nonlocal total
            total += 2 * output.numel() * next(layer.parameters())[0].numel()

        for layer in network.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.register_forward_hook(count)
        network(torch.zeros(1, *self.splits.input_shape))
        return float(total * len(self.splits.val))


class Table:
    """What all 2^M coalitions of a game are worth, and the exact values (M,)."""

    def __init__(self, game: Game) -> None:
        self._known, self._m = game.utility(), game.m
        self.exact = exact_shapley(self._known, game.m, np.random.default_rng(0)).values
        self._empty = float(self._known(np.zeros((1, game.m), dtype=bool))[0])

    def written(self, seed: int) -> tuple[Values, int]:
        """Values and evaluations of Alg. 2 as it is written, without memory."""
        return as_written(self._known, self._m, np.random.default_rng(seed))

    def valued(self, valuation: Valuation, seed: int) -> tuple[Values, int]:
        utility = CachedUtility(self._known, self._empty, self._known.weights, self._known.points)
        values = valuation(utility, self._m, np.random.default_rng(seed)).values
        return values, utility.num_evaluations

    def distance(self, values: Values) -> float:
        """Cosine distance to the exact values."""
        size = np.linalg.norm(values) * np.linalg.norm(self.exact)
        return 1 - float(values @ self.exact / size) if size else 1.0


def matrix_rate(device: str, size: int = 2048) -> float:
    """Floating-point operations a second of a large matrix product."""
    a, b = torch.rand(size, size, device=device), torch.rand(size, size, device=device)

    def product() -> None:
        (a @ b)[0, 0].item()  # waits for a GPU

    return 2 * size**3 / statistics.median(timed(product) for _ in range(9))
