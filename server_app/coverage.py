"""A cohort chosen together: of the clients that serve who was left out, the most valuable ones.

Server data fall into groups, by default the classes. What a client's update alone gains in each of
them tells the mix of its data, and what it loses there how soon a group is forgotten that nobody
serves. A model that is trained on few groups at a time has to see all of them in turn, however
large the values of some clients are.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server_app.selection import Greedy, Indices, SelectionView
from server_app.state import discount

Floats = NDArray[np.float64]
#: Sum of gains over groups, in shares of their losses, below which a client serves next to nobody.
LITTLE = 0.1
#: The share of a group that counts as nobody serving it. It bounds what leaving one out may cost.
NOBODY = 0.01
#: How much welfare, at stake in the rounds that are remembered, may be given up for value.
SLACK = 0.05


def shares_served(gains: Floats) -> Floats:
    """The mix of groups that each client serves, (N, G), from what its updates gained in them.

    In proportion to the squares: a group that gains a little as it is like another is not served.
    Rows sum to less than 1, and to about 0 for a client that has gained next to nothing anywhere:
    it serves nobody, whatever its data are.
    """
    positive = np.maximum(gains, 0)
    total, squares = positive.sum(axis=1, keepdims=True), positive**2
    mix = squares / np.maximum(squares.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    shares: Floats = mix * total / (total + LITTLE)
    return shares


def welfare(served: Floats, weights: Floats, size: int) -> Floats:
    """Σ_g w_g log(ε + served_g / M), (…,), of the sums of shares served by cohorts of M (…, G).

    The logarithm of a weighted geometric mean: Nash welfare, the groups being the parties. It is
    monotone and submodular in the cohort.
    """
    result: Floats = np.log(NOBODY + served / size) @ weights
    return result


@dataclass(frozen=True)
class GreedyByGroup:
    """One after another, the client of the largest cumulative value among those who cover well.

    A client covers well if the welfare of the groups, served by the cohort with it and by the last
    rounds as far as they are remembered, is nearly the largest that a client gives: what is missing
    to it, times what an update alone harms a group on average, is within `slack` of as many rounds
    as are remembered. So the less clients harm, the more their values decide. With one group this
    is `Greedy`. Ties in random order, as there.
    """

    slack: float = SLACK

    def select(self, view: SelectionView, rng: np.random.Generator) -> Indices:
        stats, weights = view.stats, view.group_shares
        if len(weights) < 2 or not view.available.any():
            return Greedy().select(view, rng)
        sizes = stats.num_examples[:, None]  # as they weigh in the average
        shares = shares_served(stats.group_gain) * (sizes / sizes.mean())
        served = stats.recent @ shares + shares[view.taken].sum(axis=0)
        size = len(view.taken) + view.num_select
        shuffled = rng.permutation(view.candidates)
        value, shares = stats.value[shuffled], shares[shuffled]
        harm = np.maximum(-stats.group_gain[shuffled], 0).mean(axis=0) @ weights
        slack = self.slack * (1 - discount(size, len(weights)))
        chosen, free = list[int](), np.ones(len(shuffled), dtype=bool)
        for _ in range(min(view.num_select, len(shuffled))):
            covered = welfare(served + shares, weights, size)
            well = np.flatnonzero(free & (harm * (covered[free].max() - covered) <= slack))
            best = int(well[np.argmax(value[well])])
            chosen.append(best)
            free[best] = False
            served = served + shares[best]
        return shuffled[chosen]
