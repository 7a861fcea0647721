"""Shapley values of a Gaussian process that was fitted to some coalitions' utilities.

The utility of a coalition is a smooth function of the average of its members, so what a few
coalitions are worth says much of the others that average to something close by. The process is
fitted to the coalitions evaluated (universal kriging), and the values are the Shapley values of its
mean: Bayesian quadrature (O'Hagan 1991) of the Shapley sum. The design and the sum by coalition
size follow stratified samplers (Kolpaczki et al. 2024, SVARM). Given the coalitions and the kernel,
the values are linear in the utilities.

So they can be the sum of those of two games. Where the utility has a part, a game on few of the
examples, most coalitions are evaluated in that only, and the first ones in both: a second process
is fitted to the difference of the games, which is small and smooth (multifidelity Monte Carlo,
Peherstorfer et al. 2018; co-kriging, Kennedy, O'Hagan 2000).
"""

from functools import lru_cache
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from server_app.coalitions import (
    UNLIMITED,
    Budget,
    CachedUtility,
    Coalitions,
    Ended,
    Floats,
    ShapleyEstimate,
    exact_shapley,
)

#: Sampling ends when every standard error is at most this share of the largest value, after at
#: least this many coalitions a player, which the fit needs to see its own errors.
MAX_RELATIVE_ERROR, MIN_PER_PLAYER = 0.04, 4
#: The most coalitions a player: the fit costs their third power.
MAX_PER_PLAYER = 20
#: Candidates for the kernel's length, in root mean square distances of the players from their
#: centre, and for the share of the utility that no smooth function explains.
LENGTHS, ROUGHNESS = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8), (1e-6, 1e-4, 1e-2, 1.0)
#: Prior variance of the trend, against 1 for the process: large enough to leave it free.
_FREE = 1e4


class Nodes(NamedTuple):
    """Coalitions (R, M) and weights (R, M): φ_k = (v_M − v_0) / M + Σ_r weights[r, k] U(r)."""

    coalitions: Coalitions
    weights: Floats


@lru_cache(maxsize=8)
def shapley_nodes(m: int, whole: int, sampled: int) -> Nodes:
    """The Shapley value as a weighted sum of utilities, size by size.

    φ_k − (v_M − v_0) / M is the mean over sizes s = 1..M−1, taken 1/M each, of the mean utility of
    the coalitions of s with k less that of those without. Sizes with at most `whole` coalitions are
    complete; of the others `sampled` are drawn, and a linear fit within the size takes the place
    of the difference of means, which it equals where the size is complete.
    """
    rng = np.random.default_rng(m)  # nodes of a quadrature rule, the same in each round
    coalitions, weights = [], []
    for size in range(1, m):
        if comb(m, size) <= whole:
            members = np.array(list(combinations(range(m), size)))
        else:
            members = np.argsort(rng.random((sampled, m)), axis=1)[:, :size]
        rows = np.zeros((len(members), m), dtype=bool)
        np.put_along_axis(rows, members, True, axis=1)
        effects = np.linalg.pinv(rows - rows.mean(axis=0), rcond=1e-9)  # (M, rows)
        coalitions.append(rows)
        weights.append((effects - effects.mean(axis=0)).T / (m - 1))
    return Nodes(np.vstack(coalitions), np.vstack(weights))


