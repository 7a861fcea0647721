"""`flwr run` in Flower's real simulation with Ray, against the in-process grid."""

import re
from contextlib import suppress

import psutil
import pytest
from rich.console import Console

from experiments.flower import FlowerError
from experiments.progress import RoundProgress
from experiments.simulation import simulate
from tests.federation import directory_of, history_of, run


def ray(config):
    with RoundProgress(Console(quiet=True), config.num_rounds) as progress:
        simulate(config, progress)
    return directory_of(config)


def leftovers(before):
    """Processes of Flower or Ray that began during the test; Ray's agents rename themselves."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if process.pid not in before and re.search(r"flower|flwr|ray", command):
                found.append(command)
    return found


@pytest.fixture
def nothing_left():
    before = set(psutil.pids())
    yield
    assert leftovers(before) == []


@pytest.mark.usefixtures("nothing_left")
def test_ray_equals_the_in_process_grid(small, tmp_path):
    config = small.with_values(
        num_rounds=8, noise_sigma=0.1, straggler_fraction=0.5, clients_per_round=3
    )
    local = history_of(run(config.with_values(output_dir=str(tmp_path / "local"))))
    simulated = history_of(ray(config))
    assert [r["cohort"] for r in simulated] == [r["cohort"] for r in local]
    for ours, theirs in zip(local, simulated, strict=True):
        assert theirs["test_accuracy"] == pytest.approx(ours["test_accuracy"], abs=1e-4)
        assert theirs["val_loss"] == pytest.approx(ours["val_loss"], abs=1e-5)
        assert theirs["shapley"] == pytest.approx(ours["shapley"], abs=1e-5)


@pytest.mark.usefixtures("nothing_left")
def test_a_run_that_fails_inside_flower_fails_outside(small):
    """`flwr run` itself would return 0."""
    config = small.with_values(num_rounds=2, learning_rate=1e30)  # every update is NaN
    with pytest.raises(FlowerError, match=r"finished:failed.*returned a usable update"):
        ray(config)
