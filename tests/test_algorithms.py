"""Every row of the table of algorithms, through the real apps."""

import json
import logging

import numpy as np
import pytest

from client_app.app import app as client_app
from client_app.data import client_indices, simulated_client
from common.config import ConfigError, RunConfig
from common.datasets import load_splits
from common.evaluation import evaluate
from common.models import build_model
from common.params import ParamSpec
from common.wire import params_record
from experiments.local_grid import LocalGrid
from server_app.algorithms import ALGORITHMS, build_strategy, never_by_value
from server_app.app import server_model
from server_app.server_model import ServerModel
from server_app.strategy import GreedyFed, RoundError
from server_app.valuation import gtg_shapley, valuation_from
from tests.federation import history_of, run

OTHERS = sorted(set(ALGORITHMS) - {"centralised"})


def keys_of(algorithm):
    return {"algorithm": algorithm} | ({"proximal_mu": 0.1} if algorithm == "fedprox" else {})


@pytest.mark.parametrize("algorithm", OTHERS)
def test_learns(small, algorithm):
    config = small.with_values(num_rounds=30, **keys_of(algorithm))
    history = history_of(run(config))
    assert all(len(record["cohort"]) == 2 for record in history)
    assert history[-1]["val_loss"] < 0.75 * history[0]["val_loss"]
    valued = algorithm in ("greedyfed", "greedyfed-classes", "ucb", "sfedavg")
    assert all(bool(record["shapley"]) == valued for record in history)


@pytest.mark.parametrize("algorithm", OTHERS)
def test_partial_work_of_stragglers_is_averaged(small, algorithm):
    config = small.with_values(straggler_fraction=1.0, **keys_of(algorithm))
    path = run(config)
    clients = {
        c["client_id"]: c for c in json.loads((path / "summary.json").read_text())["clients"]
    }
    slow = {name for name, client in clients.items() if client["local_epochs"] < 5}
    history = history_of(path)
    assert slow & {client for record in history for client in record["cohort"]}
    assert all(record["failures"] == {} for record in history)
    assert sum(client["times_counted"] for client in clients.values()) == 2 * len(history)


def test_fedprox_without_its_term_is_refused(small):
    with pytest.raises(ConfigError, match="proximal-mu"):
        small.with_values(algorithm="fedprox")


def test_fedprox_stays_nearer_to_the_global_model_than_fedavg(small):
    near = small.with_values(algorithm="fedprox", proximal_mu=10.0, num_rounds=1)
    far = small.with_values(algorithm="fedavg", num_rounds=1)
    assert history_of(run(near))[0]["cohort"] == history_of(run(far))[0]["cohort"]
    start = _parameters(small)
    moved = [np.linalg.norm(_after_one_round(c) - start) for c in (near, far)]
    assert moved[0] < 0.7 * moved[1]


def test_power_of_choice_asks_the_clients_themselves(small):
    """The cohort of the first round, in which all are candidates, has the largest local losses."""
    config = small.with_values(algorithm="power-of-choice", num_rounds=1)
    splits = load_splits(config.data, config.seed)
    model = build_model(config.training.model, splits.input_shape, splits.num_classes, config.seed)
    losses = {
        f"partition-{i}": evaluate(model, simulated_client(config, i).data).loss for i in range(6)
    }
    record = history_of(run(config))[0]
    assert record["cohort"] == sorted(losses, key=lambda c: -losses[c])[:2]
    size = 4 * ParamSpec.of(model).size
    assert 0 <= record["bytes"]["down"] - size * (2 + 6) < size  # names, the task, who they are
    assert 0 <= record["bytes"]["up"] - size * 2 < size


def test_centralised_training_sees_the_examples_of_all(small):
    config = small.with_values(algorithm="centralised", num_rounds=30)
    path = run(config)
    history = history_of(path)
    assert all(record["cohort"] == ["partition-0"] for record in history)
    everyone = sum(len(part) for part in client_indices(config.data, config.seed))
    me = simulated_client(config, 0)
    assert len(me.data) == everyone
    assert me.batch_size == everyone * 2 // 6
    apart = small.with_values(algorithm="fedavg", num_rounds=30)
    assert history[-1]["val_loss"] < history_of(run(apart))[-1]["val_loss"]


