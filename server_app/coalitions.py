"""What a valuation works with: coalitions, a cached utility, budgets, and the estimate it returns.

A valuation sees neither models nor data. Players are 0..M−1, a coalition is a row of M booleans.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, comb
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from common.errors import GreedyfedError

Floats = NDArray[np.float64]
Coalitions = NDArray[np.bool_]
#: (C, M) coalitions -> (C,) utilities; the empty coalition is the previous global model. Or
#: (C, 1 + G): the utilities, and those in each of G groups of examples.
Utility = Callable[[Coalitions], Floats]
Ended = Literal["exact", "between", "converged", "cap", "budget", "none"]


class UtilityError(GreedyfedError):
    """A coalition has no usable utility."""


@dataclass(frozen=True)
class ShapleyEstimate:
    """Values (M,) and their standard errors (M,), with what they cost and why sampling ended.

    `std_error` does not cover the bias of truncation, which is below ε per client. `ended` is
    `exact`, `between` (the round was truncated), `converged`, `cap` (the permutations or coalitions
    ran out), `budget` (the evaluations or seconds did) or `none` (nothing was valued).

    `group_values` (M, G) are the values in the games of G groups of examples, from the same
    coalitions: a value is the sum of these, weighted by the groups' shares.
    """

    values: Floats
    std_error: Floats
    num_permutations: int
    num_evaluations: int
    truncated: Literal["none", "between", "within"]
    ended: Ended
    group_values: Floats = field(default_factory=lambda: np.zeros((0, 0)))


#: The values of a round in which nobody asked for any.
NOT_VALUED = ShapleyEstimate(np.zeros(0), np.zeros(0), 0, 0, "none", "none")

#: (utility, M, generator) -> estimate
Valuation = Callable[["CachedUtility", int, np.random.Generator], ShapleyEstimate]


@dataclass(frozen=True)
class Budget:
    """What a valuation may spend, 0: no limit; its first pass is made whatever it costs."""

    evaluations: int = 0
    seconds: float = 0.0
    _started: float = field(default_factory=time.monotonic)

    def start(self) -> "Budget":
        """The same budget, its seconds counted from now."""
        return Budget(self.evaluations, self.seconds)

    def allows(self, more: int, spent: int) -> bool:
        """Whether `more` evaluations may follow the `spent` ones."""
        if self.seconds and time.monotonic() - self._started >= self.seconds:
            return False
        return not self.evaluations or spent + more <= self.evaluations


#: No limits.
UNLIMITED = Budget()


class CachedUtility:
    """A utility that evaluates each coalition once, in whatever order its members are named.

    Coalitions not seen before are evaluated together, in one call.

    Args:
        utility: the utility to be called.
        empty: utility of the empty coalition where it is known already (last round's v_M), or
            (1 + G,) with those in each group.
        weights: (M,), what each player counts in a coalition's average; None: all the same.
        points: (M, D), what is averaged, so that coalitions with close averages have close
            utilities; None: the players are equally far from one another.
        part: nearly the same game at a fraction of the cost; None: there is none.
        cost: of an evaluation; 1 where this is no part of another game.
    """

    def __init__(
        self,
        utility: Utility,
        empty: float | Floats | None = None,
        weights: Floats | None = None,
        points: NDArray[Any] | None = None,
        part: "CachedUtility | None" = None,
        cost: float = 1.0,
    ) -> None:
        self._utility = utility
        self.weights, self.points, self.part = weights, points, part
        self._cost, self._count = cost, 0
        self._empty = None if empty is None else np.atleast_1d(empty)
        self._known: dict[bytes, Floats] = {}  # (1 + G,)

    @property
    def num_evaluations(self) -> int:
        """Coalitions evaluated so far; those of the part count by their cost, rounded up."""
        return ceil(self._cost * self._count) + (self.part.num_evaluations if self.part else 0)

    def __call__(self, coalitions: Coalitions) -> Floats:
        """Utilities (C,) of coalitions (C, M).

        Raises:
            UtilityError: when a utility is NaN or infinite, naming the coalition.
        """
        return np.array([self._known[key][0] for key in self._evaluated(coalitions)])

    def in_groups(self, coalitions: Coalitions) -> Floats:
        """Utilities (C, G) of coalitions (C, M) in each group of examples.

        Raises:
            UtilityError: as a call.
        """
        return np.stack([self._known[key][1:] for key in self._evaluated(coalitions)])

    def _evaluated(self, coalitions: Coalitions) -> list[bytes]:
        """The keys of coalitions (C, M), now known."""
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
            self._count += len(new)
            for (key, index), value in zip(new.items(), values, strict=True):
                row = np.atleast_1d(value)
                if not np.isfinite(row[0]):
                    members = np.flatnonzero(coalitions[index]).tolist()
                    raise UtilityError(f"the utility of the coalition {members} is {row[0]}")
                self._known[key] = row
        return keys

    def known(self, coalitions: Coalitions) -> Floats:
        """Utilities (C,) of coalitions (C, M) as far as they were evaluated, else NaN; free."""
        keys = [row.tobytes() for row in np.packbits(coalitions, axis=1)]
        return np.array([self._known[key][0] if key in self._known else np.nan for key in keys])


def unchanged(utility: CachedUtility, m: int) -> ShapleyEstimate:
    """The zeros (M,) of a round that changed the loss by less than ε (paper, Alg. 2)."""
    zeros, spent = np.zeros(m), utility.num_evaluations
    in_groups = np.zeros((m, utility.in_groups(np.zeros((1, m), dtype=bool)).shape[1]))
    return ShapleyEstimate(zeros, zeros, 0, spent, "between", "between", in_groups)


def exact_shapley(utility: CachedUtility, m: int, rng: np.random.Generator) -> ShapleyEstimate:
    """The exact value from all 2^M coalitions (paper, "Shapley-Value for Client Valuation")."""
    masks = np.arange(2**m)
    coalitions = (masks[:, None] >> np.arange(m) & 1).astype(bool)
    u, in_groups = utility(coalitions), utility.in_groups(coalitions)
    size = coalitions.sum(axis=1)
    weight = np.array([1 / (m * comb(m - 1, s)) for s in range(m)])
    values, group_values = np.empty(m), np.empty((m, in_groups.shape[1]))
    for k in range(m):
        without = masks[~coalitions[:, k]]
        share, joined = weight[size[without]], without | (1 << k)
        values[k] = share @ (u[joined] - u[without])
        group_values[k] = share @ (in_groups[joined] - in_groups[without])
    spent = utility.num_evaluations
    return ShapleyEstimate(values, np.zeros(m), 0, spent, "none", "exact", group_values)
