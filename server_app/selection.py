"""Client selection: policies without state that choose the cohort of a round."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from server_app.state import ClientStats

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class SelectionView:
    """What a policy may look at. N is the number of clients known, not all of them available."""

    round: int
    num_select: int
    stats: ClientStats
    available: NDArray[np.bool_]  # (N,)

    @property
    def candidates(self) -> Indices:
        """Indices of the available clients."""
        return np.flatnonzero(self.available)


class SelectionPolicy(Protocol):
    """Chooses min(num_select, available) distinct, available client indices."""

    def select(self, view: SelectionView, rng: np.random.Generator) -> Indices: ...


@dataclass(frozen=True)
class Uniform:
    """FedAvg's selection (McMahan et al. 2017): uniform without replacement."""

    def select(self, view: SelectionView, rng: np.random.Generator) -> Indices:
        return rng.permutation(view.candidates)[: view.num_select]


@dataclass(frozen=True)
class Greedy:
    """The M largest cumulative values (paper, Alg. 1, line 5); ties in random order."""

    def select(self, view: SelectionView, rng: np.random.Generator) -> Indices:
        shuffled = rng.permutation(view.candidates)
        order = np.argsort(-view.stats.value[shuffled], kind="stable")
        return shuffled[order][: view.num_select]


@dataclass(frozen=True)
class RoundRobinFirst:
    """Available clients never valued, in random order; `inner` once there are none.

    Paper, Alg. 1, lines 2-3. Asking "never valued" in place of counting rounds survives drop-outs,
    late joiners and N mod M ≠ 0. The last round of the round robin is filled up by `inner`.
    """

    inner: SelectionPolicy

    def select(self, view: SelectionView, rng: np.random.Generator) -> Indices:
        new = view.available & (view.stats.count == 0)
        chosen = rng.permutation(np.flatnonzero(new))[: view.num_select]
        missing = view.num_select - len(chosen)
        if missing == 0:
            return chosen
        rest = SelectionView(view.round, missing, view.stats, view.available & ~new)
        return np.concatenate([chosen, self.inner.select(rest, rng)])