@pytest.mark.parametrize("clients_per_round", [2, 8])
def test_from_python_and_by_name_values_are_the_same(small, clients_per_round):
    """Exact to 7 clients a round, kriging's above."""
    config = small.with_values(num_clients=10, clients_per_round=clients_per_round)
    ends = {2: "exact", 8: "converged"}
    by_name, records = _strategy(config), []
    made = GreedyFed(
        model=by_name._model,
        clients_per_round=clients_per_round,
        on_round=lambda record, state: records.append(record),
    )
    states = [
        strategy.run(LocalGrid(client_app, config.to_flat(), [{} for _ in range(10)]), 2)
        for strategy in (by_name, made)
    ]
    assert states[0].stats.value.tolist() == states[1].stats.value.tolist()
    assert {record.valuation_end for record in records} == {ends[clients_per_round]}
    released = valuation_from(config.with_values(valuation_stop="released").valuation, True)
    assert released.func is gtg_shapley


def _strategy(config):
    splits = load_splits(config.data, config.seed)
    network = build_model(
        config.training.model, splits.input_shape, splits.num_classes, config.seed
    )
    model = ServerModel(network, splits.val, splits.test, splits.num_classes)
    return build_strategy(config, model=model)


def _parameters(config):
    return _strategy(config).state.params


def _after_one_round(config: RunConfig):
    grid = LocalGrid(client_app, config.to_flat(), [{} for _ in range(6)])
    return _strategy(config).run(grid, 1).params


@pytest.mark.parametrize("algorithm", ["greedyfed", "greedyfed-classes", "ucb"])
@pytest.mark.parametrize(
    ("clients", "per_round", "rounds"),
    [(6, 2, 2), (6, 2, 3), (6, 2, 4), (5, 2, 2), (5, 2, 3), (5, 2, 4), (4, 3, 1), (3, 3, 1)],
)
def test_a_run_too_short_to_select_by_value_says_so(
    small, caplog, algorithm, clients, per_round, rounds
):
    """By what the run does: a client asked again was selected by its value."""
    logging.getLogger("greedyfed").addHandler(caplog.handler)
    config = small.with_values(
        algorithm=algorithm, num_clients=clients, clients_per_round=per_round, num_rounds=rounds
    )
    cohorts = [record["cohort"] for record in history_of(run(config))]
    logging.getLogger("greedyfed").removeHandler(caplog.handler)
    seen, again = set(), []
    for cohort in cohorts:
        again.append(len(seen & set(cohort)))
        seen |= set(cohort)
    line = never_by_value(config, clients)
    assert [m for m in caplog.messages if m.startswith("num-rounds")] == ([line] if line else [])
    if line is None:
        assert again[-1] == per_round or clients == per_round
    else:
        assert again[:-1] == [0] * (rounds - 1)
        assert again[-1] < per_round
        assert ("but for" in line) == (again[-1] > 0)
        assert f"but for {again[-1]} of the" in line or not again[-1]


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.keys() - {"greedyfed", "ucb"}))
def test_only_who_asks_every_client_first_says_so(small, algorithm):
    keys = {"proximal_mu": 0.1} if algorithm == "fedprox" else {}
    short = small.with_values(algorithm=algorithm, num_rounds=1, **keys)
    assert (never_by_value(short, 6) is not None) == (algorithm == "greedyfed-classes")


def test_clients_asked_to_spare_make_the_first_rounds_fewer(small):
    line = never_by_value(small.with_values(num_rounds=1, spare_clients=1), 6)
    assert "with 6 clients and 3 a round, the first 2 rounds" in line
    assert never_by_value(small.with_values(num_rounds=3, spare_clients=1), 6) is None


def test_flower_s_start_is_refused_in_place_of_run(small):
    """It would train the first round again and again."""
    strategy = build_strategy(small, model=server_model(small))
    grid = LocalGrid(client_app, small.to_flat(), [{} for _ in range(6)])
    arrays = params_record(strategy.state.params)
    with pytest.raises(RoundError, match=r"is started by run\(grid, num_rounds\)"):
        strategy.start(grid, arrays, num_rounds=2)
