"""From coalitions of client updates to utilities, by averaged models on validation data."""

import numpy as np
from numpy.typing import NDArray
from torch import nn

from common.datasets import Dataset
from common.evaluation import Evaluation, evaluate
from common.models import ModelError
from common.params import ParamSpec, Vector
from common.wire import Task
from server_app.state import ClientStats, ServerState
from server_app.valuation import Coalitions, Floats

#: Floats of averaged models held at a time: 64 MiB.
_BLOCK = 2**24


def weighted_average(coalitions: Coalitions, updates: Vector, weights: Floats) -> Vector:
    """Average of each coalition's updates (paper, ModelAverage), (C, D) float32.

    Args:
        coalitions: (C, M), no row empty.
        updates: (M, D).
        weights: (M,), the clients' numbers of examples n_k.
    """
    share = coalitions * weights
    share = share / share.sum(axis=1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):  # the loss of such an average tells
        average: Vector = share.astype(np.float32) @ updates
    return average


class ServerModel:
    """The model with the server's own data: losses of parameter vectors (D,)."""

    def __init__(
        self,
        model: nn.Module,
        val: Dataset,
        test: Dataset,
        num_classes: int,
        device: str = "cpu",
    ) -> None:
        self.model, self.spec = model.to(device), ParamSpec.of(model)
        self.task = Task(tuple(val.x.shape[1:]), num_classes)
        self._val, self._test = val.to(device), test.to(device)

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
        return ServerState(0, params, ClientStats(), loss)

    def val_loss(self, params: Vector) -> float:
        """Mean cross-entropy on the validation split, in nats."""
        return self.validate(params).loss

    def validate(self, params: Vector) -> Evaluation:
        """Loss and accuracy on the validation split, which values and hyper-parameters rest on."""
        self.spec.load(self.model, params)
        return evaluate(self.model, self._val)

    def test(self, params: Vector) -> Evaluation:
        """Loss and accuracy on the test split, which no decision of the server uses."""
        self.spec.load(self.model, params)
        return evaluate(self.model, self._test)


class ModelAverageUtility:
    """U(S) = −(validation loss of the n_k-weighted average of S); U(∅) is the previous model's.

    Source: paper, "Shapley-Value for Client Valuation", and Alg. 2, line 2.

    Args:
        previous: (D,), the global model that the clients started from.
        updates: (M, D); weights: (M,), the numbers of examples n_k.

    Attributes:
        accuracy: of the average of all updates, NaN until that has been evaluated.
    """

    def __init__(
        self, model: ServerModel, previous: Vector, updates: Vector, weights: NDArray[np.float64]
    ) -> None:
        self._model, self._previous = model, previous
        self._updates, self._weights = updates, weights
        self.accuracy = float("nan")

    def __call__(self, coalitions: Coalitions) -> Floats:
        utilities = np.empty(len(coalitions))
        empty = ~coalitions.any(axis=1)
        if empty.any():
            utilities[empty] = -self._model.val_loss(self._previous)
        rows = np.flatnonzero(~empty)
        block = max(1, _BLOCK // self._updates.shape[1])
        for start in range(0, len(rows), block):
            part = rows[start : start + block]
            averages = weighted_average(coalitions[part], self._updates, self._weights)
            for row, average in zip(part, averages, strict=True):
                loss, accuracy = self._model.validate(average)
                utilities[row] = -loss
                if coalitions[row].all():
                    self.accuracy = accuracy
        return utilities
