"""The table of algorithms: name -> strategy, selection policy, and whether clients are valued."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any

from common.config import RunConfig, SelectionConfig
from server_app.coverage import GreedyByGroup
from server_app.selection import (
    UCB,
    First,
    Greedy,
    PowerOfChoice,
    RoundRobinFirst,
    SelectionPolicy,
    SFedAvg,
    Uniform,
)
from server_app.state import Cumulative
from server_app.strategy import GreedyFed, SelectiveFedAvg
from server_app.valuation import valuation_from


@dataclass(frozen=True)
class Algorithm:
    """One row: how clients are selected and valued.

    Attributes:
        policy: the selection policy of a configuration.
        valued: whether `valuation = "auto"` values clients; how, says `valuation_from`.
        cumulative: how values accumulate, as the configuration says unless the method fixes it.
        strategy: GreedyFed for the one, SelectiveFedAvg for all others.
        cohort: the cohort size; 0: clients-per-round.
    """

    policy: Callable[[SelectionConfig], SelectionPolicy]
    valued: bool = False
    cumulative: Callable[[SelectionConfig], Cumulative] = lambda c: Cumulative(
        c.cumulative, c.cumulative_alpha
    )
    strategy: type[SelectiveFedAvg] = SelectiveFedAvg
    cohort: int = 0


#: FedProx differs from FedAvg in the clients' objective, and centralised training in their data:
#: both by the configuration that the server sends (common/config.py), and in nothing here.
ALGORITHMS = {
    "greedyfed": Algorithm(lambda c: RoundRobinFirst(Greedy()), valued=True, strategy=GreedyFed),
    "greedyfed-classes": Algorithm(lambda c: RoundRobinFirst(GreedyByGroup()), valued=True),
    "ucb": Algorithm(lambda c: RoundRobinFirst(UCB(c.ucb_beta)), valued=True),
    "sfedavg": Algorithm(
        lambda c: SFedAvg(c.sfedavg_alpha),
        valued=True,
        cumulative=lambda c: Cumulative("exponential-from-zero", c.sfedavg_alpha),
    ),
    "fedavg": Algorithm(lambda c: Uniform()),
    "fedprox": Algorithm(lambda c: Uniform()),
    "power-of-choice": Algorithm(lambda c: PowerOfChoice(c.poc_decay, c.poc_candidates)),
    "centralised": Algorithm(lambda c: First(), cohort=1),
}


def is_valued(config: RunConfig) -> bool:
    """Whether clients get values in a run of this configuration."""
    row = ALGORITHMS[config.selection.algorithm]
    return valuation_from(config.valuation, row.valued) is not None


def never_by_value(config: RunConfig, num_clients: int) -> str | None:
    """The line that warns of a run too short to select by value; None for others.

    Where every round asks all clients, nothing is to be selected, and nothing said.
    """
    selection, rounds = config.selection, config.num_rounds
    policy = ALGORITHMS[selection.algorithm].policy(selection)
    asked = selection.clients_per_round + config.spare_clients
    first = ceil(num_clients / asked)  # those that fail, or are spare, make it last longer
    if not isinstance(policy, RoundRobinFirst) or asked >= num_clients or rounds > first:
        return None
    left = first * asked - num_clients if rounds == first else 0
    but = f" but for {left} of the {asked} places of the last" if left else ""
    return (
        f"num-rounds = {rounds}: with {num_clients} clients and {asked} a round, the first {first} "
        f"rounds take every client once, so that no round selects by value{but}; set num-rounds "
        f"above {first}"
    )


def build_strategy(config: RunConfig, **parts: Any) -> SelectiveFedAvg:
    """The strategy of a configuration; `parts` are the further arguments of SelectiveFedAvg."""
    row, selection = ALGORITHMS[config.selection.algorithm], config.selection
    return row.strategy(
        policy=row.policy(selection),
        valuation=valuation_from(config.valuation, row.valued),
        seed=config.seed,
        clients_per_round=row.cohort or selection.clients_per_round,
        cumulative=row.cumulative(selection),
        deadline=config.round_deadline,
        quorum=config.quorum,
        spare_clients=config.spare_clients,
        max_examples=config.max_examples,
        **parts,
    )
