"""Whole runs in process: what is on disk, and clients that fail."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from safetensors.torch import load_file

from client_app.app import app as client_app
from common.datasets import load_splits
from common.evaluation import evaluate
from common.models import build_model
from experiments.local_grid import FIRST_CLIENT_NODE
from server_app.algorithms import ALGORITHMS
from server_app.app import app as server_app
from server_app.selection import Uniform
from server_app.strategy import RoundError
from tests.federation import (
    FAULTS,
    SilentGrid,
    clients_of,
    directory_of,
    history_of,
    run,
)


def test_a_run_directory_says_everything(small):
    directory = run(small)
    history = history_of(directory)
    assert [r["round"] for r in history] == [1, 2, 3, 4, 5, 6]
    # Round robin: 6 clients, 2 a round; then greedy on the cumulative values.
    assert sorted(c for r in history[:3] for c in r["cohort"]) == [
        f"partition-{i}" for i in range(6)
    ]
    value = {}
    for record in history:
        if record["round"] > 3:
            best = sorted(value, key=value.__getitem__, reverse=True)[:2]
            assert set(record["cohort"]) == set(best)
        value |= record["cumulative"]
        assert record["shapley"].keys() == record["std_error"].keys() == set(record["cohort"])
        assert record["failures"] == {}
        assert record["evaluations"] <= 3
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["status"] == "complete"
    assert {c["client_id"]: c["value"] for c in summary["clients"]} == pytest.approx(value)
    assert sum(c["times_selected"] for c in summary["clients"]) == 12
    about = json.loads((directory / "config.json").read_text())
    assert about["config"] == small.to_flat()
    assert about["versions"]["flwr"].startswith("1.42")


def test_shapley_values_of_a_round_add_up_to_its_validation_gain(small):
    history = history_of(run(small))
    for before, after in pairwise(history):
        assert after["gain"] == before["val_loss"] - after["val_loss"]
    for record in history:
        assert sum(record["shapley"].values()) == pytest.approx(record["gain"], abs=2e-4)


def test_the_loss_without_a_client_is_recorded_where_it_was_evaluated(small):
    exact = history_of(run(small.with_values(valuation="exact")))
    for record in exact:
        without, (a, b) = record["leave_one_out"], record["cohort"]
        assert without.keys() == {a, b}
        # Of two clients: half of what it gains alone, half of what it adds to the other.
        alone = record["gain"] - without[b]
        assert record["shapley"][a] == pytest.approx((alone + without[a]) / 2, abs=1e-6)
    none = history_of(run(small.with_values(algorithm="fedavg")))
    assert {(len(r["leave_one_out"]), r["evaluations"]) for r in none} == {(0, 0)}


@pytest.mark.parametrize("name", ["mlp", "cnn", "logistic"])
def test_the_saved_model_has_the_recorded_accuracy(small, name):
    directory = run(small.with_values(model=name))
    splits = load_splits(small.data, small.seed)
    model = build_model(name, splits.input_shape, splits.num_classes, seed=99)
    model.load_state_dict(load_file(directory / "model.safetensors"))
    last = history_of(directory)[-1]
    assert evaluate(model, splits.test).accuracy == last["test_accuracy"]
    val = evaluate(model, splits.val)
    assert val.loss == pytest.approx(last["val_loss"], rel=1e-6)
    assert val.accuracy == last["val_accuracy"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_is_left_out_and_the_others_count(small, fault):
    config = small.with_values(max_examples=1000, clients_per_round=3)
    history = history_of(run(config, {2: fault}))
    failed = [r for r in history if r["failures"]]
    assert failed
    assert history[-1]["test_accuracy"] > history[0]["test_accuracy"]
    for record in failed:
        assert list(record["failures"]) == ["partition-2"]
        assert FAULTS[fault][1] in record["failures"]["partition-2"]
        assert "partition-2" not in record["shapley"]
        assert len(record["cohort"]) == 4  # another client was asked in its place
        assert len(record["shapley"]) == 3
        assert np.isfinite(record["val_loss"])


def test_a_round_with_one_bad_reply_averages_the_others(small):
    """The same as if the cohort had been the others: equal to the state of a run without it."""
    config = small.with_values(clients_per_round=6, num_rounds=1)
    record = history_of(run(config, {1: "nan"}))[0]
    splits = load_splits(config.data, config.seed)
    model = build_model("auto", splits.input_shape, splits.num_classes, config.seed)
    model.load_state_dict(load_file(directory_of(config) / "model.safetensors"))
    assert evaluate(model, splits.val).loss == pytest.approx(record["val_loss"], rel=1e-6)
    assert len(record["shapley"]) == 5


def test_a_client_that_keeps_failing_is_asked_less_and_less(small):
    config = small.with_values(num_rounds=40, algorithm="fedavg", clients_per_round=3)
    history = history_of(run(config, {0: "raises"}))
    failed = [r["round"] for r in history if "partition-0" in r["cohort"]]
    assert all("partition-0" in history[t - 1]["failures"] for t in failed)
    waits = np.diff(failed)
    assert all(wait >= 2 ** min(k, 6) for k, wait in enumerate(waits, 1))
    assert all(len(r["shapley"] or r["cohort"]) >= 3 for r in history)


def test_the_quorum_decides_when_a_round_is_good_enough(small):
    config = small.with_values(clients_per_round=4, quorum=3, num_rounds=1)
    lucky = history_of(run(config, {0: "nan"}))[0]
    assert len(lucky["cohort"]) == 4  # three usable updates suffice: nobody is asked instead
    with pytest.raises(RoundError, match=r"2 of the 6 clients asked.*3 needed"):
        run(config.with_values(seed=1), dict.fromkeys(range(4), "nan"))


def test_others_are_asked_until_the_quorum_is_met(small):
    config = small.with_values(clients_per_round=2, quorum=2, num_rounds=1)
    record = history_of(run(config, dict.fromkeys(range(2), "raises")))[0]
    assert len(record["shapley"]) == 2
    assert set(record["failures"]) == set(record["cohort"]) - set(record["shapley"])


def test_a_round_with_fewer_updates_though_others_were_free_says_so_once(small, told):
    """Others are asked at most twice; where nobody is left to ask, there is nothing to say."""
    counts = set()
    for clients, bad in ((12, 8), (6, 5), (12, 0)):
        for seed in range(4):
            told.clear()
            where = f"{small.output_dir}/{bad}"
            config = small.with_values(
                num_clients=clients, num_rounds=1, seed=seed, output_dir=where
            )
            (record,) = history_of(run(config, dict.fromkeys(range(bad), "nan")))
            got, asked = len(record["shapley"]), len(record["cohort"])
            expected = [f"round 1: {got} of 2 updates: others are asked at most twice a round"]
            lines = [line for line in told.messages if "at most twice" in line]
            assert lines == expected * (got < 2 and asked < clients), (clients, bad, seed)
            counts.add((clients, bad, len(lines)))
    assert counts >= {(12, 8, 1), (6, 5, 0), (12, 0, 0)}


def test_others_are_asked_in_place_of_a_whole_cohort_that_diverged(small):
    config = small.with_values(clients_per_round=2, num_rounds=1)
    first = history_of(run(config))[0]["cohort"]
    huge = {int(client.removeprefix("partition-")): "huge" for client in first}
    other = config.with_values(output_dir=f"{config.output_dir}/faulty")
    record = history_of(run(other, huge))[0]
    assert record["cohort"][:2] == first
    assert set(record["failures"]) == set(first)
    assert len(record["shapley"]) == 2
    assert np.isfinite(record["val_loss"])


def test_whoever_chooses_others_is_told_who_takes_part_already(small, monkeypatch):
    views = []

    class Watched(Uniform):
        def select(self, view, rng):
            views.append(view)
            return super().select(view, rng)

    watched = replace(ALGORITHMS["fedavg"], policy=lambda config: Watched())
    monkeypatch.setitem(ALGORITHMS, "fedavg", watched)
    history = history_of(
        run(small.with_values(algorithm="fedavg", clients_per_round=3), {2: "nan"})
    )
    instead = [view for view in views if view.num_select == 1]
    assert len(instead) == sum(len(r["failures"]) for r in history) > 0
    for view in instead:
        asked = history[view.round - 1]["cohort"][:3]
        taken = {view.stats.client_ids[k] for k in view.taken}
        assert taken == set(asked) - {"partition-2"}
        assert not view.available[view.taken].any()
    assert all(len(view.taken) == 0 for view in views if view.num_select == 3)


def test_spare_clients_are_not_failures(small):
    flat = small.with_values(clients_per_round=3, spare_clients=2, num_rounds=3).to_flat()
    grid = SilentGrid(client_app, flat, [{} for _ in range(6)], silent={FIRST_CLIENT_NODE})
    server_app(grid=grid, context=Context(1, 1, {}, RecordDict(), flat))
    config = small.with_values(clients_per_round=3, spare_clients=2, num_rounds=3)
    history = history_of(directory_of(config))
    assert all(len(r["cohort"]) == 5 and not r["failures"] for r in history)
    assert any("partition-0" in r["cohort"] and "partition-0" not in r["shapley"] for r in history)


def test_never_valued_but_failing_does_not_block_the_round_robin(small):
    history = history_of(run(small.with_values(num_rounds=8), {4: "nan"}))
    good = {c for r in history for c in r["shapley"]}
    assert good == {f"partition-{i}" for i in (0, 1, 2, 3, 5)}


@pytest.mark.parametrize("algorithm", ["greedyfed", "fedavg"])
def test_a_round_without_a_usable_update_stops_the_run_and_keeps_it(small, algorithm):
    config = small.with_values(algorithm=algorithm, clients_per_round=6)
    with pytest.raises(RoundError, match="none of the 6 clients asked returned a usable update"):
        run(config, dict.fromkeys(range(6), "nan"))
    directory = directory_of(config)
    assert not (directory / "summary.json").exists()
    assert (directory / "state.safetensors").exists()


def test_a_client_that_does_not_answer_is_left_out(small):
    config = small.with_values(clients_per_round=3, round_deadline=0.3)
    flat = config.to_flat()
    grid = SilentGrid(client_app, flat, [{} for _ in range(6)], silent={FIRST_CLIENT_NODE + 3})
    server_app(grid=grid, context=Context(1, 1, {}, RecordDict(), flat))
    failed = [r["failures"] for r in history_of(directory_of(config)) if r["failures"]]
    assert failed[0] == {"partition-3": "no answer before the deadline"}


def test_reasons_are_one_short_line(small):
    config = small.with_values(clients_per_round=6, num_rounds=1)
    record = history_of(run(config, {0: "raises"}))[0]
    (reason,) = record["failures"].values()
    assert "\n" not in reason
    assert len(reason) < 350


def test_every_valuation_and_average_runs(small):
    for change in (
        {"valuation": "exact"},
        {"valuation": "tmc"},
        {"valuation_stop": "released"},
        {"cumulative": "exponential"},
        {"algorithm": "fedavg"},
        {"algorithm": "fedavg", "valuation": "gtg"},
        {"proximal_mu": 1.0},
    ):
        config = small.with_values(num_rounds=4, **change)
        history = history_of(run(config))
        assert len(history) == 4
        valued = change.get("algorithm") != "fedavg" or "valuation" in change
        assert bool(history[-1]["shapley"]) == valued


def test_heterogeneity_is_told_in_the_summary(small):
    config = small.with_values(noise_sigma=0.6, straggler_fraction=0.5, clients_per_round=1)
    clients = json.loads((run(config) / "summary.json").read_text())["clients"]
    assert len(clients) == clients_of(config)
    sigmas = sorted(c["noise_sigma"] for c in clients)
    assert sigmas == pytest.approx([0.1 * k for k in range(6)])
    assert all(sum(c["label_histogram"]) == c["num_examples"] for c in clients)
    assert sum(c["local_epochs"] < 5 for c in clients) <= 3
