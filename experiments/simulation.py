"""One `flwr run` in Flower's Ray simulation, on a SuperLink of its own.

`flwr run` alone would start a SuperLink that stays, and whose clients import whatever code lies in
the folder of the first run ever made with it.
"""

import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from common.config import RunConfig
from experiments.flower import PROJECT, FlowerError, Flwr, bin_path, environment, tail
from experiments.progress import RoundProgress
from experiments.superlink import ask_health

START_SECONDS = 60.0


def simulate(config: RunConfig, progress: RoundProgress) -> None:
    """Run a configuration with N simulated nodes, and wait for its end.

    Raises:
        FlowerError: with what Flower says of the run's end.
    """
    directory = Path(config.output_dir) / config.run_id
    federation = (
        f"num-supernodes={config.data.num_clients} client-resources-num-cpus=1 "
        f"init-args-num-cpus={os.cpu_count() or 1} init-args-log-to-driver=false"
    )
    with tempfile.TemporaryDirectory(prefix="greedyfed-", ignore_cleanup_errors=True) as home:
        progress.say("starting Flower's SuperLink")
        with _superlink(Path(home)) as flwr:
            run_id = flwr.submit(config, "--federation-config", federation)
            progress.say("starting Ray and the clients")
            flwr.follow(run_id, directory, progress)


@contextmanager
def _superlink(home: Path) -> Iterator[Flwr]:
    """A SuperLink on a free port in a neutral folder; all its processes end with the block."""
    port = free_port()
    (home / "cwd").mkdir()
    command = [str(bin_path("flower-superlink")), "--insecure", "--simulation"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--disable-runtime-dependency-installation"]
    with open(home / "superlink.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            cwd=home / "cwd",
            env=environment(home) | {"RAY_USAGE_STATS_ENABLED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    guard = [sys.executable, "-m", "experiments.simulation", str(os.getpid()), str(home)]
    subprocess.Popen(
        guard,
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for_health(process, port, home / "superlink.log")
        yield Flwr(home, f"127.0.0.1:{port}")
    finally:
        _end_all(home)
        process.wait(10)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for_health(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            return ask_health(f"127.0.0.1:{port}", 2)
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)
    raise FlowerError(f"Flower's SuperLink did not start: {tail(log.read_text(encoding='utf-8'))}")


def _end_all(home: Path) -> None:
    """End every process that was started for this FLWR_HOME, and their children.

    Ray's processes leave the SuperLink's process group, and its agents overwrite their environment.
    """
    ours = set[psutil.Process]()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("FLWR_HOME") == str(home):
                ours |= {process, *process.children(recursive=True)}
    for process in ours:
        with suppress(psutil.Error):
            process.terminate()
    for process in psutil.wait_procs(ours, timeout=5)[1]:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(ours, timeout=5)


def _guard(parent: int, home: Path) -> None:
    """Wait for the parent's end; when it was killed, end what it started and could not end."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(parent)
        while home.exists() and process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.5)
    if home.exists():
        _end_all(home)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    _guard(int(sys.argv[1]), Path(sys.argv[2]))
