"""A real federation of processes, in which any of them may fail.

Takes minutes, as each message to a client starts a process; `make test-deployment` runs it.
"""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from client_app.app import app as client_app
from common.config import RunConfig
from experiments.local_grid import run_in_process
from experiments.partition_files import write_partition
from server_app.app import app as server_app
from tests.deployed import KEYPAIR, Federation, wait_for
from tests.federation import directory_of, history_of

pytestmark = pytest.mark.deployment
N = 4
ROUND_SECONDS = 120


@pytest.fixture
def files(tmp_path):
    """client-<i>.npz and server.npz of digits."""
    config = RunConfig.from_flat({"num-clients": N, "dirichlet-alpha": 10.0})
    list(write_partition(config, tmp_path / "data", overwrite=False))
    return tmp_path / "data"


@pytest.fixture
def federation(tmp_path):
    made = Federation(tmp_path / "federation")
    made.start_superlink()
    wait_for(lambda: made.flwr("supernode", "list", "op").get("success"), 60, "SuperLink")
    made.start_executor()
    for i in range(N):
        made.register(f"client-{i}")
    yield made
    made.stop()


def node_config(files, i):
    return f'client-id="client-{i}" data-path="{files}/client-{i}.npz"'


def own(files, tmp_path, **keys):
    flat = {
        "dataset": "own",
        "data-dir": f"{files}/server.npz",
        "output-dir": str(tmp_path / "runs"),
        "learning-rate": 0.1,
        "clients-per-round": 2,
        "num-clients": N,
        "round-deadline": 100.0,
    }
    return RunConfig.from_flat(flat | {k.replace("_", "-"): v for k, v in keys.items()})


def submit(federation, config):
    """Start the run; returns Flower's run id."""
    keys = federation.home / "run.toml"
    keys.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in config.to_flat().items()))
    answer = federation.flwr("run", ".", "op", "-c", str(keys))
    assert answer["success"], answer
    return str(answer["run-id"])


def rounds(config):
    path = directory_of(config) / "history.jsonl"
    return history_of(directory_of(config)) if path.exists() else []


def wait_for_round(config, number):
    wait_for(lambda: len(rounds(config)) >= number, ROUND_SECONDS * number, f"round {number}")


def wait_for_end(federation, run_id, seconds):
    return wait_for(
        lambda: s if (s := federation.status(run_id)).startswith("finished") else "",
        seconds,
        "end of the run",
    )


def numbers(history):
    return [{k: v for k, v in r.items() if k != "seconds"} for r in history]


def test_a_killed_serverapp_resumes_to_the_same_model(federation, files, tmp_path):
    """Bitwise the model of an unbroken run in one process on the same files."""
    for i in range(N):
        federation.start_node(f"client-{i}", node_config(files, i))
    wait_for(lambda: federation.online() == N, 60, "clients online")
    config = own(files, tmp_path, num_rounds=5)
    run_id = submit(federation, config)
    wait_for_round(config, 2)
    time.sleep(1)
    os.kill(federation.serverapp(), signal.SIGKILL)
    assert wait_for_end(federation, run_id, 120) == "finished:failed"
    before = rounds(config)
    run_id = submit(federation, config.with_values(resume=True))
    assert wait_for_end(federation, run_id, 5 * ROUND_SECONDS) == "finished:completed"
    history = rounds(config)
    assert [r["round"] for r in history] == [1, 2, 3, 4, 5]
    assert numbers(history)[: len(before)] == numbers(before)
    straight = config.with_values(output_dir=str(tmp_path / "straight"))
    nodes = [{"client-id": f"client-{i}", "data-path": f"{files}/client-{i}.npz"} for i in range(N)]
    run_in_process(server_app, client_app, straight.to_flat(), nodes)
    assert numbers(rounds(straight)) == numbers(history)
    model = "model.safetensors"
    ours = (directory_of(config) / model).read_bytes()
    assert ours == (directory_of(straight) / model).read_bytes()


def test_clients_and_the_superlink_may_fail(federation, files, tmp_path):
    """One client is killed and returns, one sends NaN, the SuperLink is killed: the run goes on."""
    with np.load(files / "client-3.npz") as good:  # finite, but training on it diverges
        np.savez(files / "client-3.npz", x=good["x"] * 1e30, y=good["y"])
    for i in range(N):
        federation.start_node(f"client-{i}", node_config(files, i))
    federation.make_ca("foreign")
    federation.start_node("stranger", node_config(files, 0), key=_unregistered(federation))
    federation.start_node("misled", node_config(files, 0), key="client-0", ca="foreign")
    wait_for(lambda: federation.online() == N, 60, "clients online")
    for name in ("stranger", "misled"):  # refused: the process ends
        wait_for(lambda name=name: federation.processes[name].poll() is not None, 60, name)
    config = own(files, tmp_path, num_rounds=7, algorithm="fedavg", valuation="gtg")
    run_id = submit(federation, config)
    wait_for_round(config, 1)
    federation.kill("client-1")
    wait_for_round(config, 2)
    federation.kill("superlink")
    time.sleep(5)
    federation.start_superlink()
    wait_for_round(config, 3)
    federation.start_node("client-1", node_config(files, 1))
    assert wait_for_end(federation, run_id, 7 * ROUND_SECONDS) == "finished:completed"
    history = rounds(config)
    assert [r["round"] for r in history] == list(range(1, 8))
    failures = [(c, why) for r in history for c, why in r["failures"].items()]
    assert any(c == "client-3" and "NaN or Inf" in why for c, why in failures)
    assert all("client-3" not in r["shapley"] for r in history)
    assert history[-1]["val_loss"] < history[0]["val_loss"]
    assert all(r["shapley"] for r in history)


def _unregistered(federation):
    """A key pair that the operator has not registered."""
    root = federation.root
    subprocess.run([sys.executable, KEYPAIR, root / "unknown", root / "unknown.pub"], check=True)
    return "unknown"
