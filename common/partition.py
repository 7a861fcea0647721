"""How a public data set is split over simulated clients: power-law sizes × Dirichlet labels.

Source: paper, section "Experiments", Data Heterogeneity; sizes as in Cho et al. (2020).
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from common.errors import GreedyfedError

Scheme = Literal["dirichlet", "dirichlet-float32", "iid"]
MAX_DRAWS = 100


class PartitionError(GreedyfedError):
    """The examples cannot be split as asked."""


def power_law_fractions(num_clients: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Shares q_k of the data, (N,), summing to 1: density 3x² on (0, 1), by its inverse CDF."""
    q: NDArray[np.float64] = rng.random(num_clients) ** (1 / 3)
    q /= q.sum()
    return q


def _log_gamma_samples(
    alpha: float, shape: tuple[int, int], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Logarithms of Gamma(alpha, 1) samples, exact where the samples themselves underflow.

    Gamma(α) = Gamma(α + 1) · U^(1/α) (Marsaglia and Tsang, 2000).
    """
    # 1 − random() lies in (0, 1], so that its logarithm is finite.
    log_u: NDArray[np.float64] = np.log(1 - rng.random(shape))
    return np.log(rng.gamma(alpha + 1, size=shape)) + log_u / alpha


def dirichlet_labels(
    alpha: float, num_clients: int, num_classes: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Label proportions p_k ~ Dirichlet(α), (N, K); rows sum to 1 for any α > 0.

    Normalised in log space: at α = 1e-4 the gamma samples underflow and naive samplers return
    zeros or NaN.
    """
    log_g = _log_gamma_samples(alpha, (num_clients, num_classes), rng)
    g: NDArray[np.float64] = np.exp(log_g - log_g.max(axis=1, keepdims=True))
    g /= g.sum(axis=1, keepdims=True)
    return g


def dirichlet_float32_labels(
    alpha: float, num_clients: int, num_classes: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Label proportions as the paper's released code draws them, (N, K).

    That code calls torch's float32 Dirichlet sampler, which raises each gamma sample to the
    smallest normal double before it normalises. At α = 1e-4 a sample underflows with probability
    0.93, so that about half of the rows are exactly uniform and half have one class. At α ≥ 1e-3
    it agrees with `dirichlet_labels`. It is not Dirichlet(1e-4) and must not be called so.
    """
    log_g = _log_gamma_samples(alpha, (num_clients, num_classes), rng)
    g = np.exp(np.maximum(log_g, np.log(np.finfo(np.float64).tiny)))
    p = (g / g.sum(axis=1, keepdims=True)).astype(np.float32)
    bounds = np.finfo(np.float32)
    clipped: NDArray[np.float64] = np.clip(p, bounds.tiny, 1 - bounds.epsneg).astype(np.float64)
    return clipped


def _draw_counts(
    class_counts: NDArray[np.int64],
    num_clients: int,
    scheme: Scheme,
    alpha: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Examples of each label for each client, (N, K), for one draw of sizes and labels."""
    q = power_law_fractions(num_clients, rng)
    if scheme == "iid":
        # Sizes only; the labels follow from a random assignment of all examples.
        return np.floor(q[:, None] * np.float64(class_counts.sum())).astype(np.int64)
    labels = dirichlet_labels if scheme == "dirichlet" else dirichlet_float32_labels
    p = labels(alpha, num_clients, len(class_counts), rng)
    demand = q @ p  # (K,), the share of the total that each label must supply
    with np.errstate(divide="ignore", over="ignore"):
        total = np.min(class_counts / demand)  # the largest total that exhausts no label
    sizes = np.floor(total * q)
    with np.errstate(invalid="ignore"):  # an α that underflows gives no counts, which is refused
        counts = np.floor(sizes[:, None] * p).astype(np.int64)
    # Rounding in `demand` may ask for one example too many of the label that binds.
    excess = np.maximum(counts.sum(axis=0) - class_counts, 0)
    counts[counts.argmax(axis=0), np.arange(len(class_counts))] -= excess
    return counts


def partition(
    labels: NDArray[np.int64],
    num_clients: int,
    *,
    scheme: Scheme,
    alpha: float,
    min_examples: int,
    rng: np.random.Generator,
) -> list[NDArray[np.int64]]:
    """Indices of the examples of each client: N disjoint arrays, sorted.

    Sizes and labels are redrawn until every client has more than `min_examples`.

    Args:
        labels: (n,), the class of each example.
        alpha: Dirichlet concentration; ignored by `iid`.

    Raises:
        PartitionError: when the examples cannot suffice, or `MAX_DRAWS` draws did not.
    """
    classes, class_counts = np.unique(labels, return_counts=True)
    needed = num_clients * (min_examples + 1)
    remedy = "lower min-examples-per-client or num-clients, or raise dirichlet-alpha"
    if needed > len(labels):
        raise PartitionError(
            f"num-clients = {num_clients}: more than min-examples-per-client = {min_examples} "
            f"examples for each needs {needed}, the data set has {len(labels)}; {remedy}"
        )
    best = -1
    for _ in range(MAX_DRAWS):
        counts = _draw_counts(class_counts, num_clients, scheme, alpha, rng)
        smallest = int(counts.sum(axis=1).min())
        best = max(best, smallest)
        if smallest > min_examples:
            break
    else:
        raise PartitionError(
            f"num-clients = {num_clients}, dirichlet-alpha = {alpha:g}: none of {MAX_DRAWS} draws "
            f"gave every client more than min-examples-per-client = {min_examples} examples "
            f"(the best left one with {best}); {remedy}"
        )
    groups = (
        [np.arange(len(labels))]
        if scheme == "iid"
        else [np.flatnonzero(labels == c) for c in classes]
    )
    chosen, owners = [], []
    for group, wanted in zip(groups, counts.T, strict=True):
        chosen.append(rng.permutation(group)[: wanted.sum()])
        owners.append(np.repeat(np.arange(num_clients), wanted))
    indices, owner = np.concatenate(chosen), np.concatenate(owners)
    indices = indices[np.lexsort((indices, owner))]
    return np.split(indices, np.cumsum(counts.sum(axis=1))[:-1])
