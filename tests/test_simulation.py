"""`flwr run` in Flower's real simulation with Ray, against the in-process grid."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from rich.console import Console

from experiments.flower import FlowerError
from experiments.progress import RoundProgress
from experiments.simulation import simulate
from tests.federation import directory_of, history_of, run

PR_SET_CHILD_SUBREAPER = 36


def ray(config):
    with RoundProgress(Console(quiet=True), config.num_rounds) as progress:
        simulate(config, progress)
    return directory_of(config)


@pytest.fixture
def nothing_left():
    """The test's processes end with it; orphans become this process's children, and are seen."""
    if not sys.platform.startswith("linux"):
        pytest.skip("needs Linux's subreaper to see orphaned processes")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    before = set(psutil.Process().children(recursive=True))
    yield
    deadline = time.monotonic() + 10  # the guard looks once more when its parent's run has ended
    while left := [
        p
        for p in set(psutil.Process().children(recursive=True)) - before
        if p.status() != psutil.STATUS_ZOMBIE and "experiments.simulation" not in p.cmdline()
    ]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


@pytest.mark.usefixtures("nothing_left", "dead_proxies")
@pytest.mark.parametrize(("algorithm", "before"), [("greedyfed", 0), ("greedyfed-classes", 3)])
def test_ray_equals_the_in_process_grid(small, tmp_path, algorithm, before):
    """Also behind proxies, which know no way to this machine, and after rounds of a shorter run."""
    config = small.with_values(
        algorithm=algorithm,
        num_rounds=8,
        noise_sigma=0.1,
        straggler_fraction=0.5,
        clients_per_round=3,
    )
    local = history_of(run(config.with_values(output_dir=str(tmp_path / "local"))))
    if before:
        run(config.with_values(num_rounds=before))
    directory = ray(config.with_values(loggers="tensorboard", resume=before > 0))
    simulated = history_of(directory)
    assert list((directory / "tensorboard").iterdir())
    assert [r["cohort"] for r in simulated] == [r["cohort"] for r in local]
    for ours, theirs in zip(local, simulated, strict=True):
        assert theirs["test_accuracy"] == pytest.approx(ours["test_accuracy"], abs=1e-4)
        assert theirs["val_loss"] == pytest.approx(ours["val_loss"], abs=1e-5)
        assert theirs["shapley"] == pytest.approx(ours["shapley"], abs=1e-5)
        # Who goes on from another run asks all clients anew who they are.
        assert (theirs["bytes"] == ours["bytes"]) == (not before or ours["round"] != before + 1)
        assert theirs["class_losses"] == pytest.approx(ours["class_losses"], abs=1e-5)


@pytest.mark.usefixtures("nothing_left")
def test_a_run_that_fails_inside_flower_fails_outside(small):
    """`flwr run` itself would return 0."""
    config = small.with_values(num_rounds=2, learning_rate=1e30)  # every update is NaN
    with pytest.raises(FlowerError, match=r"finished:failed.*returned a usable update"):
        ray(config)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_command_leaves_nothing_running_and_resumes(small, sign):
    config = small.with_values(num_rounds=100_000)
    changes = [
        f"-c{k}={json.dumps(v)}" for k, v in config.to_flat().items() if k != "resume" and v != ""
    ]
    command = [sys.executable, "-m", "experiments.cli", "run", "--ray", *changes]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    history = directory_of(config) / "history.jsonl"
    deadline = time.monotonic() + 120
    while not history.exists() or history.read_bytes().count(b"\n") < 5:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(process.pid, sign)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (-9 if sign == signal.SIGKILL else 143)
    assert sign == signal.SIGKILL or b"go on with --resume" in errors
