"""Shared fixtures, and the public data sets where they are at hand."""

import logging
import os
from pathlib import Path

import pytest

from common.config import RunConfig
from experiments.cluster import Cluster, no_engine
from experiments.local_grid import identify_process
from experiments.simulation import free_port
from tests.browser import chromium, executable
from tests.containers import PROJECT

DATA = Path(os.environ.get("GREEDYFED_DATA", Path(__file__).parents[2] / "shared" / "data"))
#: Set by .ci/run: tests of the public data sets must run, not be skipped.
REQUIRED = os.environ.get("GREEDYFED_REQUIRE_DATA") == "1"


@pytest.fixture(scope="session")
def data_dir() -> str:
    """Folder of MNIST, FashionMNIST and cifar10.zip; a clone of the project has none."""
    if not DATA.is_dir():
        message = f"needs MNIST, FashionMNIST and cifar10.zip in {DATA} (or $GREEDYFED_DATA)"
        if REQUIRED:
            pytest.fail(message)
        pytest.skip(message)
    return str(DATA)


@pytest.fixture(scope="session")
def cluster():
    """docker-compose.yml, built and up."""
    if why_not := no_engine():
        if os.environ.get("GREEDYFED_REQUIRE_DOCKER") == "1":
            pytest.fail(why_not)
        pytest.skip(why_not)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPOSE_PROJECT_NAME", PROJECT)
        patch.setenv("CONTROL_PORT", str(free_port()))
        cluster = Cluster()
        try:
            cluster.up()
            yield cluster
        finally:
            cluster("down", "--volumes", "--remove-orphans")


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium. A test of it is skipped where there is none, but not in CI."""
    if not executable():
        message = "needs Chromium (Debian: apt-get install chromium)"
        if os.environ.get("GREEDYFED_REQUIRE_BROWSER") == "1":
            pytest.fail(message)
        pytest.skip(message)
    with chromium() as browser:
        yield browser


@pytest.fixture(autouse=True)
def _process_identity():
    """Flower makes no Message in a process without one."""
    identify_process()


@pytest.fixture
def told(caplog, monkeypatch):
    """What a run says."""
    log = logging.getLogger("greedyfed")
    monkeypatch.setattr(log, "propagate", False)  # or each line may come twice
    log.addHandler(caplog.handler)
    caplog.set_level(logging.INFO, "greedyfed")
    yield caplog
    log.removeHandler(caplog.handler)


@pytest.fixture
def dead_proxies(monkeypatch):
    """An environment whose proxies do not answer."""
    for scheme in ("http", "https", "all"):
        for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper()):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def small(tmp_path) -> RunConfig:
    """A run of seconds: 6 clients with digits, 2 a round, 6 rounds."""
    return RunConfig.from_flat(
        {
            "num-clients": 6,
            "clients-per-round": 2,
            "num-rounds": 6,
            "learning-rate": 0.1,
            "output-dir": str(tmp_path / "runs"),
        }
    )
