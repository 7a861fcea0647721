"""From coalitions of client updates to utilities, by averaged models on validation data."""

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.datasets import Dataset
from common.evaluation import Tally, tally
from common.params import Vector
from server_app.server_model import ServerModel
from server_app.valuation import CachedUtility, Coalitions, Floats


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


class ModelAverageUtility:
    """U(S) = −(loss of the n_k-weighted average of S on `ServerModel.valued_on`).

    U(∅) is that of the previous model. The utilities in each group of examples come from the same
    forward pass; U is their sum, weighted by the groups' shares.

    Source: paper, "Shapley-Value for Client Valuation", and Alg. 2, line 2.

    A coalition is evaluated together with the others of its call where the network allows it
    (`common.stack`), else by the network itself, one after the other. Where the first
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
        if not stack.grouped:
            with np.errstate(over="ignore", invalid="ignore"):  # the loss of such a model tells
                models = shares.astype(np.float32) @ self._given
            found = [self._model.evaluate(model, data, members) for model in models]
            losses = np.array([[one.loss, *one.by_group] for one in found])
            return losses, np.array([one.accuracy for one in found])
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
        if not stack.mixable or len(x) * count * stack.width > self._model.floats:
            return None
        first = stack.first(self._updates)
        step = self._model.rows(count)
        outputs = torch.cat([first(x[i : i + step]) for i in range(0, len(x), step)], dim=1)
        # Of one that overflows, 0 times it would be NaN in every average.
        return outputs if outputs.sum().isfinite() else None
