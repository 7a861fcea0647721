"""Cooperative games whose Shapley values are known in closed form."""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

Coalitions = NDArray[np.bool_]


@dataclass(frozen=True)
class Game:
    """A utility of coalitions (C, M) -> (C,), and the Shapley values (M,)."""

    utility: Callable[[Coalitions], NDArray[np.float64]]
    values: NDArray[np.float64]

    @property
    def num_players(self) -> int:
        return len(self.values)

    def __add__(self, other: "Game") -> "Game":
        return Game(lambda s: self.utility(s) + other.utility(s), self.values + other.values)


def additive(worth: list[float]) -> Game:
    """Each player is worth the same to every coalition."""
    w = np.array(worth)
    return Game(lambda s: s @ w, w)


def airport(costs: list[float]) -> Game:
    """A coalition costs what its dearest member does (Littlechild and Owen, 1973)."""
    c = np.array(costs)
    order = np.argsort(c)
    steps = np.diff(c[order], prepend=0) / np.arange(len(c), 0, -1)
    values = np.empty(len(c))
    values[order] = np.cumsum(steps)
    return Game(lambda s: (s * c).max(axis=1), values)


def glove(left: int, right: int) -> Game:
    """One left and one right glove make a pair; here with one right glove only."""
    assert right == 1
    m = left + 1
    values = np.full(m, 1 / (left * m))
    values[-1] = left / m
    return Game(lambda s: np.minimum(s[:, :-1].sum(axis=1), s[:, -1]).astype(float), values)


def unanimity(members: list[int], num_players: int) -> Game:
    """1 for the coalitions that hold all members, who share it; the others are null players."""
    values = np.zeros(num_players)
    values[members] = 1 / len(members)
    return Game(lambda s: s[:, members].all(axis=1).astype(float), values)


def random_game(num_players: int, seed: int) -> Callable[[Coalitions], NDArray[np.float64]]:
    """A utility without structure: one random number for each coalition, 0 for the empty one."""
    table = np.random.default_rng(seed).normal(size=2**num_players)
    table[0] = 0
    return lambda s: table[s @ (1 << np.arange(num_players))]


def averages(
    num_players: int, seed: int, examples: int = 20
) -> tuple[Game, NDArray[np.float64], NDArray[np.float64]]:
    """A smooth loss of weighted averages of points, as in a round; with weights and points.

    The values are summed over all coalitions, for cohorts of up to about 10.
    """
    m, rng = num_players, np.random.default_rng(seed)
    weights, points = rng.uniform(0.5, 2, m), rng.normal(size=(m, 6))
    probes, target = rng.normal(size=(20, 6))[:examples], rng.normal(size=6)

    def utility(s: Coalitions) -> NDArray[np.float64]:
        share = s * weights / np.maximum(s @ weights, 1e-300)[:, None]
        margins = (share @ points) @ probes.T * np.sign(probes @ target)
        return -np.logaddexp(0, -2 * margins).mean(axis=1)

    everything = (np.arange(2**m)[:, None] >> np.arange(m) & 1).astype(bool)
    sizes, worth = everything.sum(axis=1), utility(everything)
    chance = np.array([1 / (m * comb(m - 1, s)) for s in range(m)])
    values = np.empty(m)
    for k in range(m):
        without = np.flatnonzero(~everything[:, k])
        values[k] = chance[sizes[without]] @ (worth[without | 1 << k] - worth[without])
    return Game(utility, values), weights, points


GAMES = {
    "additive": additive([0.5, -0.25, 1.0, 0.0]),
    "airport": airport([1.0, 4.0, 2.0, 2.0, 7.0]),
    "glove": glove(3, 1),
    "unanimity": unanimity([1, 3], 5),
    "sum": airport([3.0, 1.0, 2.0, 5.0]) + additive([1.0, 2.0, -1.0, 0.5]),
    "one player": additive([0.7]),
}
