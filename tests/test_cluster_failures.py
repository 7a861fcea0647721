"""docker-compose.yml when its parts fail, each of which must leave its trace in history.jsonl."""

import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from common.config import RunConfig
from experiments.cluster import CONFIG, train
from experiments.loopback import wait_for
from experiments.progress import RoundProgress
from experiments.settings import read_toml
from server_app.events import read_events
from server_app.run_directory import MODEL, STATE, read_history
from server_app.state_file import read_state
from tests.containers import PROJECT, docker, inside

pytestmark = pytest.mark.cluster
N, M = 5, 3
ROUND_SECONDS = 120
SPOIL = """
import os
import numpy as np
os.rename("/data/client-3.npz", "/data/good")
with np.load("/data/good") as file:
    x, y = file["x"], file["y"]
np.savez("/data/client-3.npz", x=x * 1e30, y=y)  # no images as the server's
"""


class Training(threading.Thread):
    """A run on the cluster, followed as `make cluster` does; `directory` is a fresh copy."""

    def __init__(self, cluster, config, output):
        super().__init__(daemon=True)
        self._parts = cluster, config, output
        self.directory = output / config.run_id
        self.error = None
        self.start()

    def run(self):
        cluster, config, output = self._parts
        try:
            with RoundProgress(Console(), config.num_rounds) as progress:
                train(cluster, config, output, progress)
        except BaseException as error:
            self.error = error

    def wait(self, what, seconds, description):
        """Until what() is true, while the run goes on."""
        wait_for(lambda: self.error or what(), seconds, description)
        assert self.error is None, self.error

    def wait_for_round(self, number):
        self.wait(lambda: len(read_history(self.directory)) >= number, ROUND_SECONDS * 2, number)

    def failed(self, client):
        """Whether a round has been recorded in which it failed."""
        return any(client in record["failures"] for record in read_history(self.directory))

    def wait_for_end(self, seconds):
        self.join(seconds)
        assert not self.is_alive(), "the run has not ended"
        assert self.error is None, self.error


def settings(**keys):
    flat = read_toml(CONFIG) | {"num-clients": N, "output-dir": "/results/failures"}
    return RunConfig.from_flat(flat | {k.replace("_", "-"): v for k, v in keys.items()})


def at_client_3(*command):
    """Run a command where the data of client-3 can be written."""
    volume = ["--user", "root", "--volume", f"{PROJECT}_data-3:/data"]
    docker("run", "--rm", *volume, "greedyfed", *command)


def test_clients_and_the_superlink_may_fail(cluster, tmp_path):
    """One client has other data; one killed, one restarted, one cut off; the SuperLink killed."""
    config = settings(num_rounds=12, algorithm="fedavg", valuation="gtg", round_deadline=40.0)
    at_client_3("python", "-c", SPOIL)
    at_client_3("chown", "10001", "/data/client-3.npz")
    try:
        run = Training(cluster, config, tmp_path)
        run.wait_for_round(1)
        killed, restarted, cut = "client-1", "client-0", "client-2"
        docker("kill", cluster.container(killed.replace("client", "clientapp")))
        run.wait(lambda: run.failed(killed), ROUND_SECONDS * 4, f"a failure of {killed}")
        docker("start", _container(killed.replace("client", "clientapp")))
        back = len(read_history(run.directory)) + 1

        docker("restart", cluster.container(restarted.replace("client", "supernode")))
        docker("kill", cluster.container("superlink"))
        time.sleep(5)
        docker("start", _container("superlink"))
        run.wait_for_round(back)

        whole = len(read_history(run.directory)) + 2  # the next one has begun
        site = f"{PROJECT}_site-{cut[-1]}", _container(cut.replace("client", "supernode"))
        docker("network", "disconnect", *site)
        run.wait_for_round(whole)
        docker("network", "connect", "--alias", cut.replace("client", "supernode"), *site)
        run.wait_for_end(12 * ROUND_SECONDS)
    finally:
        at_client_3("mv", "/data/good", "/data/client-3.npz")
    history = read_history(run.directory)
    assert [record["round"] for record in history] == list(range(1, 13))
    assert run.failed(killed)
    refused = {e["why"] for e in read_events(run.directory) if e["event"] == "refused"}
    assert any("x goes beyond 0 to 1, the range of the server's images" in why for why in refused)
    assert all("client-3" not in record["cohort"] for record in history)
    assert cut not in history[whole - 1]["shapley"]
    # The values of clients that went away and came back go on from where they were.
    stats = read_state(run.directory / STATE).stats
    counted = Counter(c for record in history for c in record["shapley"])
    assert dict(zip(stats.client_ids, stats.count.tolist(), strict=True)) == counted
    for client in counted:
        mine = [record for record in history if client in record["shapley"]]
        mean = sum(record["shapley"][client] for record in mine) / len(mine)
        assert mine[-1]["cumulative"][client] == pytest.approx(mean)
        assert mine[-1]["round"] > back or client == cut  # it came back
    assert history[-1]["val_loss"] < history[0]["val_loss"]


def test_a_serverapp_killed_in_an_aggregation_ends_with_the_same_model(cluster, tmp_path):
    """Bitwise the model of an unbroken run."""
    config = settings(num_rounds=4, output_dir="/results/killed")
    run = Training(cluster, config, tmp_path)
    script = (Path(__file__).parent / "kill_in_aggregation.py").read_text()
    path = f"/results/killed/{config.run_id}"
    (number,) = inside(cluster, "serverapp", "python", "-c", script, path, "superlink:8000")
    assert len(read_history(run.directory)) < int(number)
    run.wait_for_end(6 * ROUND_SECONDS)
    history = read_history(run.directory)
    assert [record["round"] for record in history] == [1, 2, 3, 4]
    asked = [e["round"] for e in read_events(run.directory) if e["event"] == "asked"]
    assert asked.count(int(number)) == 2  # the round was begun anew
    straight = Training(cluster, config.with_values(output_dir="/results/unbroken"), tmp_path / "2")
    straight.wait_for_end(6 * ROUND_SECONDS)
    cohorts = [record["cohort"] for record in history]
    assert [record["cohort"] for record in read_history(straight.directory)] == cohorts
    assert (straight.directory / MODEL).read_bytes() == (run.directory / MODEL).read_bytes()


def _container(service):
    """The container of a service, running or not."""
    name = ["--filter", f"label=com.docker.compose.project={PROJECT}"]
    name += ["--filter", f"label=com.docker.compose.service={service}"]
    return docker("ps", "--all", "--quiet", *name).strip()
