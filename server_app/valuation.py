"""Shapley values of the clients of a round, from a utility of coalitions.

A valuation sees neither models nor data. Players are 0..M−1, a coalition is a row of M booleans.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import comb
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from common.config import ValuationConfig
from common.errors import GreedyfedError

Floats = NDArray[np.float64]
Coalitions = NDArray[np.bool_]
#: (C, M) coalitions -> (C,) utilities; the empty coalition is the previous global model.
Utility = Callable[[Coalitions], Floats]
Stop = Literal["sound", "released"]

#: The sound rule: at least so many sweeps, and then every standard error at most this share of the
#: largest value of the cohort.
MIN_SWEEPS, MAX_RELATIVE_ERROR = 5, 0.1


class UtilityError(GreedyfedError):
    """A coalition has no usable utility."""


@dataclass(frozen=True)
class ShapleyEstimate:
    """Values (M,) and their standard errors (M,), with what they cost and why sampling ended.

    `std_error` does not cover the bias of truncation, which is below ε per client. `ended` is
    `exact`, `between` (the round was truncated), `converged`, `cap` (the permutations ran out) or
    `none` (nothing was valued).
    """

    values: Floats
    std_error: Floats
    num_permutations: int
    num_evaluations: int
    truncated: Literal["none", "between", "within"]
    ended: Literal["exact", "between", "converged", "cap", "none"]


#: The values of a round in which nobody asked for any.
NOT_VALUED = ShapleyEstimate(np.zeros(0), np.zeros(0), 0, 0, "none", "none")

#: (utility, M, generator) -> estimate
Valuation = Callable[["CachedUtility", int, np.random.Generator], ShapleyEstimate]


class CachedUtility:
    """A utility that evaluates each coalition once, in whatever order its members are named.

    Coalitions not seen before are evaluated together, in one call.

    Args:
        utility: the utility to be called.
        empty: utility of the empty coalition where it is known already (last round's v_M).
    """

    def __init__(self, utility: Utility, empty: float | None = None) -> None:
        self._utility = utility
        self._empty = empty
        self._known: dict[bytes, float] = {}
        self.num_evaluations = 0

    def __call__(self, coalitions: Coalitions) -> Floats:
        """Utilities (C,) of coalitions (C, M).

        Raises:
            UtilityError: when a utility is NaN or infinite, naming the coalition.
        """
        keys = [row.tobytes() for row in np.packbits(coalitions, axis=1)]
        new = {}
        for index, key in enumerate(keys):
            if key not in self._known and key not in new:
                if self._empty is not None and not coalitions[index].any():
                    self._known[key] = self._empty
                else:
                    new[key] = index
        if new:
            values = self._utility(coalitions[list(new.values())])
            self.num_evaluations += len(new)
            for (key, index), value in zip(new.items(), values, strict=True):
                if not np.isfinite(value):
                    members = np.flatnonzero(coalitions[index]).tolist()
                    raise UtilityError(f"the utility of the coalition {members} is {value}")
                self._known[key] = float(value)
        return np.array([self._known[key] for key in keys])


def exact_shapley(utility: CachedUtility, m: int, rng: np.random.Generator) -> ShapleyEstimate:
    """The exact value from all 2^M coalitions (paper, "Shapley-Value for Client Valuation")."""
    masks = np.arange(2**m)
    coalitions = (masks[:, None] >> np.arange(m) & 1).astype(bool)
    u = utility(coalitions)
    size = coalitions.sum(axis=1)
    weight = np.array([1 / (m * comb(m - 1, s)) for s in range(m)])
    values = np.empty(m)
    for k in range(m):
        without = masks[~coalitions[:, k]]
        values[k] = weight[size[without]] @ (u[without | (1 << k)] - u[without])
    return ShapleyEstimate(values, np.zeros(m), 0, utility.num_evaluations, "none", "exact")


def gtg_shapley(
    utility: CachedUtility,
    m: int,
    rng: np.random.Generator,
    *,
    epsilon: float = 1e-4,
    permutations_per_client: int = 50,
    stop: Stop = "sound",
) -> ShapleyEstimate:
    """GTG-Shapley (paper, Alg. 2; Liu et al. 2022).

    A sweep is one permutation for each client k that starts with k, the rest in random order. The
    permutations of a sweep advance in lock-step, so that all their prefixes of one length are one
    batched evaluation; this equals the sequential algorithm, because convergence is tested between
    sweeps only. Ends after `permutations_per_client` sweeps, T = 50·M permutations in the paper.
    """

    def sweeps() -> Iterator[NDArray[np.int64]]:
        for _ in range(permutations_per_client):
            rest = rng.permuted(np.tile(np.arange(m - 1), (m, 1)), axis=1)
            first = np.arange(m)[:, None]
            yield np.hstack([first, rest + (rest >= first)])

    v0, v_all = utility(np.array([[False] * m, [True] * m]))
    if abs(v_all - v0) < epsilon:
        zeros = np.zeros(m)
        return ShapleyEstimate(zeros, zeros, 0, utility.num_evaluations, "between", "between")
    return _sample(utility, m, sweeps(), v0, v_all, epsilon, stop)


def tmc_shapley(
    utility: CachedUtility,
    m: int,
    rng: np.random.Generator,
    *,
    epsilon: float = 1e-4,
    permutations_per_client: int = 50,
    stop: Stop = "sound",
) -> ShapleyEstimate:
    """Truncated Monte Carlo (Ghorbani and Zou 2019, Alg. 1): uniform permutations.

    Sampled M at a time, in lock-step and with the stopping rules of `gtg_shapley`; there is no
    truncation between rounds.
    """

    def sweeps() -> Iterator[NDArray[np.int64]]:
        for _ in range(permutations_per_client):
            yield rng.permuted(np.tile(np.arange(m), (m, 1)), axis=1)

    v0, v_all = utility(np.array([[False] * m, [True] * m]))
    return _sample(utility, m, sweeps(), v0, v_all, epsilon, stop)


def _sample(
    utility: CachedUtility,
    m: int,
    sweeps: Iterator[NDArray[np.int64]],
    v0: float,
    v_all: float,
    epsilon: float,
    stop: Stop,
) -> ShapleyEstimate:
    """Average marginal contributions over sweeps (·, M) of permutations, until `stop` says so."""
    sums: list[Floats] = []  # per sweep: mean marginal contribution of each player, (M,)
    gains: list[float] = []  # per permutation: last utility minus v0
    truncated = False
    for permutations in sweeps:
        total, v = np.zeros(m), np.full(len(permutations), v0)
        prefix = np.zeros((len(permutations), m), dtype=bool)
        rows = np.arange(len(permutations))
        for j in range(m):
            prefix[rows, permutations[:, j]] = True
            live = np.abs(v_all - v) >= epsilon
            truncated |= not live.all()
            after = v.copy()
            if live.any():
                after[live] = utility(prefix[live])
            np.add.at(total, permutations[:, j], after - v)
            v = after
        sums.append(total / len(permutations))
        gains.extend(v - v0)
        if _converged(np.array(sums), np.array(gains), stop):
            ended: Literal["converged", "cap"] = "converged"
            break
    else:
        ended = "cap"
    means = np.array(sums)
    error = (
        means.std(axis=0, ddof=1) / np.sqrt(len(means)) if len(means) > 1 else np.full(m, np.inf)
    )
    return ShapleyEstimate(
        means.mean(axis=0),
        error,
        len(gains),
        utility.num_evaluations,
        "within" if truncated else "none",
        ended,
    )


def _converged(sweeps: Floats, gains: Floats, stop: Stop) -> bool:
    """Whether sampling may end.

    Args:
        sweeps: (S, M), the mean marginal contributions of each sweep.
        gains: (permutations,), the sum of each permutation's marginal contributions.

    `sound`: every client's standard error is at most 10 % of the largest value, after 5 sweeps.
    `released`: as in the paper's released code, the mean value over clients has changed by less
    than 1 % on average over the last 10 permutations, after 19 of them. Efficiency holds that mean
    almost constant, so this says little of any single client.
    """
    if stop == "released":
        running = np.cumsum(gains) / np.arange(1, len(gains) + 1)
        if len(gains) < 19:
            return False
        change = np.abs(running[-10:] - running[-1]).mean()
        return bool(change < 0.01 * abs(running[-1]))
    if len(sweeps) < MIN_SWEEPS:
        return False
    error = sweeps.std(axis=0, ddof=1) / np.sqrt(len(sweeps))
    return bool(error.max() <= MAX_RELATIVE_ERROR * np.abs(sweeps.mean(axis=0)).max())


def valuation_from(config: ValuationConfig, default: str) -> Valuation | None:
    """The valuation that the configuration names; `default` is the algorithm's own for `auto`."""
    name = default if config.valuation == "auto" else config.valuation
    if name == "none":
        return None
    if name == "exact":
        return exact_shapley
    return partial(
        gtg_shapley if name == "gtg" else tmc_shapley,
        epsilon=config.valuation_epsilon,
        permutations_per_client=config.valuation_permutations_per_client,
        stop=config.valuation_stop,
    )
