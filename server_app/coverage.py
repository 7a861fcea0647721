"""A cohort chosen together: of the clients that serve what is lacking, the most valuable ones.

Server data fall into groups, by default the classes. What a client's update alone gains in each of
them tells the mix of its data; the present losses tell which groups the model lacks. A cohort that
leaves a group without anyone has it forgotten, however large its members' values are.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server_app.selection import Indices, SelectionView

Floats = NDArray[np.float64]
#: Sum of gains over groups, in shares of their losses, below which a client serves next to nobody.
LITTLE = 0.1
#: The share of a group that counts as nobody serving it. It bounds what leaving one out may cost.
NOBODY = 0.01
#: How much less than the best the logarithm of the welfare may be: 10 % of welfare.
SLACK = 0.1


def shares_served(gains: Floats) -> Floats:
    """The mix of groups that each client serves, (N, G), from what its updates gained in them.

    Rows sum to less than 1, and to about 0 for a client that has gained next to nothing anywhere:
    it serves nobody, whatever its data are.
    """
    positive = np.maximum(gains, 0)
    shares: Floats = positive / (positive.sum(axis=1, keepdims=True) + LITTLE)
    return shares


def welfare(served: Floats, weights: Floats, num_select: int) -> Floats:
    """Σ_g w_g log(ε + served_g / M), (…,), of the sums of shares served by cohorts (…, G).

    The logarithm of a weighted geometric mean: Nash welfare, the groups being the parties. It is
    monotone and submodular in the cohort.
    """
    result: Floats = np.log(NOBODY + served / num_select) @ weights
    return result


@dataclass(frozen=True)
class GreedyByGroup:
    """One after another, the client of the largest cumulative value among those who cover well.

    A client covers well if the welfare of the cohort with it is within `slack` of the largest that
    a client gives; groups are weighted by their share in the present loss. With one group everyone
    covers it, and this is `Greedy`. Ties in random order, as there.
    """

    slack: float = SLACK

    def select(self, view: SelectionView, rng: np.random.Generator) -> Indices:
        shuffled = rng.permutation(view.candidates)
        value, weights = view.stats.value[shuffled], view.group_weights
        shares = shares_served(view.stats.group_gain[shuffled])
        if len(weights) < 2:
            shares, weights = np.zeros((len(shuffled), 1)), np.ones(1)
        chosen, served = list[int](), np.zeros(len(weights))
        free = np.ones(len(shuffled), dtype=bool)
        for _ in range(min(view.num_select, len(shuffled))):
            covered = np.where(free, welfare(served + shares, weights, view.num_select), -np.inf)
            well = covered >= covered.max() - self.slack
            best = int(np.argmax(np.where(well, value, -np.inf)))
            chosen.append(best)
            free[best] = False
            served = served + shares[best]
        return shuffled[chosen]
