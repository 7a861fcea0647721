"""Selection policies, for every view that can occur."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_app.selection import (
    UCB,
    First,
    Greedy,
    PowerOfChoice,
    RoundRobinFirst,
    SelectionView,
    SFedAvg,
    Uniform,
)
from server_app.state import ClientStats, Cumulative

POLICIES = [
    Uniform(),
    Greedy(),
    UCB(0.5),
    SFedAvg(0.5),
    PowerOfChoice(),
    PowerOfChoice(0.5, "uniform"),
    First(),
    RoundRobinFirst(Greedy()),
    RoundRobinFirst(Uniform()),
    RoundRobinFirst(UCB(0.0)),
]


def view(value, count, available=None, m=3, server_round=1):
    n = len(value)
    stats = ClientStats(
        tuple(f"c{i}" for i in range(n)),
        np.array(value, float),
        np.array(count, np.int64),
        np.ones(n, np.int64),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
    )
    present = np.ones(n, bool) if available is None else np.array(available, bool)
    return SelectionView(server_round, m, stats, present, lambda ids: stats.value[ids])


clients = st.lists(
    st.tuples(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), st.integers(0, 3), st.booleans()), min_size=1
)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@given(clients=clients, m=st.integers(1, 8), seed=st.integers(0, 1000))
def test_selects_distinct_available_clients(policy, clients, m, seed):
    values, counts, available = zip(*clients, strict=True)
    seen = view(values, counts, available, m)
    chosen = policy.select(seen, np.random.default_rng(seed))
    assert len(chosen) == min(m, sum(available)) == len(set(chosen.tolist()))
    assert seen.available[chosen].all()
    assert chosen.tolist() == policy.select(seen, np.random.default_rng(seed)).tolist()


def test_greedy_takes_the_largest_values():
    chosen = Greedy().select(view([0.1, 0.9, -0.5, 0.4, 0.2], [1] * 5), np.random.default_rng(0))
    assert chosen.tolist() == [1, 3, 4]


def test_greedy_breaks_ties_by_the_seed():
    tied = view([1.0] * 6, [1] * 6)
    cohorts = {tuple(sorted(Greedy().select(tied, np.random.default_rng(s)))) for s in range(60)}
    assert len(cohorts) > 10


def test_round_robin_values_everyone_once_then_selects_greedily():
    n, m, policy = 10, 3, RoundRobinFirst(Greedy())
    count, value, asked = np.zeros(n, int), np.zeros(n), []
    rng = np.random.default_rng(3)
    for _ in range(4):  # ⌈10 / 3⌉ rounds
        chosen = policy.select(view(value, count, m=m), rng)
        asked.append(chosen.tolist())
        count[chosen] += 1
        value[chosen] = chosen  # client i is worth i
    assert sorted(asked[0] + asked[1] + asked[2] + asked[3][:1]) == list(range(10))
    assert (count >= 1).all()
    assert sorted(policy.select(view(value, count, m=m), rng).tolist()) == [7, 8, 9]


def test_the_last_round_of_the_round_robin_is_filled_greedily():
    chosen = RoundRobinFirst(Greedy()).select(
        view([5.0, 9.0, 0.0, 7.0], [1, 1, 0, 1]), np.random.default_rng(0)
    )
    assert chosen.tolist() == [2, 1, 3]


def test_a_late_joiner_comes_first():
    chosen = RoundRobinFirst(Greedy()).select(
        view([5.0, 9.0, 0.0], [4, 4, 0], m=1), np.random.default_rng(0)
    )
    assert chosen.tolist() == [2]


def test_the_round_robin_order_is_random():
    orders = {
        tuple(
            RoundRobinFirst(Greedy()).select(view([0] * 5, [0] * 5, m=5), np.random.default_rng(s))
        )
        for s in range(50)
    }
    assert len(orders) > 20


def test_uniform_selects_everyone_equally_often():
    rng, hits = np.random.default_rng(0), np.zeros(6)
    for _ in range(6000):
        hits[Uniform().select(view([0] * 6, [0] * 6, m=2), rng)] += 1
    np.testing.assert_allclose(hits / 6000, 1 / 3, atol=0.03)


def test_ucb_adds_its_bonus_to_the_values():
    value, count, t = [0.5, 0.4, 0.1, 0.3], [9, 4, 1, 2], 17
    score = [v + 0.3 * np.sqrt(np.log(t) / c) for v, c in zip(value, count, strict=True)]
    best = sorted(range(4), key=lambda k: -score[k])
    for m in range(1, 5):
        seen = view(value, count, m=m, server_round=t)
        assert UCB(0.3).select(seen, np.random.default_rng(0)).tolist() == best[:m]


def test_ucb_without_exploration_is_greedy():
    seen = view([0.1, 0.9, -0.5, 0.4], [3, 1, 2, 8], server_round=20)
    assert UCB(0.0).select(seen, np.random.default_rng(0)).tolist() == [1, 3, 0]


@given(st.lists(st.floats(-1, 1), max_size=6), st.floats(0, 1), st.integers(1, 50))
def test_the_phi_of_sfedavg_is_its_recursion(values, alpha, n):
    """φ starts at 1/N and becomes α φ + (1 − α) SV; the statistics hold it without its start."""
    rule, phi, kept = Cumulative("exponential-from-zero", alpha), 1 / n, np.zeros(1)
    for i, value in enumerate(values):
        phi = alpha * phi + (1 - alpha) * value
        kept = rule(kept, np.array([i]), np.array([value]))
    assert kept[0] + alpha ** len(values) / n == pytest.approx(phi)


def test_sfedavg_draws_by_softmax():
    """Frequencies of the first draw against the probabilities, by a chi-squared statistic."""
    value, draws = np.array([0.0, 1.0, 2.0, -1.0]), 4000
    seen = view(value, [1] * 4, m=1)
    rng, counts = np.random.default_rng(0), np.zeros(4)
    for _ in range(draws):
        counts[SFedAvg(0.0).select(seen, rng)] += 1
    p = np.exp(value) / np.exp(value).sum()
    assert ((counts - draws * p) ** 2 / (draws * p)).sum() < 16.3  # 99.9 % for 3 degrees of freedom


def test_power_of_choice_takes_the_candidates_with_the_largest_loss():
    losses = np.random.default_rng(1).normal(size=30)
    seen, asked = view([0.0] * 30, [0] * 30, m=4, server_round=9), []

    def local_losses(ids):
        asked.extend(ids.tolist())
        return losses[ids]

    seen = replace(seen, local_losses=local_losses)
    chosen = PowerOfChoice(0.9).select(seen, np.random.default_rng(0))
    assert len(asked) == len(set(asked)) == PowerOfChoice(0.9).num_candidates(9, 30, 4)
    assert chosen.tolist() == sorted(asked, key=lambda k: -losses[k])[:4]


@pytest.mark.parametrize(("n", "m", "decay"), [(300, 3, 0.9), (10, 20, 0.5), (7, 2, 1.0)])
def test_the_number_of_candidates_shrinks_to_the_cohort(n, m, decay):
    d, policy = n, PowerOfChoice(decay)
    for t in range(1, 60):
        assert policy.num_candidates(t, n, m) == d
        d = max(m, int(np.ceil(decay * d)))


def test_candidates_are_drawn_by_size_unless_uniform():
    sizes, draws = np.array([1, 2, 3, 94]), 300
    seen = view([0.0] * 4, [0] * 4, m=1, server_round=100)
    seen = replace(seen, stats=replace(seen.stats, num_examples=sizes))

    def share_of_the_largest(candidates):
        policy, rng = PowerOfChoice(0.1, candidates), np.random.default_rng(0)
        return sum(policy.select(seen, rng)[0] == 3 for _ in range(draws)) / draws

    assert share_of_the_largest("size") > 0.85
    assert 0.15 < share_of_the_largest("uniform") < 0.35
