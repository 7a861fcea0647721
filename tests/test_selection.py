"""Selection policies, for every view that can occur."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_app.selection import Greedy, RoundRobinFirst, SelectionView, Uniform
from server_app.state import ClientStats

POLICIES = [Uniform(), Greedy(), RoundRobinFirst(Greedy()), RoundRobinFirst(Uniform())]


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
    return SelectionView(server_round, m, stats, present)


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
