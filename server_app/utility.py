"""From coalitions of client updates to utilities, by averaged models on validation data."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.datasets import Dataset, inputs_of
from common.evaluation import Evaluation, Tally, evaluate, tally
from common.models import ModelError
from common.params import Vector
from common.stack import ModelStack
from common.wire import Task
from server_app.groups import Grouping, ungrouped
from server_app.state import ClientStats, ServerState
from server_app.valuation import CachedUtility, Coalitions, Floats

#: Activations of a layer, in floats, that are computed at a time: 4 MiB, which with what the layer
#: is given stay in a core's caches. A GPU has many more cores to keep busy.
_AT_A_TIME = {"cpu": 2**20, "cuda": 2**27}
_MIN_ROWS, _MAX_ROWS = 4, 1000
#: Examples of the part on which a game is nearly the same, and how many times these there must be
#: for it to be worth a game of its own.
PART, MIN_PARTS = 500, 4
_MIB = 2**20


def cores() -> int:
    """Cores for this process: OMP_NUM_THREADS where it is set, as in the processes of a sweep."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(os.environ.get("OMP_NUM_THREADS") or allowed or 1)


def shares_of(coalitions: Coalitions, weights: Floats) -> Floats:
    """The weight of each update in each coalition's average: (C, M) coalitions -> (C, M)."""
    share = coalitions * weights
    shares: Floats = share / share.sum(axis=1, keepdims=True)
    return shares


