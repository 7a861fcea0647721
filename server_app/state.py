"""What the server has learned so far: the model, and the statistics of every client."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from common.params import Vector

Ints = NDArray[np.int64]
#: A client that fails f times in a row sits out 2^min(f, 6) − 1 rounds.
MAX_BACK_OFF = 6


@dataclass(frozen=True, eq=False)
class ClientStats:
    """Statistics of the N clients known so far, by client id, in the order of their arrival."""

    client_ids: tuple[str, ...] = ()
    value: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))  # cumulative value
    count: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # times valued or averaged
    num_examples: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    failures: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # in a row
    retry_round: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # not asked before

    def index(self, client_id: str) -> int:
        return self.client_ids.index(client_id)

    def with_clients(self, num_examples: dict[str, int]) -> Self:
        """Add clients, in a fixed order; known ones get their new number of examples."""
        # Shorter first, so that partition-2 comes before partition-10.
        new = sorted(num_examples.keys() - set(self.client_ids), key=lambda c: (len(c), c))
        zeros = np.zeros(len(new), np.int64)
        ids = self.client_ids + tuple(new)
        known = dict(zip(self.client_ids, self.num_examples.tolist(), strict=True)) | num_examples
        return replace(
            self,
            client_ids=ids,
            value=np.concatenate([self.value, zeros]),
            count=np.concatenate([self.count, zeros]),
            num_examples=np.array([known[c] for c in ids], np.int64),
            failures=np.concatenate([self.failures, zeros]),
            retry_round=np.concatenate([self.retry_round, zeros]),
        )

    def with_round(
        self,
        server_round: int,
        succeeded: Ints,
        failed: Ints,
        values: NDArray[np.float64] | None,
        cumulative: "Cumulative",
    ) -> Self:
        """The statistics after a round: indices of who succeeded (m,) and failed, values (m,)."""
        value, count = self.value.copy(), self.count.copy()
        failures, retry = self.failures.copy(), self.retry_round.copy()
        if values is not None:
            value[succeeded] = cumulative(value[succeeded], count[succeeded], values)
        count[succeeded] += 1
        failures[succeeded], retry[succeeded] = 0, 0
        failures[failed] += 1
        retry[failed] = server_round + 2 ** np.minimum(failures[failed], MAX_BACK_OFF)
        return replace(self, value=value, count=count, failures=failures, retry_round=retry)


@dataclass(frozen=True)
class Cumulative:
    """How a round's values enter the cumulative ones (paper, Alg. 1, lines 12-13).

    `mean`: ((N_k − 1) SV_k + SV_k^(t)) / N_k. `exponential`: α SV_k + (1 − α) SV_k^(t), where the
    first value is taken as it is. `exponential-from-zero`, as the paper's released code has it,
    starts from 0, which scales a client's first values by 1 − α.
    """

    kind: Literal["mean", "exponential", "exponential-from-zero"] = "mean"
    alpha: float = 0.5

    def __call__(
        self, old: NDArray[np.float64], count: Ints, new: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Cumulative values (m,) from old ones, times valued before, and this round's."""
        if self.kind == "mean":
            return (count * old + new) / (count + 1)
        average = self.alpha * old + (1 - self.alpha) * new
        return np.where(count == 0, new, average) if self.kind == "exponential" else average


@dataclass(frozen=True, eq=False)
class ServerState:
    """The checkpoint: the model (D,) after `round` rounds, its validation loss and the statistics.

    The loss is v_0 of the next round, which need not be evaluated again.

    There is no generator state: every round's generators are derived from the seed.
    """

    round: int
    params: Vector
    stats: ClientStats
    val_loss: float


@dataclass(frozen=True)
class RoundRecord:
    """One line of history.jsonl: clients by id, losses in nats, accuracy in 0..1, seconds by phase.

    `shapley`, `std_error` and `cumulative` hold the clients that were valued in this round.
    `gain` is by how much the validation loss fell, which is what the values share out.
    `leave_one_out` is by how much it would have fallen less without a client, all else the same,
    of those for whom the valuation had to evaluate that coalition.
    """

    round: int
    cohort: list[str]
    shapley: dict[str, float]
    std_error: dict[str, float]
    cumulative: dict[str, float]
    leave_one_out: dict[str, float]
    gain: float
    evaluations: int
    valuation_end: str
    val_loss: float
    val_accuracy: float
    test_loss: float
    test_accuracy: float
    failures: dict[str, str]
    seconds: dict[str, float]
    bytes: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return self.__dict__