class Geometry:
    """Where coalitions lie: the weighted averages of their players."""

    def __init__(self, utility: CachedUtility, m: int) -> None:
        self._weights = np.ones(m) if utility.weights is None else utility.weights
        points = np.eye(m) if utility.points is None else np.asarray(utility.points, np.float64)
        points = points - points.mean(axis=0)
        squares, axes = np.linalg.eigh(points @ points.T)
        scale = squares.sum() / (m - 1) or 1.0
        self._points: Floats = axes * np.sqrt(np.maximum(squares, 0) / scale)

    def kernels(self, a: Coalitions, b: Coalitions) -> tuple[Floats, Floats, Floats]:
        """Of coalitions (A, M) and (B, M), each (A, B): trend, squared distance, and equality.

        The trend is linear in the players' shares of the average and in 1/|S|.
        """
        shares = [rows * self._weights for rows in (a, b)]
        x, y = (share / share.sum(axis=1, keepdims=True) for share in shares)
        sizes = a.sum(axis=1), b.sum(axis=1)
        p, q = x @ self._points, y @ self._points
        trend = _FREE * (x @ y.T + np.outer(1 / sizes[0], 1 / sizes[1]))
        squared = (p * p).sum(axis=1)[:, None] + (q * q).sum(axis=1) - 2 * p @ q.T
        common = a.astype(np.float64) @ b.T
        same = (common == sizes[0][:, None]) & (common == sizes[1])
        return trend, np.maximum(squared, 0), same.astype(np.float64)


class Process:
    """A Gaussian process fitted to utilities (n,) of coalitions (n, M), by restricted likelihood.

    Its kernel is trend + exp(−d² / 2ℓ²) + roughness for equal coalitions.
    """

    _factor: Floats
    _residual: Floats

    def __init__(self, geometry: Geometry, rows: Coalitions, utilities: Floats) -> None:
        self._geometry, self._rows = geometry, rows
        parts = geometry.kernels(rows, rows)
        centred, free = utilities - utilities.mean(), max(1, len(rows) - rows.shape[1] - 1)
        best = float("-inf")
        for length in LENGTHS:
            for rough in ROUGHNESS:
                factor, residual = _factorised(_kernel(parts, length, rough), centred, rough)
                square = max(float(residual @ residual), 1e-300)
                likelihood = -free / 2 * np.log(square) - float(np.log(np.diag(factor)).sum())
                if likelihood > best:
                    best, self._at = likelihood, (length, rough)
                    self._factor, self._residual = factor, residual
                    # Of Student's process, which the unknown variance makes of a Gaussian one.
                    self._variance = square / max(1, free - 2)

    def _effects(self, nodes: Nodes) -> Floats:
        kernel = _kernel(self._geometry.kernels(self._rows, nodes.coalitions), *self._at)
        return np.asarray(np.linalg.solve(self._factor, kernel @ nodes.weights), np.float64)

    def sums(self, nodes: Nodes) -> Floats:
        """The weighted sums of utilities, (M,)."""
        sums: Floats = self._effects(nodes).T @ self._residual
        return sums

    def sums_of_all(self, nodes: Nodes, in_groups: Floats) -> tuple[Floats, Floats]:
        """`sums`, and those of other utilities (n, G) by the same linear map, (M, G)."""
        effects, centred = self._effects(nodes).T, in_groups - in_groups.mean(axis=0)
        others = np.linalg.solve(self._factor, centred)
        return effects @ self._residual, effects @ others

    def std_error(self, nodes: Nodes) -> Floats:
        """Posterior standard deviations of `sums`, (M,)."""
        each = self._geometry.kernels(nodes.coalitions, nodes.coalitions)
        prior = (nodes.weights * (_kernel(each, *self._at) @ nodes.weights)).sum(axis=0)
        known = (self._effects(nodes) ** 2).sum(axis=0)
        error: Floats = np.sqrt(self._variance * np.maximum(prior - known, 0))
        return error


def _kernel(parts: tuple[Floats, Floats, Floats], length: float, rough: float) -> Floats:
    trend, squared, same = parts
    kernel: Floats = trend + np.exp(squared / (-2 * length**2)) + rough * same
    return kernel


def _factorised(kernel: Floats, y: Floats, least: float) -> tuple[Floats, Floats]:
    """The Cholesky factor L of a kernel whose eigenvalues are at least `least`, and L⁻¹ y.

    L⁻¹ y is the last row of the factor of the kernel that is bordered by y, which spares a solution
    by a general solver, of twice the cost.
    """
    n = len(y)
    bordered = np.empty((n + 1, n + 1))
    bordered[:n, :n], bordered[n, :n], bordered[:n, n] = kernel, y, y
    bordered[n, n] = 2 * float(y @ y) / least + 1  # more than y K⁻¹ y
    factor = np.asarray(np.linalg.cholesky(bordered), np.float64)
    return factor[:n, :n], factor[n, :n]


