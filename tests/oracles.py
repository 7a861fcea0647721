"""Slow, obvious versions of what the project computes fast."""

from collections.abc import Callable, Iterable
from itertools import permutations

import numpy as np

Utility = Callable[[np.ndarray], np.ndarray]


def _worth(utility: Utility, members: Iterable[int], m: int) -> float:
    row = np.zeros((1, m), dtype=bool)
    row[0, list(members)] = True
    return float(utility(row)[0])


def shapley_by_permutations(utility: Utility, m: int) -> np.ndarray:
    """Mean marginal contribution over all M! orders: the definition of the Shapley value."""
    values, count = np.zeros(m), 0
    for order in permutations(range(m)):
        count += 1
        for j, player in enumerate(order):
            values[player] += _worth(utility, order[: j + 1], m) - _worth(utility, order[:j], m)
    return values / count


def gtg_sequential(
    utility: Utility, m: int, sweeps: Iterable[np.ndarray], epsilon: float
) -> tuple[np.ndarray, int]:
    """Alg. 2 line by line, without memory: one permutation after the other.

    Returns the values (M,) and the number of utility evaluations.
    """
    evaluations = 2
    v0, v_all = _worth(utility, [], m), _worth(utility, range(m), m)
    values = np.zeros(m)
    if abs(v_all - v0) < epsilon:
        return values, evaluations
    tau = 0
    for sweep in sweeps:
        for order in sweep:
            tau += 1
            v = v0
            for j in range(m):
                if abs(v_all - v) < epsilon:
                    after = v
                else:
                    after = _worth(utility, order[: j + 1], m)
                    evaluations += 1
                k = order[j]
                values[k] = (tau - 1) / tau * values[k] + (after - v) / tau
                v = after
    return values, evaluations
