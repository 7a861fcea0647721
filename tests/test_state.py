"""Statistics of clients across rounds."""

import numpy as np
import pytest

from server_app.state import ClientStats, Cumulative


def stats_of(*client_ids):
    return ClientStats().with_clients(dict.fromkeys(client_ids, 10))


def after(stats, server_round, values, cumulative):
    chosen = np.array([stats.index(c) for c in values])
    return stats.with_round(
        server_round, chosen, np.array([], int), np.array(list(values.values())), cumulative
    )


def test_the_mean_is_the_mean():
    stats, history = stats_of("a", "b"), [0.5, -0.25, 2.0, 0.125]
    for t, value in enumerate(history, 1):
        stats = after(stats, t, {"b": value}, Cumulative("mean"))
    assert stats.value.tolist() == pytest.approx([0, np.mean(history)])
    assert stats.count.tolist() == [0, 4]


@pytest.mark.parametrize("alpha", [0, 0.1, 0.5, 0.9])
def test_the_exponential_average_starts_with_the_first_value(alpha):
    stats, expected = stats_of("a"), None
    for t, value in enumerate([1.0, 3.0, -2.0], 1):
        stats = after(stats, t, {"a": value}, Cumulative("exponential", alpha))
        expected = value if expected is None else alpha * expected + (1 - alpha) * value
        assert stats.value[0] == pytest.approx(expected)


def test_clients_are_ordered_naturally_and_keep_their_place():
    stats = stats_of("partition-10", "partition-2")
    assert stats.client_ids == ("partition-2", "partition-10")
    stats = after(stats, 1, {"partition-10": 1.0}, Cumulative())
    stats = stats.with_clients({"partition-1": 5, "partition-10": 7})
    assert stats.client_ids == ("partition-2", "partition-10", "partition-1")
    assert stats.value.tolist() == [0, 1, 0]
    assert stats.num_examples.tolist() == [10, 7, 5]


def test_failures_back_off_and_a_success_forgives():
    stats, none, values = stats_of("a"), np.array([], int), None
    waits = []
    for t in (1, 10, 30, 60):
        stats = stats.with_round(t, none, np.array([0]), values, Cumulative())
        waits.append(int(stats.retry_round[0]) - t)
    assert waits == [2, 4, 8, 16]
    stats = stats.with_round(100, np.array([0]), none, values, Cumulative())
    assert stats.failures[0] == stats.retry_round[0] == 0


def test_who_waits_shortest_is_ready_when_too_few_are():
    stats, none, values = stats_of("a", "b", "c", "d"), np.array([], int), None
    for t, k in ((1, 1), (2, 2), (2, 1)):
        stats = stats.with_round(t, none, np.array([k]), values, Cumulative())
    assert stats.retry_round.tolist() == [0, 6, 4, 0]
    free = np.array([True, True, True, False])
    assert stats.ready(free, 3, 1).tolist() == [True, False, False, False]
    assert stats.ready(free, 3, 2).tolist() == [True, False, True, False]
    assert stats.ready(free, 3, 4).tolist() == [True, True, True, False]
    assert stats.ready(free, 4, 1).tolist() == [True, False, True, False]


def test_back_off_is_bounded():
    stats, none = stats_of("a"), np.array([], int)
    for t in range(1, 40):
        stats = stats.with_round(t, none, np.array([0]), None, Cumulative())
    assert stats.retry_round[0] == 39 + 64
