"""The round that is under way, until it becomes a record."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from common.evaluation import Evaluation
from server_app.state import RoundRecord, ServerState
from server_app.valuation import NOT_VALUED, ShapleyEstimate


@dataclass
class Round:
    """What is known of a round so far: who was asked, who failed and why, values, time."""

    number: int
    traffic: Counter[str] = field(default_factory=Counter)  # bytes of the run before it
    cohort: list[str] = field(default_factory=list)  # everyone asked
    attempts: int = 0  # times that clients were asked
    failures: dict[str, str] = field(default_factory=dict)
    valued: list[str] = field(default_factory=list)  # the clients of `estimate`, in its order
    estimate: ShapleyEstimate = NOT_VALUED
    leave_one_out: dict[str, float] = field(default_factory=dict)  # of `valued`, where known
    gain: float = 0.0  # nats by which the validation loss fell
    after: ServerState | None = None  # the state once the round has been evaluated
    val_accuracy: float = 0.0  # of its model
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase."""
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    @property
    def reasons(self) -> str:
        """Why clients failed, each reason once."""
        who: dict[str, list[str]] = {}
        for client, why in self.failures.items():
            who.setdefault(why, []).append(client)
        return "; ".join(f"{', '.join(clients)}: {why}" for why, clients in who.items())

    def _by_group(self, state: ServerState) -> dict[str, Any]:
        """What is told by group; nothing where the valuation tells none apart.

        Of each client (G,), to a millionth of a nat: they are most of a line.
        """
        now = self.estimate.group_values
        if not now.size:
            return {"class_shapley": {}, "class_cumulative": {}, "class_losses": []}
        total = state.stats.group_value[[state.stats.index(c) for c in self.valued]]
        return {
            "class_shapley": dict(zip(self.valued, now.round(6).tolist(), strict=True)),
            "class_cumulative": dict(zip(self.valued, total.round(6).tolist(), strict=True)),
            "class_losses": state.group_losses.round(6).tolist(),
        }

    def record(
        self, state: ServerState, test: Evaluation, traffic: Mapping[str, int]
    ) -> RoundRecord:
        """The line of history.jsonl.

        Args:
            state: the state after the round.
            test: its test metrics.
            traffic: bytes of the run so far, by direction.
        """
        value_of = dict(zip(state.stats.client_ids, state.stats.value.tolist(), strict=True))
        return RoundRecord(
            round=self.number,
            cohort=self.cohort,
            shapley=dict(zip(self.valued, self.estimate.values.tolist(), strict=True)),
            std_error=dict(zip(self.valued, self.estimate.std_error.tolist(), strict=True)),
            cumulative={c: value_of[c] for c in self.valued},
            leave_one_out=self.leave_one_out,
            gain=self.gain,
            **self._by_group(state),
            evaluations=self.estimate.num_evaluations,
            valuation_end=self.estimate.ended,
            val_loss=state.val_loss,
            val_accuracy=self.val_accuracy,
            test_loss=test.loss,
            test_accuracy=test.accuracy,
            failures=self.failures,
            seconds={phase: round(seconds, 6) for phase, seconds in self.seconds.items()},
            bytes={way: count - self.traffic[way] for way, count in traffic.items()},
        )
