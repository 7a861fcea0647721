"""One `flwr run` in Flower's Ray simulation, on a SuperLink of its own.

`flwr run` alone would start a SuperLink that stays, whose clients import whatever code lies in the
folder of the first run ever made with it, and would exit with 0 even when the run failed.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from common.config import RunConfig
from common.errors import GreedyfedError
from experiments.progress import RoundProgress
from server_app.run_directory import SUMMARY, read_history

PROJECT = Path(__file__).resolve().parents[1]
START_SECONDS, STATUS_EVERY_SECONDS = 60.0, 5.0


class SimulationError(GreedyfedError):
    """The run inside Flower failed, or Flower did not start."""


def simulate(config: RunConfig, progress: RoundProgress) -> None:
    """Run a configuration with N simulated nodes, and wait for its end.

    Raises:
        SimulationError: with what Flower says of the run's end.
    """
    if not (PROJECT / "pyproject.toml").is_file():
        raise SimulationError(f"{PROJECT}: not a checkout of greedyfed; `--ray` needs its app")
    directory = Path(config.output_dir) / config.run_id
    with tempfile.TemporaryDirectory(prefix="greedyfed-", ignore_cleanup_errors=True) as home:
        progress.say("starting Flower's SuperLink")
        with _superlink(Path(home)) as flwr:
            _follow(flwr, _submit(flwr, config, Path(home)), directory, progress)


class _Flwr:
    """The flwr command, bound to one SuperLink."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env

    def __call__(self, *arguments: str) -> str:
        command = [str(_bin("flwr")), *arguments]
        done = subprocess.run(
            command, env=self._env, capture_output=True, text=True, check=False, timeout=120
        )
        return done.stdout or done.stderr

    def json(self, *arguments: str) -> dict[str, Any]:
        """The command's JSON answer; its exit code says nothing in this mode."""
        text = self(*arguments, "--format", "json")
        try:
            answer: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError:
            return {"success": False, "error-message": text.strip()[-2000:]}
        return answer


def _bin(name: str) -> Path:
    return Path(sys.executable).parent / name


@contextmanager
def _superlink(home: Path) -> Iterator[_Flwr]:
    """A SuperLink on a free port in a neutral folder; all its processes end with the block."""
    port = _free_port()
    env = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{_bin('')}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    (home / "cwd").mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "sim"\n\n[superlink.sim]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n"
    )
    command = [str(_bin("flower-superlink")), "--insecure", "--simulation", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--disable-runtime-dependency-installation"]
    with open(home / "superlink.log", "w") as log:
        process = subprocess.Popen(
            command,
            cwd=home / "cwd",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for_health(process, port, home / "superlink.log")
        yield _Flwr(env)
    finally:
        _end_all(home)
        process.wait(10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for_health(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SimulationError(f"Flower's SuperLink did not start:\n{_tail(log.read_text())}")


def _submit(flwr: _Flwr, config: RunConfig, home: Path) -> str:
    run_config = home / "run.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in config.to_flat().items()]
    run_config.write_text("\n".join(lines) + "\n")
    federation = (
        f"num-supernodes={config.data.num_clients} client-resources-num-cpus=1 "
        f"init-args-num-cpus={os.cpu_count() or 1} init-args-log-to-driver=false"
    )
    answer = flwr.json(
        "run", str(PROJECT), "sim", "-c", str(run_config), "--federation-config", federation
    )
    if not answer.get("success"):
        raise SimulationError(f"Flower refused the run: {answer.get('error-message', answer)}")
    return str(answer["run-id"])


def _follow(flwr: _Flwr, run_id: str, directory: Path, progress: RoundProgress) -> None:
    """Show rounds as they appear on disk, until Flower says that the run has finished."""
    progress.say("starting Ray and the clients")
    before = {record["round"] for record in read_history(directory)}
    shown, asked_at, status = len(before), time.monotonic(), {"status": "unknown"}
    while not status["status"].startswith("finished"):
        time.sleep(0.3)
        history = read_history(directory)
        for record in history[shown:]:
            progress.show(record)
        shown = max(shown, len(history))
        finished = (directory / SUMMARY).exists()
        if finished or time.monotonic() - asked_at >= STATUS_EVERY_SECONDS:
            runs = flwr.json("list", "--run-id", run_id, "sim").get("runs")
            status, asked_at = runs[0] if runs else status, time.monotonic()
    if status["status"] != "finished:completed" or not (directory / SUMMARY).exists():
        log = _tail(flwr("log", run_id, "sim", "--show"))
        raise SimulationError(
            f"the run inside Flower ended as {status['status']}: "
            f"{status.get('status-details', '')}\n{log}"
        )


def _tail(text: str) -> str:
    return "\n".join(text.rstrip().splitlines()[-15:])


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