def weighted_average(coalitions: Coalitions, updates: Vector, weights: Floats) -> Vector:
    """Average of each coalition's updates (paper, ModelAverage), (C, D) float32.

    Args:
        coalitions: (C, M), no row empty.
        updates: (M, D).
        weights: (M,), the clients' numbers of examples n_k.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # the loss of such an average tells
        average: Vector = shares_of(coalitions, weights).astype(np.float32) @ updates
    return average


class ServerModel:
    """The model with the server's own data: losses of parameter vectors (D,).

    Args:
        valuation_examples: validation examples on which coalitions are evaluated, a fixed part in
            which the classes have the shares that they have in the whole; 0: all.
        memory: MiB that the models and activations of many coalitions may take at a time.
        grouping: the groups of validation examples whose losses are told apart; None: none are.
    """

    def __init__(
        self,
        model: nn.Module,
        val: Dataset,
        test: Dataset,
        num_classes: int,
        device: str = "cpu",
        valuation_examples: int = 0,
        memory: int = 256,
        grouping: Grouping | None = None,
    ) -> None:
        self.model = model.to(device)
        self.task = Task(tuple(val.x.shape[1:]), num_classes, inputs_of(val.x))
        self.stack = ModelStack(self.model, self.task.input_shape)
        self.spec, self.memory = self.stack.spec, memory
        order = torch.preserve_format
        if any(isinstance(m, nn.Conv2d) for m in model.modules()) and val.x.dim() == 4:
            order = torch.channels_last  # convolutions are twice as fast (docs/performance.md)
            self.model.to(memory_format=order)
        self.val, self._test = val.to(device, order), test.to(device, order)
        members = (grouping or ungrouped)(val, num_classes)  # (n, G)
        #: The share of each group in the validation split, (G,).
        self.group_shares: Floats = members.mean(dim=0).numpy()
        # What an example counts in its group's loss, so that all losses are means over examples.
        members = members / members.mean(dim=0).clamp(min=1 / len(val))
        self.valued_on, self.members, n = self.val, members.to(device), len(val)
        if 0 < valuation_examples < n:
            n = valuation_examples
            self.valued_on = val.stratified(n).to(device, order)
            self.members = members[val.stratum(n)].to(device)
        large = n >= MIN_PARTS * PART
        self.part = val.stratified(PART).to(device, order) if large else None
        self.members_of_part = members[val.stratum(PART if large else 0)].to(device)

    def without_groups(self) -> None:
        """Tell no groups apart from now on."""
        self.group_shares = self.group_shares[:0]
        self.members, self.members_of_part = self.members[:, :0], self.members_of_part[:, :0]

    def initial_state(self) -> ServerState:
        """Before the first round: the network as it was given, no clients.

        Raises:
            ModelError: a network without a finite loss.
        """
        params = self.spec.flatten(self.model)
        loss = self.val_loss(params)
        if not np.isfinite(loss):
            raise ModelError(
                f"the initial model's validation loss is {loss}; mend the model's factory"
            )
        by_group = -self.utility(params, self.valued_on, self.members)[1:]
        return ServerState(0, params, ClientStats.of_groups(len(by_group)), loss, by_group)

    def val_loss(self, params: Vector) -> float:
        """Mean cross-entropy on the validation split, in nats."""
        return self.validate(params).loss

    def validate(self, params: Vector) -> Evaluation:
        """Loss and accuracy on the validation split, which values and hyper-parameters rest on."""
        self.spec.load(self.model, params)
        return evaluate(self.model, self.val, self.rows(1))

    def utility(self, params: Vector, data: Dataset, members: Tensor) -> Floats:
        """−(mean cross-entropy in nats) of some examples, and in each group, (1 + G,)."""
        self.spec.load(self.model, params)
        found = evaluate(self.model, data, self.rows(1), members)
        return -np.array([found.loss, *found.by_group])

    def test(self, params: Vector) -> Evaluation:
        """Loss and accuracy on the test split, which no decision of the server uses."""
        self.spec.load(self.model, params)
        return evaluate(self.model, self._test, self.rows(1))

    def rows(self, count: int) -> int:
        """Examples for which to compute the activations of `count` models at a time."""
        fit = self._activations // (self.stack.width * (count if self.stack.grouped else 1))
        return max(_MIN_ROWS, min(_MAX_ROWS, fit))

    @property
    def block(self) -> int:
        """Models to evaluate at a time: they fit in memory, and `rows` of them where it should."""
        fit = self.memory * _MIB // 4 // (2 * self.spec.size)
        if self.stack.grouped:
            fit = min(fit, self._activations // (_MIN_ROWS * self.stack.width))
        return max(1, fit)

    def each(
        self, work: Callable[[int], tuple[Tensor, ...]], starts: Iterable[int]
    ) -> list[tuple[Tensor, ...]]:
        """`work` on each part of the examples, on all cores; in order, so that sums stay the same.

        Cores that share one product of a small model wait for one another longer than they
        compute; on parts of their own they do not.
        """
        with torch.inference_mode():
            return list(self._pool.map(torch.inference_mode()(work), starts))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        # A model that is called with others' weights in turn can be called by one thread only.
        many = self.stack.grouped and self.val.x.device.type == "cpu"
        one_each = partial(torch.set_num_threads, 1)
        return ThreadPoolExecutor(cores() if many else 1, "valuation", one_each)

    @property
    def _activations(self) -> int:
        floats = _AT_A_TIME.get(self.val.x.device.type, _AT_A_TIME["cpu"])
        return min(floats, self.memory * _MIB // 4)


class ModelAverageUtility:
    """U(S) = −(loss of the n_k-weighted average of S on `ServerModel.valued_on`).

    U(∅) is that of the previous model. The utilities in each group of examples come from the same
    forward pass; U is their sum, weighted by the groups' shares.

    Source: paper, "Shapley-Value for Client Valuation", and Alg. 2, line 2.

    A coalition is evaluated together with the others of its call (`common.stack`). Where the first
    layer is linear, its output is computed for the M updates once; that of an average is their
    average, which costs 2·M operations per output, where the layer costs 2·inputs.

    Args:
        previous: (D,), the global model that the clients started from.
        updates: (M, D); weights: (M,), the numbers of examples n_k.
        data: other examples than `ServerModel.valued_on`, and their `members`.

    Attributes:
        accuracy: of the average of all updates, NaN until that has been evaluated.
    """

    def __init__(
        self,
        model: ServerModel,
        previous: Vector,
        updates: Vector,
        weights: NDArray[np.float64],
        data: tuple[Dataset, Tensor] | None = None,
    ) -> None:
        self._model, self._previous, self._weights = model, previous, weights
        self._data, self._members = data or (model.valued_on, model.members)
        self._given = updates
        self._updates = torch.from_numpy(updates).to(model.val.x.device)
        self.accuracy = float("nan")

    def cached(self, empty: float | Floats | None = None) -> CachedUtility:
        """The game that an estimator is given; `empty` is U(∅) where it is known already."""
        model, weights, points, part = self._model, self._weights, self._given, None
        if model.part is not None:
            examples = model.part, model.members_of_part
            some = ModelAverageUtility(model, self._previous, points, weights, examples)
            cost = len(model.part) / len(self._data)
            part = CachedUtility(some, None, weights, points, cost=cost)
        return CachedUtility(self, empty, weights, points, part)

    def __call__(self, coalitions: Coalitions) -> Floats:
        """Of coalitions (C, M), (C, 1 + G): the utility, and that in each group; (C,) without."""
        utilities = np.empty((len(coalitions), 1 + len(self._model.group_shares)))
        empty = ~coalitions.any(axis=1)
        if empty.any():
            utilities[empty] = self._model.utility(self._previous, self._data, self._members)
        rows = np.flatnonzero(~empty)
        for start in range(0, len(rows), self._model.block):
            part = rows[start : start + self._model.block]
            losses, accuracies = self._evaluate(shares_of(coalitions[part], self._weights))
            utilities[part] = -losses
            for index in np.flatnonzero(coalitions[part].all(axis=1)):
                self.accuracy = float(accuracies[index])
        return utilities if utilities.shape[1] > 1 else utilities[:, 0]

    def _evaluate(self, shares: Floats) -> tuple[Floats, Floats]:
        data, members = self._data, self._members
        stack, count = self._model.stack, len(shares)
        with torch.inference_mode():
            mix = torch.from_numpy(shares).to(self._updates)
            outputs = self._first_outputs if count > 1 else None
            skipped = 0 if outputs is None else stack.first_size
            average = mix @ self._updates[:, skipped:]
            scores = stack.whole(average) if outputs is None else stack.rest(average)
            step = self._model.rows(count)

            def part(start: int) -> Tally:
                rows = slice(start, start + step)
                given = data.x[rows]
                if outputs is not None:
                    mixed = mix @ outputs[:, rows].flatten(1)
                    given = mixed.view(count, -1, outputs.shape[2])
                return tally(scores(given), data.y[rows], members[rows])

            parts = self._model.each(part, range(0, len(data), step))
            sums = (torch.stack(each).sum(dim=0).cpu() for each in zip(*parts, strict=True))
            losses, correct, in_groups = (each.numpy() / len(data) for each in sums)
            return np.column_stack([losses, in_groups]), correct

    @cached_property
    def _first_outputs(self) -> Tensor | None:
        """What the first layer of each update gives for every example, (M, n, features)."""
        stack, x, count = self._model.stack, self._data.x, len(self._updates)
        if not stack.mixable or len(x) * count * stack.width > self._model.memory * _MIB // 4:
            return None
        first = stack.first(self._updates)
        step = self._model.rows(count)
        outputs = torch.cat([first(x[i : i + step]) for i in range(0, len(x), step)], dim=1)
        # Of one that overflows, 0 times it would be NaN in every average.
        return outputs if outputs.sum().isfinite() else None
