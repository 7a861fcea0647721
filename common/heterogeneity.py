"""Simulated system and privacy heterogeneity as functions of (seed, client).

Source: paper, section "Experiments", Systems Heterogeneity and Privacy Heterogeneity.
"""

import numpy as np
from numpy.typing import NDArray

from common.seeding import Stream, rng_for


def local_epochs(seed: int, num_clients: int, epochs: int, fraction: float) -> NDArray[np.int64]:
    """Local epochs E_k of every client, (N,).

    round(fraction · N) clients are stragglers for the whole run; a straggler's E_k is uniform in
    1..E and fixed for the run, the others do E epochs.
    """
    rng = rng_for(seed, Stream.STRAGGLER)
    stragglers = rng.permutation(num_clients)[: round(fraction * num_clients)]
    result = np.full(num_clients, epochs, dtype=np.int64)
    result[stragglers] = rng.integers(1, epochs + 1, size=len(stragglers))
    return result


def noise_levels(seed: int, num_clients: int, sigma: float) -> NDArray[np.float64]:
    """Standard deviation σ_k of the noise that each client adds to its parameters, (N,).

    σ_k = (k − 1) σ / N for the k-th client of a random permutation: one client has none.
    """
    rank = rng_for(seed, Stream.NOISE_LEVEL).permutation(num_clients)
    levels: NDArray[np.float64] = rank * np.float64(sigma / num_clients)
    return levels
