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
Permutations = NDArray[np.int64]
#: (C, M) coalitions -> (C,) utilities; the empty coalition is the previous global model.
Utility = Callable[[Coalitions], Floats]
Stop = Literal["sound", "released"]

#: The sound rule: at least so many permutations, and then every standard error at most this share
#: of the largest value of the cohort.
MIN_PERMUTATIONS, MAX_RELATIVE_ERROR = 60, 0.1


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


def gtg_sweeps(m: int, count: int, rng: np.random.Generator) -> Iterator[Permutations]:
    """Sweeps of GTG: (M, M), the k-th row starts with player k, the rest in random order."""
    first = np.arange(m)[:, None]
    for _ in range(count):
        rest = rng.permuted(np.tile(np.arange(m - 1), (m, 1)), axis=1)
        yield np.hstack([first, rest + (rest >= first)])


def uniform_sweeps(m: int, count: int, rng: np.random.Generator) -> Iterator[Permutations]:
    """Sweeps of M uniform permutations, (M, M)."""
    for _ in range(count):
        yield rng.permuted(np.tile(np.arange(m), (m, 1)), axis=1)


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

    v0, v_all = utility(np.array([[False] * m, [True] * m]))
    if abs(v_all - v0) < epsilon:
        zeros = np.zeros(m)
        return ShapleyEstimate(zeros, zeros, 0, utility.num_evaluations, "between", "between")
    sweeps = gtg_sweeps(m, permutations_per_client, rng)
    return _sample(utility, m, sweeps, v0, v_all, epsilon, stop)


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

    v0, v_all = utility(np.array([[False] * m, [True] * m]))
    sweeps = uniform_sweeps(m, permutations_per_client, rng)
    return _sample(utility, m, sweeps, v0, v_all, epsilon, stop)


def _sample(
    utility: CachedUtility,
    m: int,
    sweeps: Iterator[Permutations],
    v0: float,
    v_all: float,
    epsilon: float,
    stop: Stop,
) -> ShapleyEstimate:
    """Average marginal contributions over sweeps (·, M) of permutations, until `stop` says so."""
    drawn: list[Floats] = []  # per sweep: marginal contributions, (permutations, M)
    ended: Literal["converged", "cap"] = "cap"
    truncated = False
    for permutations in sweeps:
        rows = np.arange(len(permutations))
        marginal, v = np.empty(permutations.shape), np.full(len(permutations), v0)
        prefix = np.zeros(permutations.shape, dtype=bool)
        for j in range(m):
            prefix[rows, permutations[:, j]] = True
            live = np.abs(v_all - v) >= epsilon
            truncated |= not live.all()
            after = v.copy()
            if live.any():
                after[live] = utility(prefix[live])
            marginal[rows, permutations[:, j]] = after - v
            v = after
        drawn.append(marginal)
        if _converged(np.concatenate(drawn), stop):
            ended = "converged"
            break
    samples = np.concatenate(drawn)
    return ShapleyEstimate(
        samples.mean(axis=0),
        _standard_error(samples),
        len(samples),
        utility.num_evaluations,
        "within" if truncated else "none",
        ended,
    )


def _standard_error(samples: Floats) -> Floats:
    """Of the mean of marginal contributions (permutations, M), (M,).

    As for independent permutations, which is on the safe side for GTG's stratified ones.
    """
    n = len(samples)
    if n < 2:
        return np.full(samples.shape[1], np.inf)
    error: Floats = samples.std(axis=0, ddof=1) / np.sqrt(n)
    return error


def _converged(samples: Floats, stop: Stop) -> bool:
    """Whether sampling may end, given marginal contributions (permutations, M).

    `sound`: every client's standard error is at most 10 % of the largest value, after 60
    permutations; fewer can miss a rare large contribution and its variance altogether.
    `released`: as in the paper's released code, the mean value over clients has changed by less
    than 1 % on average over the last 10 permutations, after 19 of them. Efficiency holds that mean
    almost constant, so this says little of any single client.
    """
    n = len(samples)
    if stop == "released":
        running = np.cumsum(samples.mean(axis=1)) / np.arange(1, n + 1)
        change = np.abs(running[-10:] - running[-1]).mean()
        return n >= 19 and bool(change < 0.01 * abs(running[-1]))
    largest = np.abs(samples.mean(axis=0)).max()
    error = _standard_error(samples).max()
    return n >= MIN_PERMUTATIONS and bool(error <= MAX_RELATIVE_ERROR * largest)


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
