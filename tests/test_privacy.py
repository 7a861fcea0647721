"""(ε, δ) of what clients released, against the exact curve of the Gaussian mechanism."""

import json
from math import erf, exp, inf, sqrt

import pytest

from server_app.events import read_events
from server_app.privacy import releases, spent_epsilon
from tests.federation import run


def exact_delta(epsilon, mu):
    """δ(ε) of a Gaussian mechanism with sensitivity/σ = μ (Balle and Wang 2018, Theorem 8)."""

    def normal(x):
        return (1 + erf(x / sqrt(2))) / 2

    return normal(mu / 2 - epsilon / mu) - exp(epsilon) * normal(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("times", [1, 10, 300])
@pytest.mark.parametrize("sigma", [1.0, 8.0])
def test_epsilon_bounds_the_exact_one_closely(sigma, times):
    """T releases with noise σ of updates within C are one Gaussian mechanism with μ = 2C √T / σ."""
    clip_norm, delta = 0.5, 1e-5
    epsilon = spent_epsilon({sigma: times}, clip_norm, delta)
    mu = 2 * clip_norm * sqrt(times) / sigma
    assert exact_delta(epsilon, mu) <= delta
    assert exact_delta(0.75 * epsilon, mu) > delta


def test_releases_compose_and_one_without_noise_has_no_limit():
    once, twice = spent_epsilon({2.0: 1}, 1.0, 1e-5), spent_epsilon({2.0: 2}, 1.0, 1e-5)
    assert 0 < once < twice < spent_epsilon({2.0: 2, 1.0: 1}, 1.0, 1e-5) < inf
    assert spent_epsilon({2.0: 5, 0.0: 1}, 1.0, 1e-5) == inf


def test_a_request_without_an_accepted_answer_counts_with_the_least_noise():
    asked = [{"event": "asked", "clients": ["a", "b", "c"]}] * 3
    accepted = [
        {"event": "accepted", "client": "a", "noise_sigma": 2.0},
        {"event": "accepted", "client": "a", "noise_sigma": 1.0},
        *[{"event": "accepted", "client": "b", "noise_sigma": 3.0}] * 3,
    ]
    failed = [{"event": "failed", "client": "a", "why": "NaN"}]
    assert releases(asked + accepted + failed, []) == {
        "a": {2.0: 1, 1.0: 2},
        "b": {3.0: 3},
        "c": {0.0: 3},
    }


def test_a_run_reports_what_each_client_spent(small):
    keys = {"noise_sigma": 3.0, "clip_norm": 1.0, "privacy_delta": 1e-4}
    path = run(small.with_values(**keys), faults={1: "raises"})
    clients = json.loads((path / "summary.json").read_text())["clients"]
    asked = releases(read_events(path), [])
    assert {c["client_id"] for c in clients} == set(asked)
    for client in clients:
        sigma, times = client["noise_sigma"], asked[client["client_id"]].total()
        if sigma == 0 or client["client_id"] == "partition-1":  # the latter never says its noise
            assert client["epsilon"] is None
        else:
            assert client["epsilon"] == spent_epsilon({sigma: times}, 1.0, 1e-4)
    assert sum(c["epsilon"] is not None for c in clients) >= 3


def test_lost_events_never_make_epsilon_smaller():
    asked = [{"event": "asked", "clients": ["a"]}]
    accepted = [{"event": "accepted", "client": "a", "noise_sigma": 2.0}]
    history = [{"cohort": ["a", "b"]}] * 3
    assert releases(asked + accepted, history) == {"a": {2.0: 3}, "b": {0.0: 3}}
    assert releases([], history) == {"a": {0.0: 3}, "b": {0.0: 3}}


def test_without_a_delta_nothing_is_reported(small):
    path = run(small.with_values(noise_sigma=1.0, clip_norm=1.0))
    clients = json.loads((path / "summary.json").read_text())["clients"]
    assert not any("epsilon" in client for client in clients)
