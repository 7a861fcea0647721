"""The table of algorithms: name -> strategy, selection policy and default valuation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common.config import RunConfig, SelectionConfig
from server_app.selection import Greedy, RoundRobinFirst, SelectionPolicy, Uniform
from server_app.state import Cumulative
from server_app.strategy import GreedyFed, SelectiveFedAvg
from server_app.valuation import valuation_from


@dataclass(frozen=True)
class Algorithm:
    """One row; `valuation` is what `valuation = "auto"` means."""

    strategy: type[SelectiveFedAvg]
    policy: Callable[[SelectionConfig], SelectionPolicy]
    valuation: str


ALGORITHMS = {
    "greedyfed": Algorithm(GreedyFed, lambda c: RoundRobinFirst(Greedy()), "gtg"),
    "fedavg": Algorithm(SelectiveFedAvg, lambda c: Uniform(), "none"),
}


def build_strategy(config: RunConfig, **parts: Any) -> SelectiveFedAvg:
    """The strategy of a configuration; `parts` are the further arguments of SelectiveFedAvg."""
    row, selection = ALGORITHMS[config.selection.algorithm], config.selection
    return row.strategy(
        policy=row.policy(selection),
        valuation=valuation_from(config.valuation, row.valuation),
        seed=config.seed,
        clients_per_round=selection.clients_per_round,
        cumulative=Cumulative(selection.cumulative, selection.cumulative_alpha),
        deadline=config.round_deadline,
        quorum=config.quorum,
        spare_clients=config.spare_clients,
        max_examples=config.max_examples,
        **parts,
    )
