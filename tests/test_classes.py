"""Values in groups of examples, and the cohorts that are chosen by them."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from common.datasets import DataError, Dataset, load_splits
from common.models import build_model
from server_app import app
from server_app.coverage import GreedyByGroup, shares_served, welfare
from server_app.groups import by_class, by_column
from server_app.run_directory import STATE, RunDirectory, RunDirectoryError
from server_app.selection import Greedy, SelectionView
from server_app.server_model import ServerModel
from server_app.state import ClientStats, Cumulative
from server_app.state_file import read_state
from server_app.utility import ModelAverageUtility
from server_app.valuation import (
    CachedUtility,
    auto_shapley,
    exact_shapley,
    gtg_shapley,
    kriging_shapley,
    tmc_shapley,
)
from tests.federation import directory_of, history_of, run
from tests.games import additive, airport, glove, random_game, unanimity

ESTIMATORS = [auto_shapley, exact_shapley, gtg_shapley, kriging_shapley, tmc_shapley]


def in_groups(games, shares):
    """One utility from a game for each group: columns of all examples and of each group."""

    def utility(coalitions):
        each = np.stack([game(coalitions) for game in games], axis=1)
        return np.hstack([(each @ shares)[:, None], each])

    return utility


@pytest.mark.parametrize("m", [1, 2, 4, 9])
@pytest.mark.parametrize("valuation", ESTIMATORS)
def test_a_value_is_the_weighted_sum_of_those_in_groups(valuation, m):
    shares = np.array([0.5, 0.2, 0.0, 0.3])
    utility = in_groups([random_game(m, seed) for seed in range(4)], shares)
    result = valuation(CachedUtility(utility), m, np.random.default_rng(0))
    assert result.group_values.shape == (m, 4)
    np.testing.assert_allclose(result.group_values @ shares, result.values, atol=1e-9)


@pytest.mark.parametrize("m", [1, 4, 9])
@pytest.mark.parametrize("valuation", ESTIMATORS)
def test_groups_change_no_digit_of_a_value_and_cost_no_evaluation(valuation, m):
    both = in_groups([random_game(m, 1), random_game(m, 2)], np.array([0.4, 0.6]))
    results = [
        valuation(CachedUtility(utility), m, np.random.default_rng(0))
        for utility in (both, lambda coalitions: both(coalitions)[:, 0])
    ]
    assert (results[0].values == results[1].values).all()
    assert (results[0].std_error == results[1].std_error).all()
    assert results[0].num_evaluations == results[1].num_evaluations
    assert results[1].group_values.shape == (m, 0)


def test_exact_values_in_groups_of_known_games():
    games = [
        airport([1.0, 3.0, 2.0]),
        additive([1.0, -1.0, 4.0]),
        unanimity([0, 2], 3),
        glove(2, 1),
    ]
    utility = in_groups([game.utility for game in games], np.full(4, 0.25))
    result = exact_shapley(CachedUtility(utility), 3, np.random.default_rng(0))
    expected = np.stack([game.values for game in games], axis=1)
    np.testing.assert_allclose(result.group_values, expected, atol=1e-12)


def view_of(value, gains, shares, m=3, sizes=None, recent=None):
    """A view of clients of one size, none of whom took part lately, unless told."""
    n = len(value)
    zeros = np.zeros(n, np.int64)
    stats = ClientStats(
        client_ids=tuple(f"partition-{k}" for k in range(n)),
        value=np.asarray(value, float),
        count=zeros,
        num_examples=np.asarray(sizes) if sizes is not None else zeros + 7,
        failures=zeros,
        retry_round=zeros,
        group_value=gains,
        group_gain=gains,
        recent=np.asarray(recent) if recent is not None else np.zeros(n),
    )
    return SelectionView(1, m, stats, np.ones(n, dtype=bool), group_shares=np.asarray(shares))


def one_class_each(per_class, num_classes=10):
    """Gains of clients whose updates gain in one class and lose in the others."""
    return np.tile(np.eye(num_classes) * 1.4 - 0.5, (per_class, 1))


@pytest.mark.parametrize("groups", [0, 1])
@pytest.mark.parametrize("seed", range(20))
def test_with_one_group_it_is_exactly_greedy(groups, seed):
    rng = np.random.default_rng(seed)
    value, gains = rng.integers(-3, 3, 12), rng.normal(size=(12, groups))
    view = view_of(value, gains, np.ones(groups), m=5)
    chosen = [p.select(view, np.random.default_rng(seed)) for p in (GreedyByGroup(), Greedy())]
    assert chosen[0].tolist() == chosen[1].tolist()


@pytest.mark.parametrize("seed", range(20))
def test_the_names_of_groups_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    value, gains, weights = rng.normal(size=20), rng.normal(size=(20, 6)), rng.dirichlet(np.ones(6))
    order = rng.permutation(6)
    one = GreedyByGroup().select(view_of(value, gains, weights), np.random.default_rng(0))
    two = view_of(value, gains[:, order], weights[order])
    assert one.tolist() == GreedyByGroup().select(two, np.random.default_rng(0)).tolist()


def test_all_round_clients_are_taken_where_there_are_some():
    """Ten clients of one class each, however valuable, and ten of all classes."""
    gains = np.vstack([one_class_each(1), np.full((10, 10), 0.1)])
    value = np.r_[np.full(10, 5.0), np.arange(10)]
    chosen = GreedyByGroup().select(
        view_of(value, gains, np.full(10, 0.1)), np.random.default_rng()
    )
    assert chosen.tolist() == [19, 18, 17]


def test_without_them_the_classes_that_were_left_out_are_covered():
    """Three clients of each class: of the three that nobody served lately the best client each."""
    gains, value = one_class_each(3), np.arange(30.0)
    recent = np.where(np.isin(np.arange(30), [1, 4, 8]), 0.0, np.arange(30) < 10)
    view = view_of(value, gains, np.full(10, 0.1), recent=recent)
    assert sorted(GreedyByGroup().select(view, np.random.default_rng())) == [21, 24, 28]


@pytest.mark.parametrize("seed", range(5))
def test_all_classes_are_served_in_turn(seed):
    """Ten classes, three clients a round: each class at least once in any six rounds."""
    rng = np.random.default_rng(seed)
    gains, shares = one_class_each(4), rng.dirichlet(np.full(10, 50.0))
    view = view_of(rng.normal(size=40), gains, shares)
    served = []
    for number in range(1, 41):
        chosen = GreedyByGroup().select(view, rng)
        stats = view.stats.with_round(number, chosen, chosen[:0], None, Cumulative())
        view = replace(view, stats=stats)
        served.append(set(chosen % 10))
    for start in range(len(served) - 6):
        assert set().union(*served[start : start + 6]) == set(range(10))


@pytest.mark.parametrize("seed", range(10))
def test_where_nobody_harms_a_group_the_values_decide(seed):
    rng = np.random.default_rng(seed)
    value, gains = rng.normal(size=20), rng.random((20, 6))
    recent = rng.random(20)
    view = view_of(value, gains, rng.dirichlet(np.ones(6)), recent=recent)
    chosen = [p.select(view, np.random.default_rng(seed)) for p in (GreedyByGroup(), Greedy())]
    assert chosen[0].tolist() == chosen[1].tolist()


def test_who_takes_part_already_counts():
    """In place of one who failed: of the classes that the others do not serve."""
    view = view_of(np.r_[9.0, 9, 1, 1], one_class_each(1, 4), np.full(4, 0.25), m=2)
    view = replace(view, taken=np.array([0, 1]))
    assert sorted(GreedyByGroup().select(view, np.random.default_rng())) == [2, 3]


def test_who_has_more_examples_serves_more():
    """As in the average. Of two clients of each class, the larger one, though of less value."""
    gains, sizes = one_class_each(2, 4), np.repeat([30, 300], 4)
    view = view_of(-sizes, gains, np.full(4, 0.25), m=4, sizes=sizes)
    assert sorted(GreedyByGroup().select(view, np.random.default_rng())) == [4, 5, 6, 7]


@pytest.mark.parametrize(("m", "groups"), [(1, 2), (3, 10), (4, 4), (5, 2), (2, 0)])
def test_rounds_count_less_with_every_round_after_them(m, groups):
    rng = np.random.default_rng(m)
    stats = ClientStats.of_groups(groups).with_clients({f"partition-{k}": 5 for k in range(6)})
    cohorts = [rng.permutation(6)[:m] for _ in range(8)]
    for number, cohort in enumerate(cohorts, start=1):
        stats = stats.with_round(number, cohort, cohort[:0], None, Cumulative())
    kept = max(0.0, 1 - m / groups) if groups else 0.0
    expected = [
        sum(kept ** (8 - t) for t, cohort in enumerate(cohorts) if k in cohort) for k in range(6)
    ]
    np.testing.assert_allclose(stats.recent, expected)
    again = stats.with_memory([[f"partition-{k}" for k in cohort] for cohort in cohorts])
    assert again.recent.tolist() == stats.recent.tolist()


def test_who_gained_nothing_anywhere_covers_nothing():
    gains = np.vstack([np.full((1, 4), -1.0), np.full((1, 4), 1e-6), np.full((3, 4), 0.5)])
    view = view_of([9, 9, 1, 2, 3], gains, np.full(4, 0.25))
    assert sorted(GreedyByGroup().select(view, np.random.default_rng())) == [2, 3, 4]
    assert shares_served(gains).sum(axis=1)[:2] == pytest.approx(0, abs=1e-4)


def test_a_class_that_gains_as_it_is_like_another_is_not_served():
    shares = shares_served(np.array([[0.8, 0.2, -0.5], [0.1, 0.1, 0.1]]))
    np.testing.assert_allclose(shares[0], np.array([16, 1, 0]) / 17 / 1.1)
    np.testing.assert_allclose(shares[1], np.full(3, 0.25))


@pytest.mark.parametrize("seed", range(10))
def test_welfare_grows_with_the_cohort_and_ever_less(seed):
    rng = np.random.default_rng(seed)
    shares, weights = shares_served(rng.normal(size=(8, 5))), rng.dirichlet(np.ones(5))

    def of(members):
        return welfare(shares[members].sum(axis=0), weights, 8)

    order = rng.permutation(8)
    small, large, new = order[:2].tolist(), order[:5].tolist(), order[7]
    assert of([*large, new]) >= of(large) >= of(small)
    assert of([*small, new]) - of(small) >= of([*large, new]) - of(large) - 1e-12


def test_only_available_clients_and_no_more_than_there_are():
    rng = np.random.default_rng(0)
    gains = rng.random((6, 3))
    view = view_of(rng.normal(size=6), gains, np.full(3, 1 / 3), m=4)
    view.available[[0, 2, 5]] = False
    assert sorted(GreedyByGroup().select(view, rng)) == [1, 3, 4]
    view.available[:] = False
    assert GreedyByGroup().select(view, rng).tolist() == []


@pytest.fixture
def skewed(small):
    return small.with_values(
        algorithm="greedyfed-classes", dirichlet_alpha=0.05, min_examples_per_client=5
    )


def test_records_tell_values_and_losses_by_class(skewed):
    config = skewed.with_values(valuation="exact")
    history = history_of(run(config))
    y = load_splits(config.data, config.seed).val.y.numpy()
    shares = np.bincount(y, minlength=10) / len(y)
    for before, after in pairwise(history):
        assert after["class_losses"] @ shares == pytest.approx(after["val_loss"], abs=3e-6)
        values = np.array([after["class_shapley"][c] for c in after["shapley"]])
        np.testing.assert_allclose(values @ shares, list(after["shapley"].values()), atol=3e-6)
        gains = np.subtract(before["class_losses"], after["class_losses"])
        np.testing.assert_allclose(values.sum(axis=0), gains, atol=3e-6)
        cumulative = np.array([after["class_cumulative"][c] for c in after["cumulative"]])
        np.testing.assert_allclose(
            cumulative @ shares, list(after["cumulative"].values()), atol=3e-6
        )
    clients = json.loads((directory_of(config) / "summary.json").read_text())["clients"]
    for client in clients:
        assert np.array(client["class_values"]) @ shares == pytest.approx(client["value"], abs=3e-6)


def test_a_class_that_the_server_does_not_have_is_told(skewed, monkeypatch, caplog):
    whole = load_splits(skewed.data, skewed.seed)
    known = ~torch.isin(whole.val.y, torch.tensor([2, 7]))
    val = Dataset(whole.val.x[known], whole.val.y[known])
    monkeypatch.setattr(app, "load_splits", lambda *_: replace(whole, val=val))
    monkeypatch.setattr(app.log, "handlers", [caplog.handler])
    run(skewed)
    assert "have no example of classes 2, 7, in which nobody is of value" in caplog.text
    history = history_of(directory_of(skewed))
    assert all(r["class_losses"][2] == r["class_losses"][7] == 0 for r in history)
    assert all(np.isfinite(r["val_loss"]) for r in history)


def test_runs_without_values_tell_nothing_by_class(small):
    for keys in ({"algorithm": "fedavg"}, {"valuation_groups": "none"}):
        directory = run(small.with_values(**keys))
        assert not [k for r in history_of(directory) for k in r if k.startswith("class_")]
        assert read_state(directory / STATE).group_losses.size == 0


def test_gains_are_those_of_the_updates_alone(skewed):
    """In the first round. Of two clients φ_1 − φ_2 = U({1}) − U({2}), which gives U({2})."""
    config = skewed.with_values(num_rounds=1)
    state = read_state(run(config) / STATE)
    record = history_of(directory_of(config))[0]
    one, two = (np.array(v) for v in record["class_shapley"].values())
    rows, gains = [state.stats.index(c) for c in record["shapley"]], state.stats.group_gain
    before = np.array(record["class_losses"]) + one + two
    assert (np.delete(gains, rows, axis=0) == 0).all()
    assert (np.abs(gains) <= 1).all()
    # gain = 1 − after / before where it is positive, else before / after − 1
    after = [np.where(g > 0, before * (1 - g), before / (1 + g)) for g in gains[rows]]
    np.testing.assert_allclose(after[1] - after[0], one - two, rtol=1e-4)


@pytest.mark.parametrize("keys", [{"valuation_groups": "none"}, {"valuation_clusters": 1}])
def test_a_run_with_one_group_is_one_of_greedyfed(skewed, keys):
    if "valuation_clusters" in keys:
        keys = keys | {"valuation_groups": "clusters"}
    ours = run(skewed.with_values(num_rounds=12, **keys))
    theirs = run(skewed.with_values(num_rounds=12, algorithm="greedyfed"))
    assert [r["cohort"] for r in history_of(ours)] == [r["cohort"] for r in history_of(theirs)]
    name = "model.safetensors"
    assert (ours / name).read_bytes() == (theirs / name).read_bytes()


def test_kriging_on_a_part_of_the_examples_tells_groups_too():
    """Most coalitions on 500 of 2,000 examples, in which the classes have other shares."""
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.choice(3, 2001, p=[0.602, 0.301, 0.097]))
    data = Dataset(torch.from_numpy(rng.normal(size=(2001, 4)).astype(np.float32)) + y[:, None], y)
    network = build_model("logistic", (4,), 3, seed=0)
    model = ServerModel(network, data, data, 3, grouping=by_class)
    updates = rng.normal(size=(12, model.spec.size)).astype(np.float32)
    average = ModelAverageUtility(model, updates[0], updates, np.arange(1.0, 13))
    result = kriging_shapley(average.cached(), 12, rng)
    assert result.num_evaluations < 2**12 - 1
    np.testing.assert_allclose(result.group_values @ model.group_shares, result.values, atol=1e-9)
    ends = -average.cached().in_groups(np.array([[False] * 12, [True] * 12]))
    np.testing.assert_allclose(result.group_values.sum(axis=0), ends[0] - ends[1], atol=1e-9)


def test_groups_may_be_the_values_of_a_column():
    x = torch.tensor([[0.5, 7.0], [0.1, 3.0], [0.2, 7.0], [0.3, 5.0]])
    members = by_column(Dataset(x, torch.zeros(4, dtype=torch.int64)), 2, column=1)
    assert members.tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("x", "column", "why"),
    [
        (torch.zeros(4, 1, 8, 8), 0, r"the inputs have shape \(1, 8, 8\)"),
        (torch.zeros(4, 2), 2, r"shape \(2,\); give a column of a table"),
        (torch.arange(200.0)[:, None], 0, "has 200 different values, at most 100 make groups"),
    ],
)
def test_a_column_that_makes_no_groups_is_refused(x, column, why):
    with pytest.raises(DataError, match=f"valuation-group-column = {column}: .*{why}"):
        by_column(Dataset(x, torch.zeros(len(x), dtype=torch.int64)), 2, column=column)


def test_a_run_whose_data_fall_into_other_groups_is_not_resumed(skewed, monkeypatch):
    """As one with groups by column, once the server's file has another value there."""
    config = skewed.with_values(valuation_groups="clusters", valuation_clusters=4)
    run(config)
    longer = config.with_values(num_rounds=8)
    RunDirectory(longer).close()
    for name in ("history.jsonl", "events.jsonl", STATE):
        (directory_of(longer) / name).write_bytes((directory_of(config) / name).read_bytes())
    monkeypatch.setattr(app, "grouping_from", lambda *_: by_class)
    with pytest.raises(RunDirectoryError, match=r"holds values in 4 groups, .* makes 10 of"):
        run(longer.with_values(resume=True))


