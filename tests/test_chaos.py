"""Fifty rounds in which something is killed all the time; `make test-chaos`, half an hour.

Killed at random, from a seed: SuperNodes, ClientApps, the ServerApp, its executor, the SuperLink.
What supervises the processes starts them anew, and `greedyfed run` submits the run anew.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from client_app.app import app as client_app
from common.config import RunConfig
from experiments.local_grid import run_in_process
from experiments.loopback import Federation
from experiments.partition_files import write_partition
from server_app.app import app as server_app
from server_app.events import read_events
from server_app.run_directory import STATE, read_history
from server_app.state_file import read_state
from tests.federation import directory_of

pytestmark = pytest.mark.chaos
N, ROUNDS = 5, int(os.environ.get("GREEDYFED_CHAOS_ROUNDS", "50"))
SEED = int(os.environ.get("GREEDYFED_CHAOS_SEED", "0"))
SECONDS_BETWEEN_KILLS, MOST_SECONDS = 25.0, 90 * 60.0


@pytest.fixture
def files(tmp_path):
    config = RunConfig.from_flat({"num-clients": N, "dirichlet-alpha": 10.0})
    list(write_partition(config, tmp_path / "data", overwrite=False))
    return tmp_path / "data"


def test_fifty_rounds_of_random_kills(files, tmp_path):
    node_configs = {
        f"client-{i}": {"client-id": f"client-{i}", "data-path": f"{files}/client-{i}.npz"}
        for i in range(N)
    }
    config = RunConfig.from_flat(
        {
            "dataset": "own",
            "data-dir": f"{files}/server.npz",
            "output-dir": str(tmp_path / "runs"),
            "num-rounds": ROUNDS,
            "learning-rate": 0.1,
            "clients-per-round": 2,
            "round-deadline": 30.0,
        }
    )
    (tmp_path / "runs").mkdir()
    texts = {c: " ".join(f'{k}="{v}"' for k, v in n.items()) for c, n in node_configs.items()}
    with Federation(tmp_path / "federation") as federation:
        federation.start(texts)
        kills = _run_with_kills(federation, config, tmp_path / "run.log")
    print(f"killed: {dict(kills)}")
    path = directory_of(config)
    history, events = read_history(path), read_events(path)
    assert [record["round"] for record in history] == list(range(1, ROUNDS + 1))
    assert sum(kills.values()) >= ROUNDS / 4
    # Every client that answered in a round of history was counted once, and no other.
    counted = Counter(c for r in history for c in r["shapley"])
    stats = read_state(path / STATE).stats
    assert dict(zip(stats.client_ids, stats.count.tolist(), strict=True)) == dict(counted)
    asked = Counter(c for e in events if e["event"] == "asked" for c in e["clients"])
    assert all(asked[c] >= n for c, n in counted.items())
    quiet = config.with_values(output_dir=str(tmp_path / "quiet"))
    run_in_process(server_app, client_app, quiet.to_flat(), list(node_configs.values()))
    expected = read_history(directory_of(quiet))[-1]["test_accuracy"]
    print(f"test accuracy {history[-1]['test_accuracy']:.4f}, of the quiet run {expected:.4f}")
    assert abs(history[-1]["test_accuracy"] - expected) <= 0.02


def _run_with_kills(federation, config, log):
    """The run to its end; returns how often what was killed."""
    keys = log.with_suffix(".toml")
    keys.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in config.to_flat().items()))
    command = [sys.executable, "-m", "experiments.cli", "run", "--config", str(keys)]
    command += ["--superlink", federation.address]
    command += ["--root-certificates", str(federation.root / "ca.crt")]
    rng, kills = random.Random(SEED), Counter()
    victims = [
        *(f"client-{i}" for i in range(N)),
        "clientapp",
        "serverapp",
        "executor",
        "superlink",
    ]
    weights = [1] * N + [5, 3, 1, 2]
    started = time.monotonic()
    next_kill = started + rng.expovariate(1 / SECONDS_BETWEEN_KILLS)
    with open(log, "wb") as out:
        run = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            while run.poll() is None:
                assert time.monotonic() - started < MOST_SECONDS, log.read_text()
                time.sleep(1)
                if time.monotonic() >= next_kill:
                    victim = rng.choices(victims, weights)[0]
                    if _kill(federation, victim):
                        kills[victim] += 1
                    next_kill = time.monotonic() + rng.expovariate(1 / SECONDS_BETWEEN_KILLS)
                else:
                    federation.revive()
        finally:
            run.kill()
    print(log.read_text())
    assert run.returncode == 0
    return kills


def _kill(federation, victim):
    """Whether there was something to kill."""
    if victim in federation.processes:
        federation.crash(victim)
        return True
    if victim == "serverapp":
        pids = federation.apps("flwr-serverapp", of="executor")
    else:
        pids = [p for i in range(N) for p in federation.apps("flwr-clientapp", of=f"client-{i}")]
    for pid in pids[:1]:
        os.kill(pid, signal.SIGKILL)
    return bool(pids)
