"""Simulated clients: stragglers, noise, identity, and what a node's own configuration decides."""

import numpy as np
import pytest

from client_app.data import ClientError, my_data
from common.config import RunConfig
from common.heterogeneity import local_epochs, noise_levels
from common.seeding import Stream, rng_for
from common.task import Task
from tests.federation import directory_of, history_of, run


@pytest.mark.parametrize(("fraction", "most"), [(0.0, 0), (0.5, 50), (0.9, 90), (1.0, 100)])
def test_stragglers_do_fewer_epochs(fraction, most):
    epochs = local_epochs(0, 100, 5, fraction)
    assert epochs.min() >= 1
    assert epochs.max() == 5
    slow = (epochs < 5).sum()
    assert slow <= most  # a straggler may draw all E epochs
    assert slow >= 0.6 * most
    assert (local_epochs(0, 100, 5, fraction) == epochs).all()


def test_noise_levels_are_a_ladder_in_random_order():
    levels = noise_levels(3, 50, 0.1)
    np.testing.assert_allclose(np.sort(levels), 0.1 * np.arange(50) / 50)
    assert (np.diff(levels) < 0).any()
    assert (noise_levels(4, 50, 0.1) != levels).any()


def test_streams_are_independent():
    draws = {
        tuple(rng_for(seed, stream, *ids).integers(2**62, size=2))
        for seed in (0, 1)
        for stream in Stream
        for ids in ((), (0,), (1,), (0, 1), (1, 0))
    }
    assert len(draws) == 2 * len(Stream) * 5


def node(**keys):
    return {"partition-id": 1, "num-partitions": 4} | {
        k.replace("_", "-"): v for k, v in keys.items()
    }


CONFIG = RunConfig.from_flat({"num-clients": 4, "noise-sigma": 0.4, "straggler-fraction": 1.0})
TASK = Task((1, 8, 8), 10)


def test_a_nodes_own_settings_win():
    simulated = my_data(node(), CONFIG, TASK, 7)
    own = my_data(node(local_epochs=9, noise_sigma=0.7), CONFIG, TASK, 7)
    assert (own.local_epochs, own.noise_sigma, own.secret_noise) == (9, 0.7, True)
    assert (own.info.local_epochs, own.info.noise_sigma) == (None, None)
    assert not simulated.secret_noise
    assert simulated.info.noise_sigma == simulated.noise_sigma


def test_a_simulated_client_may_have_a_name_of_its_own():
    simulated, named = (my_data(n, CONFIG, TASK, 7) for n in (node(), node(client_id="Zürich 3")))
    assert (simulated.info.client_id, named.info.client_id) == ("partition-1", "Zürich 3")
    assert named.info.label_histogram == simulated.info.label_histogram
    assert named.local_epochs == simulated.local_epochs


def test_secret_noise_cannot_be_drawn_again(small):
    """The server knows the seed, so a node's own noise must not come from it."""
    from client_app.app import app
    from experiments.local_grid import run_in_process
    from server_app.app import app as server_app

    losses = []
    for name in ("a", "b"):
        config = small.with_values(output_dir=f"{small.output_dir}/{name}", num_rounds=1)
        nodes = [{"noise-sigma": 0.1} for _ in range(6)]
        run_in_process(server_app, app, config.to_flat(), nodes)
        losses.append(history_of(directory_of(config))[0]["val_loss"])
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"partition_id": 4}, "partition-id = 4, num-partitions = 4"),
        ({"partition_id": -1}, "needs 0 <= partition-id < num-partitions"),
        ({"partition_id": "one"}, "partition-id = 'one'"),
        ({"client_id": ""}, "client-id = '': must be a text, not empty; mend --node-config"),
        ({"client_id": 3}, "client-id = 3: must be a text"),
        ({"client_id": "x" * 101}, "must be 1 to 100 printable characters; mend --node-config"),
        ({"client_id": "a\nb"}, "client-id = 'a\\nb': must be 1 to 100 printable"),
        ({"local_epochs": 0}, "local-epochs = 0: must be 1 to 1000000"),
        ({"local_epochs": 2.5}, "local-epochs = 2.5"),
        ({"noise_sigma": -0.1}, "noise-sigma = -0.1: must be 0 to 1e+100"),
        ({"noise_sigma": float("nan")}, "noise-sigma = nan"),
        ({"noise_sigma": "much"}, "noise-sigma = 'much'"),
    ],
)
def test_bad_node_configs_are_named(settings, words):
    with pytest.raises(ClientError) as error:
        my_data(node(**settings), CONFIG, TASK, 7)
    assert words in str(error.value)


def test_stragglers_partial_work_counts(small):
    history = history_of(run(small.with_values(straggler_fraction=1.0)))
    assert all(not r["failures"] and r["shapley"] for r in history)
