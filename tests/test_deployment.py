"""A real federation of processes, in which any of them may fail.

Takes minutes, as each message to a client starts a process; `make test-deployment` runs it.
"""

import subprocess
import sys
import time

import pytest

from client_app.app import app as client_app
from common.config import RunConfig
from experiments.local_grid import run_in_process
from experiments.loopback import Federation, wait_for
from experiments.partition_files import write_partition
from server_app.app import app as server_app
from tests import kill_in_aggregation
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
    with Federation(tmp_path / "federation") as made:
        yield made


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


def rounds(config):
    path = directory_of(config) / "history.jsonl"
    return history_of(directory_of(config)) if path.exists() else []


def wait_for_round(config, number):
    wait_for(lambda: len(rounds(config)) >= number, ROUND_SECONDS * number, f"round {number}")


def numbers(history):
    return [{k: v for k, v in r.items() if k not in ("seconds", "bytes")} for r in history]


def test_a_serverapp_killed_in_an_aggregation_resumes_to_the_same_model(
    federation, files, tmp_path
):
    """Bitwise the model of an unbroken run in one process on the same files."""
    federation.start({f"client-{i}": node_config(files, i) for i in range(N)})
    config = own(files, tmp_path, num_rounds=5)
    run_id = federation.flwr.submit(config)
    killer = [
        sys.executable,
        kill_in_aggregation.__file__,
        directory_of(config),
        federation.address,
    ]
    subprocess.run(killer, check=True)
    assert federation.wait_for_end(run_id, 120) == "finished:failed"
    before = rounds(config)
    run_id = federation.flwr.submit(config.with_values(resume=True))
    assert federation.wait_for_end(run_id, 5 * ROUND_SECONDS) == "finished:completed"
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
    nodes = {f"client-{i}": node_config(files, i) for i in range(N)}
    nodes["client-3"] += " noise-sigma=1e60"  # beyond what float32 holds
    federation.start(nodes)
    federation.make_ca("foreign")
    federation.make_key("unknown")
    federation.start_node("stranger", node_config(files, 0), key="unknown")
    federation.start_node("misled", node_config(files, 0), key="client-0", ca="foreign")
    for name in ("stranger", "misled"):  # refused: the process ends
        wait_for(lambda name=name: federation.processes[name].poll() is not None, 60, name)
    config = own(files, tmp_path, num_rounds=7, algorithm="fedavg", valuation="gtg")
    run_id = federation.flwr.submit(config)
    wait_for_round(config, 1)
    federation.kill("client-1")
    wait_for_round(config, 2)
    federation.kill("superlink")
    time.sleep(5)
    federation.start_superlink()
    wait_for_round(config, 3)
    federation.start_node("client-1", node_config(files, 1))
    assert federation.wait_for_end(run_id, 7 * ROUND_SECONDS) == "finished:completed"
    history = rounds(config)
    assert [r["round"] for r in history] == list(range(1, 8))
    failures = [(c, why) for r in history for c, why in r["failures"].items()]
    assert any(c == "client-3" and "NaN or Inf" in why for c, why in failures)
    assert all("client-3" not in r["shapley"] for r in history)
    assert history[-1]["val_loss"] < history[0]["val_loss"]
    assert all(r["shapley"] for r in history)
