"""FedAvg with a selection policy and a valuation, as a Flower Strategy; GreedyFed is one of them.

The strategy counts rounds by its own state, not by Flower's `server_round`, which starts at 1 again
when a run is resumed.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from common.errors import RunFailedError
from common.params import Vector
from common.seeding import Stream, rng_for
from common.wire import NO_ANSWER, ClientInfo, ClientUpdate, encode_params, params_record
from server_app.aggregation import aggregate
from server_app.paced_grid import PacedGrid
from server_app.registry import ClientRegistry
from server_app.round import Round
from server_app.selection import (
    Floats,
    Greedy,
    Indices,
    RoundRobinFirst,
    SelectionPolicy,
    SelectionView,
)
from server_app.server_model import ServerModel
from server_app.state import Cumulative, RoundRecord, ServerState
from server_app.valuation import UtilityError, Valuation, auto_shapley

log = logging.getLogger("greedyfed")
#: Times that clients are asked in one round: the cohort, and others in place of who failed.
MAX_ATTEMPTS = 3


class RoundError(RunFailedError):
    """A round from which nothing was learned."""


class SelectiveFedAvg(Strategy):
    """Select a cohort, average its updates by n_k, value them, update the clients' statistics.

    Args:
        model: the model and the server's validation and test splits.
        policy: which clients take part in a round.
        valuation: values of a round's updates; None when nobody needs them.
        state: where to start from; the model's initial state, or one that was saved.
        seed: seed of selection and valuation.
        clients_per_round: cohort size M.
        cumulative: how a round's values enter the cumulative ones.
        deadline: seconds to wait for replies, each time that clients are asked.
        quorum: usable updates that a round needs; 0: clients_per_round as far as clients are left
            to ask in place of those who failed, at most twice a round, and at least 1.
        spare_clients: clients asked beyond clients_per_round; the round goes on when
            clients_per_round have answered.
        max_examples: refuse updates that claim more examples; 0: no limit.
        on_round: called with each round's record and the state after it.
        on_event: called when clients are asked, answer, are accepted or fail, and when a connected
            node is refused: what `greedyfed status` shows of a round under way.
    """

    def __init__(
        self,
        *,
        model: ServerModel,
        policy: SelectionPolicy,
        valuation: Valuation | None,
        state: ServerState | None = None,
        seed: int = 0,
        clients_per_round: int = 3,
        cumulative: Cumulative | None = None,
        deadline: float = 600.0,
        quorum: int = 0,
        spare_clients: int = 0,
        max_examples: int = 0,
        on_round: Callable[[RoundRecord, ServerState], None] = lambda record, state: None,
        on_event: Callable[[dict[str, Any]], None] = lambda event: None,
    ) -> None:
        self.state = state or model.initial_state()
        self._model, self._policy, self._valuation = model, policy, valuation
        self._seed, self._num_select = seed, clients_per_round
        self._cumulative = cumulative or Cumulative()
        self._deadline, self._max_examples = deadline, max_examples
        self._quorum, self._spare = quorum, spare_clients
        self._on_round, self._on_event = on_round, on_event
        self._registry = ClientRegistry(model.task)
        self._now = Round(self.state.round)
        self._requests: list[Message] = []
        self._sent_at = 0.0

    @property
    def clients(self) -> dict[str, ClientInfo]:
        """What the clients said of themselves, by client id."""
        return self._registry.infos

    def run(self, grid: Grid, num_rounds: int) -> ServerState:
        """Run rounds state.round + 1 … num_rounds; returns the state after the last one.

        Raises:
            RoundError: a round without a usable update; `state` holds what was learned before it.
        """
        if self.state.round < num_rounds:
            self._grid = PacedGrid(grid, self._enough, self._on_reply)
            self.start(
                self._grid,
                params_record(self.state.params),
                num_rounds=num_rounds - self.state.round,
                timeout=self._deadline,
                evaluate_fn=self.finish_round,
            )
        return self.state

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select the cohort of the next round and ask it to train.

        Raises:
            RoundError: no client is connected, or Flower's `start` was called in place of `run`,
                which alone records rounds.
        """
        if not isinstance(grid, PacedGrid):
            raise RoundError(
                "start: this strategy is started by run(grid, num_rounds), without which its "
                "rounds would not count; call that"
            )
        now = self._now = Round(self.state.round + 1, traffic=self._grid.traffic.copy())
        self._content = encode_params(self.state.params, now.number, self._model.task)
        with now.phase("select"):
            new, refused = self._registry.refresh(grid, now.number, self._deadline)
            for node, why in refused.items():
                self._event("refused", node=node, why=why)
            if not self._registry.nodes:
                raise RoundError(
                    f"round {now.number}: no connected client says who it is"
                    f"{self._registry.why_not}; mend the clients, then continue with resume = true"
                )
            stats = self.state.stats.with_clients({i.client_id: i.num_examples for i in new})
            self.state = replace(self.state, stats=stats)
            self._requests = self._select(self._num_select + self._spare)
        self._sent_at = time.perf_counter()
        return self._requests

    def _select(self, wanted: int) -> list[Message]:
        """Ask `wanted` more clients of those who were not asked in this round, if there are."""
        now, stats, nodes = self._now, self.state.stats, self._registry.nodes
        free = self._free()
        view = SelectionView(
            round=now.number,
            num_select=wanted,
            stats=stats,
            available=stats.ready(free, now.number, wanted),
            taken=np.array([stats.index(c) for c in now.cohort if c not in now.failures], np.int64),
            local_losses=self._local_losses,
            group_shares=self._model.group_shares,
        )
        rng = rng_for(self._seed, Stream.SELECT, now.number, *([now.attempts] * (now.attempts > 0)))
        cohort = [stats.client_ids[k] for k in self._policy.select(view, rng)]
        now.cohort += cohort
        now.attempts += 1
        if cohort:
            self._event("asked", clients=cohort)
        ttl = self._deadline  # a client that comes back later need not train for nothing
        return [Message(self._content, nodes[c], MessageType.TRAIN, ttl=ttl) for c in cohort]

    def _free(self) -> NDArray[np.bool_]:
        """Which clients are connected, and were not asked in this round (N,)."""
        nodes, asked = self._registry.nodes, self._now.cohort
        ids = self.state.stats.client_ids
        return np.array([c in nodes and c not in asked for c in ids], dtype=bool)

    def _local_losses(self, clients: Indices) -> Floats:
        """The global model's loss at each client (k,), in nats; −inf where there is no answer."""
        ids = [self.state.stats.client_ids[k] for k in clients]
        losses = self._registry.local_losses(self._grid, ids, self._content, self._deadline)
        return np.array(losses)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord | None]:
        """Decode the replies, ask others in place of those who failed, and aggregate.

        Raises:
            RoundError: fewer usable updates than the quorum.
        """
        now = self._now
        updates = self._with_others(self._decode(self._requests, replies))
        now.seconds["clients"] = time.perf_counter() - self._sent_at
        return params_record(self.aggregate_fit(now.number, updates)), None

    @property
    def _enough(self) -> int | None:
        """Trained models that end the wait for the cohort; None: it is waited for all."""
        return self._num_select if self._spare else None

    @property
    def _wanted(self) -> int:
        """Usable updates for which others are asked."""
        return self._quorum or self._num_select

    def _with_others(self, updates: list[ClientUpdate]) -> list[ClientUpdate]:
        """The updates, and those of clients asked in place of the ones that are missing."""
        while len(updates) < self._wanted and self._now.attempts < MAX_ATTEMPTS:
            requests = self._select(self._wanted - len(updates))
            if not requests:
                break
            replies = self._grid.send_and_receive(requests, timeout=self._deadline)
            updates = updates + self._decode(requests, replies)
        return updates

    def _decode(self, requests: list[Message], replies: Iterable[Message]) -> list[ClientUpdate]:
        """The usable updates among the replies; the others go into the round's failures.

        Whoever is silent when enough have answered has not failed: nobody waited for it.
        """
        replies = list(replies)
        updates, failures = self._registry.updates(
            requests, replies, self._model.spec.size, self._max_examples
        )
        if self._enough and sum(not r.has_error() for r in replies) >= self._enough:
            failures = {c: why for c, why in failures.items() if why != NO_ANSWER}
        for update in updates:
            self._event("accepted", client=update.client_id, noise_sigma=update.noise_sigma)
        self._fail(failures)
        return updates

    def _fail(self, failures: dict[str, str]) -> None:
        """Clients whose updates are not used in this round, and why."""
        self._now.failures |= failures
        for client_id, why in failures.items():
            self._event("failed", client=client_id, why=why)

    def _on_reply(self, request: Message, reply: Message) -> None:
        self._event("answered", client=self._registry.client_at(request.metadata.dst_node_id))

    def _event(self, event: str, **about: Any) -> None:
        self._on_event({"round": self._now.number, "event": event} | about)

    def aggregate_fit(self, server_round: int, updates: list[ClientUpdate]) -> Vector:
        """The new global model (D,) from the usable updates of a round (paper, Alg. 1, 6-13).

        Averages, values the updates, and takes the values into the clients' statistics. The updates
        are put in the order of their clients, so that floating-point sums do not depend on the
        order of arrival. A client whose own model has no finite validation loss is left out, and
        another asked in its place.

        Raises:
            RoundError: fewer usable updates than the quorum, or an average without a finite
                validation loss.
        """
        now = self._now
        stats = self.state.stats.with_clients({u.client_id: u.num_examples for u in updates})
        if len(updates) < max(self._quorum, 1):
            self._give_up(len(updates))
        updates = sorted(updates, key=lambda u: stats.index(u.client_id))
        try:
            rng = rng_for(self._seed, Stream.VALUE, server_round)
            result = aggregate(self._model, self.state, updates, self._valuation, rng, now)
        except UtilityError as error:
            finite = [u for u in updates if np.isfinite(self._model.val_loss(u.params))]
            if len(finite) == len(updates):
                raise RoundError(f"round {server_round}: {error}; lower learning-rate") from error
            reason = "the validation loss of its model is not finite"
            left_out = [u.client_id for u in updates if u not in finite]
            self._fail(dict.fromkeys(left_out, reason))
            with now.phase("clients"):
                finite = self._with_others(finite)
            return self.aggregate_fit(server_round, finite)
        if len(updates) < self._wanted and now.attempts == MAX_ATTEMPTS and self._free().any():
            log.warning(
                "round %d: %d of %d updates: others are asked at most twice a round",
                server_round,
                len(updates),
                self._wanted,
            )
        now.estimate, valued = result.estimate, result.estimate.values if self._valuation else None
        now.valued = [u.client_id for u in updates] if self._valuation else []
        marginal = zip(now.valued, result.leave_one_out.tolist(), strict=False)
        now.leave_one_out = {client: u for client, u in marginal if np.isfinite(u)}
        now.gain = self.state.val_loss - result.val.loss
        succeeded = np.array([stats.index(u.client_id) for u in updates], np.int64)
        failed = np.array([stats.index(c) for c in now.failures], np.int64)
        stats = stats.with_round(
            server_round, succeeded, failed, valued, self._cumulative, result.in_groups
        )
        val_loss, by_group = result.val.loss, result.group_losses
        now.after = ServerState(server_round, result.params, stats, val_loss, by_group)
        now.val_accuracy = result.val.accuracy
        return result.params

    def _give_up(self, usable: int) -> NoReturn:
        """Stop the run; its failures count all the same, so that the next try asks others."""
        now, stats = self._now, self.state.stats
        failed = np.array([stats.index(c) for c in now.failures], np.int64)
        none = np.zeros(0, np.int64)
        stats = stats.with_round(now.number, none, failed, None, self._cumulative)
        self.state = replace(self.state, stats=stats)
        raise RoundError(
            f"round {now.number}: {usable or 'none'} of the {len(now.cohort)} clients asked "
            f"returned a usable update, {max(self._quorum, 1)} needed ({now.reasons}); mend the "
            "clients, then continue with resume = true; if all fail alike, look at learning-rate, "
            "noise-sigma and max-examples"
        )

    def finish_round(self, server_round: int, arrays: ArrayRecord) -> None:
        """Flower's `evaluate_fn`: evaluate, record the round, make its state the current one."""
        now, state = self._now, self._now.after
        if state is None:
            return  # Flower also asks before the first round
        with now.phase("evaluate"):
            test = self._model.test(state.params)
        self.state = state
        self._on_round(now.record(state, test, self._grid.traffic), state)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """None: the server evaluates on its own data."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Nothing to aggregate."""

    def summary(self) -> None:
        """Nothing to log: the rounds speak."""


class GreedyFed(SelectiveFedAvg):
    """GreedyFed (paper, Alg. 1): every client once, then the M largest cumulative values.

    Takes the arguments of `SelectiveFedAvg`; by default values are exact for cohorts of at most 7
    and kriging's for larger ones, as by name (`valuation = "auto"`). The paper's is `gtg_shapley`.
    """

    def __init__(
        self,
        *,
        policy: SelectionPolicy = RoundRobinFirst(Greedy()),  # noqa: B008  frozen
        valuation: Valuation | None = auto_shapley,
        **parts: Any,
    ) -> None:
        super().__init__(policy=policy, valuation=valuation, **parts)
