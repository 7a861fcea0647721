"""Shapley values from sampled permutations: GTG-Shapley, the paper's, and truncated Monte Carlo."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from server_app.coalitions import (
    UNLIMITED,
    Budget,
    CachedUtility,
    Ended,
    Floats,
    ShapleyEstimate,
    unchanged,
)

Permutations = NDArray[np.int64]
Stop = Literal["sound", "released"]

#: The sound rule: at least so many permutations, and then every standard error at most this share
#: of the largest value of the cohort.
MIN_PERMUTATIONS, MAX_RELATIVE_ERROR = 60, 0.1


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
    budget: Budget = UNLIMITED,
) -> ShapleyEstimate:
    """GTG-Shapley (paper, Alg. 2; Liu et al. 2022).

    A sweep is one permutation for each client k that starts with k, the rest in random order. The
    permutations of a sweep advance in lock-step, so that all their prefixes of one length are one
    batched evaluation; this equals the sequential algorithm, because convergence is tested between
    sweeps only. Ends after `permutations_per_client` sweeps, T = 50·M permutations in the paper.
    """

    v0, v_all = utility(np.array([[False] * m, [True] * m]))
    if abs(v_all - v0) < epsilon:
        return unchanged(utility, m)
    sweeps = gtg_sweeps(m, permutations_per_client, rng)
    return _sample(utility, m, sweeps, v0, v_all, epsilon, stop, budget.start())


def tmc_shapley(
    utility: CachedUtility,
    m: int,
    rng: np.random.Generator,
    *,
    epsilon: float = 1e-4,
    permutations_per_client: int = 50,
    stop: Stop = "sound",
    budget: Budget = UNLIMITED,
) -> ShapleyEstimate:
    """Truncated Monte Carlo (Ghorbani and Zou 2019, Alg. 1): uniform permutations.

    Sampled M at a time, in lock-step and with the stopping rules of `gtg_shapley`; there is no
    truncation between rounds.
    """

    v0, v_all = utility(np.array([[False] * m, [True] * m]))
    sweeps = uniform_sweeps(m, permutations_per_client, rng)
    return _sample(utility, m, sweeps, v0, v_all, epsilon, stop, budget.start())


def _sample(
    utility: CachedUtility,
    m: int,
    sweeps: Iterator[Permutations],
    v0: float,
    v_all: float,
    epsilon: float,
    stop: Stop,
    budget: Budget,
) -> ShapleyEstimate:
    """Average marginal contributions over sweeps (·, M) of permutations, until `stop` says so.

    A sweep is made whole: M (M − 1) evaluations at most, as all permutations end with everyone.
    """
    drawn: list[Floats] = []  # per sweep: marginal contributions, (permutations, M)
    empty = utility.in_groups(np.zeros((1, m), dtype=bool))  # (1, G)
    in_groups = np.zeros((m, empty.shape[1]))  # sum of marginal contributions
    ended: Ended = "cap"
    truncated = False
    for permutations in sweeps:
        rows = np.arange(len(permutations))
        marginal, v = np.empty(permutations.shape), np.full(len(permutations), v0)
        prefix = np.zeros(permutations.shape, dtype=bool)
        of_groups = np.repeat(empty, len(permutations), axis=0)  # as v, (permutations, G)
        for j in range(m):
            prefix[rows, permutations[:, j]] = True
            live = np.abs(v_all - v) >= epsilon
            truncated |= not live.all()
            after = v.copy()
            if live.any():
                after[live] = utility(prefix[live])
                more = utility.in_groups(prefix[live])
                np.add.at(in_groups, permutations[live, j], more - of_groups[live])
                of_groups[live] = more
            marginal[rows, permutations[:, j]] = after - v
            v = after
        drawn.append(marginal)
        if _converged(np.concatenate(drawn), stop):
            ended = "converged"
            break
        if not budget.allows(m * (m - 1), utility.num_evaluations):
            ended = "budget"
            break
    samples = np.concatenate(drawn)
    return ShapleyEstimate(
        samples.mean(axis=0),
        _standard_error(samples),
        len(samples),
        utility.num_evaluations,
        "within" if truncated else "none",
        ended,
        in_groups / len(samples),
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