@pytest.mark.parametrize(
    "lost", [["group_gain"], ["group_losses"], ["group_gain", "group_value", "group_losses"]]
)
def test_a_run_that_selects_by_class_needs_its_groups(skewed, lost):
    path = run(skewed) / STATE
    with safe_open(path, framework="numpy") as file:
        about = file.metadata()
        arrays = {k: file.get_tensor(k) for k in file.keys() if k not in lost}  # noqa: SIM118
    save_file(arrays, path, about)
    (path.parent / "summary.json").unlink()
    with pytest.raises(RunDirectoryError, match="group"):
        run(skewed.with_values(resume=True))


@pytest.mark.parametrize(
    ("key", "change", "why"),
    [
        ("params", lambda a: a.astype(float), "params is not all finite numbers of type float32"),
        ("params", lambda a: a * np.nan, "params is not all finite"),
        ("params", lambda a: a[:-1], "holds a model of"),
        ("group_losses", lambda a: a * np.nan, "group_losses is not all finite"),
        ("group_losses", lambda a: a[:, None], "group_losses has the shape"),
        ("group_losses", lambda a: a[:-1], "group_value has the shape"),
        ("count", lambda a: a - 9, "count must be within 0 and inf"),
        ("more", lambda a: np.zeros(3), "arrays are missing or too many: more"),
        ("group_gain", lambda a: a * np.nan, "group_gain is not all finite"),
        ("group_gain", lambda a: a + 2, "group_gain must be within -1 and 1"),
        (
            "value",
            lambda a: a.astype(np.float32),
            "value is not all finite numbers of type float64",
        ),
        ("count", lambda a: a.astype(float), "count is not all finite numbers of type int64"),
        ("num_examples", lambda a: a * 0, "num_examples must be within 1 and inf"),
    ],
)
def test_statistics_that_cannot_be_are_refused(skewed, key, change, why):
    path = run(skewed) / STATE
    with safe_open(path, framework="numpy") as file:
        about = file.metadata()
        arrays = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118  not a dict
    before = history_of(path.parent)
    save_file(arrays | {key: np.ascontiguousarray(change(arrays.get(key)))}, path, about)
    (path.parent / "summary.json").unlink()
    with pytest.raises(RunDirectoryError, match=f"{why}.*; (restore it|give another)"):
        run(skewed.with_values(resume=True))
    assert history_of(path.parent) == before


