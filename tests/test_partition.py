"""The partitioner: invariants over all its inputs, and the two schemes' distributions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.partition import (
    PartitionError,
    dirichlet_float32_labels,
    dirichlet_labels,
    partition,
    power_law_fractions,
)

LABELS = np.random.default_rng(0).integers(0, 10, size=60_000)


def split(n, *, scheme="dirichlet", alpha=0.5, min_examples=0, seed=0, labels=LABELS):
    return partition(
        labels,
        n,
        scheme=scheme,
        alpha=alpha,
        min_examples=min_examples,
        rng=np.random.default_rng(seed),
    )


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 400),
    log_alpha=st.floats(-6, 6),
    scheme=st.sampled_from(["dirichlet", "dirichlet-float32", "iid"]),
    min_examples=st.integers(0, 40),
    seed=st.integers(0, 2**31),
)
def test_invariants(n, log_alpha, scheme, min_examples, seed):
    options = {"scheme": scheme, "alpha": 10**log_alpha, "min_examples": min_examples, "seed": seed}
    try:
        parts = split(n, **options)
    except PartitionError:
        return
    assert len(parts) == n
    everything = np.concatenate(parts)
    assert len(np.unique(everything)) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < len(LABELS)
    assert min(map(len, parts)) > min_examples
    again = split(n, **options)
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    log_alpha=st.floats(-6, 6),
    n=st.integers(1, 50),
    k=st.integers(2, 100),
    seed=st.integers(0, 2**31),
)
@pytest.mark.parametrize("labels", [dirichlet_labels, dirichlet_float32_labels])
def test_rows_are_distributions_for_any_concentration(labels, log_alpha, n, k, seed):
    p = labels(10**log_alpha, n, k, np.random.default_rng(seed))
    assert p.shape == (n, k)
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-5)


def test_ten_thousand_clients():
    labels = np.arange(3_000_000) % 10
    parts = split(10_000, alpha=1e6, labels=labels)
    assert len(parts) == 10_000
    assert min(map(len, parts)) >= 1


def test_labels_follow_the_concentration():
    """Dirichlet(α) proportions have variance p(1 − p)/(Kα + 1) with p = 1/K."""
    for alpha in (0.1, 1.0, 100.0):
        p = dirichlet_labels(alpha, 20_000, 10, np.random.default_rng(0))
        np.testing.assert_allclose(p.mean(axis=0), 0.1, atol=0.01)
        assert p.var() == pytest.approx(0.09 / (10 * alpha + 1), rel=0.05)


def one_class_and_uniform(p):
    return (p.max(axis=1) > 0.999).mean(), (p.max(axis=1) < 0.1001).mean()


def test_a_correct_sampler_gives_one_class_clients_at_1e_4():
    p = dirichlet_labels(1e-4, 20_000, 10, np.random.default_rng(0))
    one_class, uniform = one_class_and_uniform(p)
    assert one_class == pytest.approx(0.994, abs=0.005)
    assert uniform == 0


def test_the_released_draw_gives_half_of_the_clients_iid_data():
    """Against torch's sampler, which the released code calls; 49.4 % and 49.8 % there."""
    p = dirichlet_float32_labels(1e-4, 20_000, 10, np.random.default_rng(0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        released = torch.distributions.Dirichlet(torch.full((10,), 1e-4)).sample((20_000,)).numpy()
    ours, theirs = one_class_and_uniform(p), one_class_and_uniform(released)
    assert ours == pytest.approx(theirs, abs=0.02)
    assert ours == pytest.approx((0.498, 0.494), abs=0.02)


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 100.0])
def test_the_schemes_agree_from_1e_3_on(alpha):
    correct = dirichlet_labels(alpha, 20_000, 10, np.random.default_rng(0))
    float32 = dirichlet_float32_labels(alpha, 20_000, 10, np.random.default_rng(1))
    quantiles = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(
        np.quantile(correct.max(axis=1), quantiles),
        np.quantile(float32.max(axis=1), quantiles),
        atol=0.02,
    )


def test_sizes_follow_the_power_law():
    """q ∝ u^(1/3) has mean 3/4 and density 3x²: P(u^(1/3) < x) = x³."""
    q = power_law_fractions(200_000, np.random.default_rng(0))
    x = q / q.mean() * 0.75
    assert q.sum() == pytest.approx(1)
    for edge in (0.3, 0.5, 0.8):
        assert (x < edge).mean() == pytest.approx(edge**3, abs=0.005)


def test_sizes_and_labels_use_the_largest_total():
    """With equal shares of all labels no label is exhausted before the others."""
    parts = split(20, alpha=1e6)
    assert sum(map(len, parts)) > 0.97 * len(LABELS)


@pytest.mark.parametrize(
    ("n", "options", "words"),
    [
        (2_000, {"min_examples": 30}, ["needs 62000", "has 60000", "lower min-examples"]),
        (1_900, {"min_examples": 30, "alpha": 0.01}, ["none of 100 draws", "the best left"]),
    ],
)
def test_too_many_clients_is_a_clear_error(n, options, words):
    with pytest.raises(PartitionError) as error:
        split(n, **options)
    assert all(word in str(error.value) for word in words)
