"""The table of valuations: what a configuration names, and `auto`."""

from functools import partial

import numpy as np

from common.config import ValuationConfig
from server_app.coalitions import (
    NOT_VALUED,
    UNLIMITED,
    Budget,
    CachedUtility,
    Coalitions,
    Floats,
    ShapleyEstimate,
    Utility,
    UtilityError,
    Valuation,
    exact_shapley,
    unchanged,
)
from server_app.kriging import kriging_shapley
from server_app.permutations import gtg_shapley, gtg_sweeps, tmc_shapley

__all__ = [
    "NOT_VALUED",
    "Budget",
    "CachedUtility",
    "Coalitions",
    "Floats",
    "ShapleyEstimate",
    "Utility",
    "UtilityError",
    "Valuation",
    "auto_shapley",
    "exact_shapley",
    "gtg_shapley",
    "gtg_sweeps",
    "kriging_shapley",
    "tmc_shapley",
    "valuation_from",
]

#: `auto` evaluates all coalitions where they are no more than these, M ≤ 7: about what the
#: estimators need for good values of a cohort a little larger.
MAX_EXACT = 127


def auto_shapley(
    utility: CachedUtility,
    m: int,
    rng: np.random.Generator,
    *,
    epsilon: float = 1e-4,
    budget: Budget = UNLIMITED,
) -> ShapleyEstimate:
    """Zeros where the round changed less than ε (paper, Alg. 2); else exact, or else kriging.

    Exact where all 2^M − 1 coalitions are within the budget of evaluations, or without one within
    `MAX_EXACT`.
    """
    v0, v_all = utility(np.array([[False] * m, [True] * m]))
    if abs(v_all - v0) < epsilon:
        return unchanged(utility, m)
    everything = utility.num_evaluations + 2**m - 2  # without those two
    if everything <= budget.evaluations or (not budget.evaluations and 2**m - 1 <= MAX_EXACT):
        return exact_shapley(utility, m, rng)
    return kriging_shapley(utility, m, rng, budget=budget)


def valuation_from(config: ValuationConfig, valued: bool) -> Valuation | None:
    """The valuation that the configuration names.

    Under `auto` it is `auto_shapley`, or none for an algorithm that is not `valued`. `released` is
    a rule of GTG's, so with it `auto` is GTG.
    """
    name = config.valuation
    if name == "none" or (name == "auto" and not valued):
        return None
    if name == "auto" and config.valuation_stop == "released":
        name = "gtg"
    if name == "exact":
        return exact_shapley
    budget = Budget(config.valuation_max_evaluations, config.valuation_max_seconds)
    if name == "kriging":
        return partial(kriging_shapley, budget=budget)
    if name == "auto":
        return partial(auto_shapley, epsilon=config.valuation_epsilon, budget=budget)
    return partial(
        gtg_shapley if name == "gtg" else tmc_shapley,
        epsilon=config.valuation_epsilon,
        permutations_per_client=config.valuation_permutations_per_client,
        stop=config.valuation_stop,
        budget=budget,
    )
