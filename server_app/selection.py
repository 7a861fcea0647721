"""Client selection: policies without state that choose the cohort of a round."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from server_app.state import ClientStats

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]


def _nobody_asked(clients: Indices) -> Floats:
    raise NotImplementedError("this view cannot ask clients for their losses")


@dataclass(frozen=True)
class SelectionView:
    """What a policy may look at. N is the number of clients known, not all of them available."""

    round: int
    num_select: int
    stats: ClientStats
    available: NDArray[np.bool_]  # (N,)
    #: Asks clients (k,) for the global model's loss on their data (k,); −inf without an answer.
    local_losses: Callable[[Indices], Floats] = _nobody_asked
    #: The share of each group in the validation examples, (G,); sums to 1.
    group_shares: Floats = field(default_factory=lambda: np.zeros(0))
    #: Who takes part in the round already, where others are chosen in place of who failed.
    taken: Indices = field(default_factory=lambda: np.zeros(0, np.int64))

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
class UCB:
    """The M largest SV_k + β √(ln t / N_k), N_k the times that k was valued (Pandey et al. 2023).

    Clients never valued come first.
    """

    beta: float

    def select(self, view: SelectionView, rng: np.random.Generator) -> Indices:
        shuffled = rng.permutation(view.candidates)
        count = view.stats.count[shuffled]
        explore = self.beta * np.sqrt(np.log(view.round) / np.maximum(count, 1))
        bonus = np.where(count == 0, np.inf, explore)
        order = np.argsort(-(view.stats.value[shuffled] + bonus), kind="stable")
        return shuffled[order][: view.num_select]


@dataclass(frozen=True)
class SFedAvg:
    """M draws without replacement with probabilities softmax(φ) (Nagalapatti, Narayanam 2021).

    φ_k starts at 1/N, and each valuation makes it α φ_k + (1 − α) SV_k. So after N_k of them it is
    α^N_k / N more than an exponential average that starts from zero, which is what the statistics
    hold (`Cumulative("exponential-from-zero", α)`).
    """

    alpha: float

    def select(self, view: SelectionView, rng: np.random.Generator) -> Indices:
        value, count = view.stats.value, view.stats.count
        phi = (value + self.alpha**count / len(value))[view.candidates]
        # The largest φ + Gumbel noise are draws without replacement from the softmax.
        order = np.argsort(-(phi + rng.gumbel(size=len(phi))), kind="stable")
        return view.candidates[order][: view.num_select]


@dataclass(frozen=True)
class PowerOfChoice:
    """The M of d candidates on whose data the global model has the largest loss (Cho et al. 2020).

    d starts at N and shrinks each round to ⌈decay · d⌉, at least M (the paper's setting).
    Candidates are drawn without replacement with probability n_k / n, or uniformly. The paper's
    released code picks clients by the ranks of others' losses, which is close to random selection.
    """

    decay: float = 0.9
    candidates: Literal["size", "uniform"] = "size"

    def num_candidates(self, server_round: int, num_clients: int, num_select: int) -> int:
        """d in a round."""
        d = num_clients
        for _ in range(server_round - 1):
            smaller = max(num_select, int(np.ceil(self.decay * d)))
            if smaller == d:
                break
            d = smaller
        return d

    def select(self, view: SelectionView, rng: np.random.Generator) -> Indices:
        free, n_k = view.candidates, view.stats.num_examples
        d = self.num_candidates(view.round, len(n_k), view.num_select)
        if len(free) == 0:
            return free
        share = n_k[free] / n_k[free].sum() if self.candidates == "size" else None
        asked = rng.choice(free, size=min(d, len(free)), replace=False, p=share)
        order = np.argsort(-view.local_losses(asked), kind="stable")
        return asked[order][: view.num_select]


@dataclass(frozen=True)
class First:
    """The first client, who has the pooled data of a centralised run."""

    def select(self, view: SelectionView, rng: np.random.Generator) -> Indices:
        return view.candidates[: view.num_select]


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
        rest = replace(
            view,
            num_select=missing,
            available=view.available & ~new,
            taken=np.concatenate([view.taken, chosen]),
        )
        return np.concatenate([chosen, self.inner.select(rest, rng)])