def first_design(m: int) -> Coalitions:
    """Each player alone, everyone but one, and everyone: (2M + 1, M)."""
    alone = np.eye(m, dtype=bool)
    return np.vstack([alone, ~alone, np.ones((1, m), dtype=bool)])


def more_coalitions(rows: Coalitions, count: int, rng: np.random.Generator) -> Coalitions:
    """`rows` with up to `count` new coalitions, sizes s in 2..M−2 with chances as s^−1.5.

    Small averages differ most, and d_s, the effect of a player on coalitions of s, falls as 1/s.
    """
    m = rows.shape[1]
    sizes = np.arange(2, m - 1)
    chances = np.cumsum(sizes**-1.5)
    seen = {row.tobytes() for row in rows}
    new: list[Coalitions] = []
    for _ in range(20):
        spread = (np.arange(count) + rng.random(count)) / count  # each size in its proportion
        drawn = sizes[np.searchsorted(chances / chances[-1], spread)]
        order = rng.permuted(np.tile(np.arange(m), (count, 1)), axis=1)
        for row in rng.permutation(order < drawn[:, None]):
            if len(new) < count and row.tobytes() not in seen:
                seen.add(row.tobytes())
                new.append(row)
    return np.vstack([rows, *new])


def kriging_shapley(
    utility: CachedUtility, m: int, rng: np.random.Generator, *, budget: Budget = UNLIMITED
) -> ShapleyEstimate:
    """Values of a Gaussian process over averages, sampled until its error bars are small.

    Starts with `MIN_PER_PLAYER`·M coalitions, all of them where there are no more than these, and
    adds a quarter of those it has at a time. Those beyond the first 2·M + 1 are evaluated in the
    utility's part where it has one. The values sum to v_M − v_0 exactly.
    """
    budget, everything = budget.start(), 2**m - 1
    if everything <= MIN_PER_PLAYER * m:
        return exact_shapley(utility, m, rng)
    empty, everyone = utility(np.array([[False] * m, [True] * m]))
    geometry, rough_nodes = Geometry(utility, m), shapley_nodes(m, 200, 60)
    rows, some = first_design(m), utility.part or utility
    rest = Process(geometry, rows, utility(rows) - some(rows))  # 0 where that is all
    known = (everyone - empty) / m + rest.sums(rough_nodes)
    rows = more_coalitions(rows, MIN_PER_PLAYER * m - len(rows), rng)
    ended: Ended = "cap"
    while True:
        process = Process(geometry, rows, some(rows))
        error = np.hypot(process.std_error(rough_nodes), rest.std_error(rough_nodes))
        largest = np.abs(known + process.sums(rough_nodes)).max()
        if error.max() <= MAX_RELATIVE_ERROR * largest:
            ended = "converged"
            break
        more = min(len(rows) // 4, MAX_PER_PLAYER * m - len(rows))
        if more == 0:
            break
        if not budget.allows(more, utility.num_evaluations):
            ended = "budget"
            break
        if len(rows) + more >= everything:
            return exact_shapley(utility, m, rng)
        rows = more_coalitions(rows, more, rng)
    nodes, first = shapley_nodes(m, 1500, 600), first_design(m)
    of_part, in_groups = process.sums_of_all(nodes, some.in_groups(rows))
    of_rest, rest_in_groups = rest.sums_of_all(
        nodes, utility.in_groups(first) - some.in_groups(first)
    )
    values = (everyone - empty) / m + of_part + of_rest
    ends = utility.in_groups(np.array([[False] * m, [True] * m]))
    group_values = (ends[1] - ends[0]) / m + in_groups + rest_in_groups
    spent = utility.num_evaluations
    return ShapleyEstimate(values, error, 0, spent, "none", ended, group_values)
