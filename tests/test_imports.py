"""The imports go one way, and a client's process loads no more than it needs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    path.relative_to(ROOT)
    for package in ("common", "client_app", "server_app", "experiments", "greedyfed", "benchmarks")
    for path in (ROOT / package).rglob("*.py")
)
OURS = {"common", "client_app", "server_app", "experiments", "greedyfed", "benchmarks", "tests"}
MAY_IMPORT = {
    "common": {"common"},
    "client_app": {"common", "client_app"},
    "server_app": {"common", "server_app"},
    "experiments": {"common", "client_app", "server_app", "experiments"},
    "greedyfed": {"common", "experiments", "greedyfed"},
    "benchmarks": OURS - {"tests"},
}
MAY_USE_FLOWER = {
    "common/fields.py",
    "common/task.py",
    "common/wire.py",
    "client_app/app.py",
    "server_app/app.py",
    "server_app/paced_grid.py",
    "server_app/registry.py",
    "server_app/strategy.py",
    "experiments/local_grid.py",
}
NUMPY_ONLY = {
    "common/partition.py",
    "common/heterogeneity.py",
    "common/seeding.py",
    "server_app/selection.py",
    "server_app/state.py",
    "server_app/coalitions.py",
    "server_app/coverage.py",
    "server_app/kriging.py",
    "server_app/permutations.py",
    "server_app/valuation.py",
}
STANDARD = sys.stdlib_module_names


def imported(path):
    """Top-level names that a module imports, inside functions too."""
    names = set()
    for element in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(element, ast.Import):
            names |= {alias.name.split(".")[0] for alias in element.names}
        elif isinstance(element, ast.ImportFrom) and element.module:
            assert element.level == 0, f"{path}: relative import"
            names.add(element.module.split(".")[0])
    return names


def test_there_are_modules():
    assert len(MODULES) > 25


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_import_rules(path):
    names = imported(path)
    assert names & OURS <= MAY_IMPORT[path.parts[0]]
    if str(path) not in MAY_USE_FLOWER and path.parts[0] != "benchmarks":
        assert "flwr" not in names
    if str(path) in NUMPY_ONLY:
        assert names - STANDARD - OURS <= {"numpy"}


def test_a_client_process_loads_no_library_it_does_not_use():
    code = "import sys, client_app.app; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(done.stdout.split())
    libraries = {"torchvision", "ray", "sklearn", "pandas", "pyarrow", "PIL"}
    libraries |= {"tensorboard", "mlflow"}
    assert not loaded & (libraries | {"server_app", "experiments"})


def test_local_sgd_does_not_load_the_compiler():
    """torch.optim does: more than a second for each message to a client of a deployment."""
    code = """
import sys
import numpy as np
import torch
from common.config import TrainingConfig
from common.datasets import Dataset
from common.training import local_sgd

data = Dataset(torch.zeros(10, 3), torch.zeros(10, dtype=torch.int64))
local_sgd(torch.nn.Linear(3, 2), data, TrainingConfig(), 1, np.random.default_rng(0))
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