@pytest.mark.parametrize(
    "change", [{"round": 2.5}, {"round": -1}, {"val_loss": float("nan")}, {"client_ids": "abc"}]
)
def test_metadata_that_cannot_be_are_refused(skewed, change):
    path = run(skewed) / STATE
    with safe_open(path, framework="numpy") as file:
        about = json.loads(file.metadata()["about"])
        arrays = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118  not a dict
    save_file(arrays, path, {"about": json.dumps(about | change)})
    (path.parent / "summary.json").unlink()
    with pytest.raises(RunDirectoryError, match=r"its metadata do not tell.*; restore it"):
        run(skewed.with_values(resume=True))


def test_groups_may_be_clusters_of_inputs(skewed):
    config = skewed.with_values(valuation_groups="clusters", valuation_clusters=4)
    history = history_of(run(config))
    assert all(len(r["class_losses"]) == 4 for r in history)
    assert all(len(v) == 4 for r in history for v in r["class_shapley"].values())


@pytest.mark.parametrize("examples", [0, 60])
def test_resume_equals_straight_run(skewed, tmp_path, monkeypatch, examples):
    config = skewed.with_values(num_rounds=10, valuation_examples=examples)
    straight = run(config.with_values(output_dir=str(tmp_path / "straight")))
    with monkeypatch.context() as patch:
        record = RunDirectory.record

        def stop(self, row, state):
            record(self, row, state)
            if row.round == 6:
                raise InterruptedError

        patch.setattr(RunDirectory, "record", stop)
        with pytest.raises(InterruptedError):
            run(config)
    resumed = run(config.with_values(resume=True))
    for name in ("model.safetensors", STATE):
        assert (resumed / name).read_bytes() == (straight / name).read_bytes()


def test_a_run_begun_without_groups_goes_on_without(small):
    """As one of a version that did not tell them apart: its state has no such arrays."""
    straight = history_of(run(small.with_values(num_rounds=8, valuation_groups="none")))
    path = run(small) / STATE
    with safe_open(path, framework="numpy") as file:
        about = file.metadata()
        names = [k for k in file.keys() if not k.startswith("group_")]  # noqa: SIM118  not a dict
        arrays = {k: file.get_tensor(k) for k in names}
    longer = small.with_values(num_rounds=8)
    RunDirectory(longer).close()
    for name in ("history.jsonl", "events.jsonl"):
        (directory_of(longer) / name).write_bytes((path.parent / name).read_bytes())
    save_file(arrays, directory_of(longer) / STATE, about)
    history = history_of(run(longer.with_values(resume=True)))
    assert [r["val_loss"] for r in history] == [r["val_loss"] for r in straight]
    assert "class_shapley" not in history[-1]
