"""What the server has learned so far: the model, and the statistics of every client."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self

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
    #: Cumulative values in each group of examples, (N, G).
    group_value: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    #: By which share their updates alone change the loss of each group, mean of rounds, (N, G).
    group_gain: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    #: Rounds that each took part in, (N,), those before the last few counting ever less. It is not
    #: saved: `with_memory` has it from who took part.
    recent: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of_groups(cls, num_groups: int) -> Self:
        """No clients yet, whose values are told apart by group."""
        none = np.zeros((0, num_groups))
        return cls(group_value=none, group_gain=none)

    def index(self, client_id: str) -> int:
        return self.client_ids.index(client_id)

    def ready(self, free: NDArray[np.bool_], server_round: int, wanted: int) -> NDArray[np.bool_]:
        """Of the clients that are free (N,), those whose back-off is over in a round.

        While they are fewer than `wanted`, those whose back-off is over soonest, too.
        """
        ready = free & (self.retry_round <= server_round)
        if (missing := wanted - int(ready.sum())) > 0:
            waiting = np.flatnonzero(free & ~ready)
            order = np.argsort(self.retry_round[waiting], kind="stable")
            ready[waiting[order][:missing]] = True
        return ready

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
            group_value=np.pad(self.group_value, ((0, len(new)), (0, 0))),
            group_gain=np.pad(self.group_gain, ((0, len(new)), (0, 0))),
            recent=np.pad(self.recent, (0, len(new))),
        )

    def with_round(
        self,
        server_round: int,
        succeeded: Ints,
        failed: Ints,
        values: NDArray[np.float64] | None,
        cumulative: "Cumulative",
        in_groups: "InGroups | None" = None,
    ) -> Self:
        """The statistics after a round: indices of who succeeded (m,) and failed, values (m,)."""
        value, count = self.value.copy(), self.count.copy()
        group_value, group_gain = self.group_value.copy(), self.group_gain.copy()
        failures, retry = self.failures.copy(), self.retry_round.copy()
        if values is not None:
            value[succeeded] = cumulative(value[succeeded], count[succeeded], values)
        if in_groups is not None and group_value.size:
            old, before = group_value[succeeded], count[succeeded][:, None]
            group_value[succeeded] = cumulative(old, before, in_groups.values)
            group_gain[succeeded] = Cumulative()(group_gain[succeeded], before, in_groups.gains)
        count[succeeded] += 1
        failures[succeeded], retry[succeeded] = 0, 0
        failures[failed] += 1
        retry[failed] = server_round + 2 ** np.minimum(failures[failed], MAX_BACK_OFF)
        return replace(
            self,
            value=value,
            count=count,
            failures=failures,
            retry_round=retry,
            group_value=group_value,
            group_gain=group_gain,
            recent=self._after(self.recent, succeeded),
        )

    def with_memory(self, rounds: Iterable[Collection[str]]) -> Self:
        """The statistics with `recent` as it is after rounds, given the clients of each."""
        recent = np.zeros(len(self.client_ids))
        place = {c: k for k, c in enumerate(self.client_ids)}
        for clients in rounds:
            recent = self._after(recent, np.array([place[c] for c in clients], np.int64))
        return replace(self, recent=recent)

    def _after(self, recent: NDArray[np.float64], took_part: Ints) -> NDArray[np.float64]:
        recent = recent.copy()
        recent[took_part] += 1
        return recent * discount(len(took_part), self.group_gain.shape[1])


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
        """Cumulative values from old ones, times valued before, and this round's, all (m, …)."""
        if self.kind == "mean":
            return (count * old + new) / (count + 1)
        average = self.alpha * old + (1 - self.alpha) * new
        return np.where(count == 0, new, average) if self.kind == "exponential" else average


def discount(num_clients: int, num_groups: int) -> float:
    """What a round counts in the next one, 1 − M/G: 0 where M clients can serve all G groups.

    So a sum over rounds is one over the last G/M, in which every group can be served once.
    """
    return max(0.0, 1 - num_clients / num_groups) if num_groups else 0.0


class InGroups(NamedTuple):
    """What a round's clients are worth in each group of examples, (m, G).

    `values` are their Shapley values in nats; `gains` what the update of each alone does to the
    loss, (before − after) / max(before, after): from −1 to 1, and 1 where it makes it vanish.
    """

    values: NDArray[np.float64]
    gains: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ServerState:
    """The checkpoint: the model (D,) after `round` rounds, its validation loss and the statistics.

    The loss is v_0 of the next round, which need not be evaluated again. `group_losses` (G,) are
    those in each group of the examples on which coalitions are evaluated.

    There is no generator state: every round's generators are derived from the seed.
    """

    round: int
    params: Vector
    stats: ClientStats
    val_loss: float
    group_losses: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class RoundRecord:
    """One line of history.jsonl: clients by id, losses in nats, accuracy in 0..1, seconds by phase.

    `shapley`, `std_error`, `cumulative`, and by group of examples (G,) `class_shapley` and
    `class_cumulative`, hold the clients that were valued in this round.
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
    class_shapley: dict[str, list[float]]
    class_cumulative: dict[str, list[float]]
    evaluations: int
    valuation_end: str
    val_loss: float
    class_losses: list[float]  # (G,)
    val_accuracy: float
    test_loss: float
    test_accuracy: float
    failures: dict[str, str]
    seconds: dict[str, float]
    bytes: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Without what is told by group, where nothing is."""
        return {k: v for k, v in self.__dict__.items() if v or not k.startswith("class_")}
