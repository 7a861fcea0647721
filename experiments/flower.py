"""Flower's `flwr` command: submit a run to a SuperLink, follow it, and know how it ended.

A run whose ServerApp died is submitted again, to go on from its checkpoint.

`flwr run` itself exits with 0 even when the run failed.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.config import RunConfig
from common.errors import RunFailedError
from experiments.progress import RoundProgress
from experiments.superlink import no_proxy, refused_proxies
from server_app.run_directory import SUMMARY, read_history

PROJECT = Path(__file__).resolve().parents[1]
LOST_AFTER_SECONDS = 120.0
#: A ServerApp that dies so often without a new round is not started again.
MAX_DEATHS = 3
_DIED = "No heartbeat received"  # Flower 1.42, a minute after the process has gone
_CONNECTION = "greedyfed"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class FlowerError(RunFailedError):
    """The run inside Flower failed, or Flower did not start."""

    def __init__(self, text: str) -> None:
        """Of what Flower says, which may be several lines, one is made."""
        super().__init__(" ".join(text.split()))


class ServerAppDiedError(FlowerError):
    """The ServerApp's process ended without a word; what it had saved is there."""


class Flwr:
    """The flwr command, bound to one SuperLink by a FLWR_HOME of its own."""

    def __init__(self, home: Path, address: str, ca_file: Path | None = None) -> None:
        """Connect to `address`; without the certificate of its CA, in plain text."""
        self._home = home
        trust = f'root-certificates = "{ca_file}"' if ca_file else "insecure = true"
        (home / "config.toml").write_text(
            f'[superlink.{_CONNECTION}]\naddress = "{address}"\n{trust}\n', encoding="utf-8"
        )

    def __call__(self, *command: str, options: tuple[str, ...] = ()) -> str:
        """What `flwr command… <this SuperLink> options…` prints."""
        done = subprocess.run(
            [str(bin_path("flwr")), *command, _CONNECTION, *options],
            env=environment(self._home),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.stdout or done.stderr

    def json(self, *command: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
        """The command's JSON answer; its exit code says nothing in this mode."""
        text = self(*command, options=(*options, "--format", "json"))
        try:
            answer: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError:
            return {"success": False, "error-message": text.strip()[-2000:]}
        return answer

    def submit(self, config: RunConfig, *options: str) -> str:
        """Start a run of this checkout's apps; returns its id in Flower.

        Raises:
            FlowerError: with Flower's reason to refuse it.
        """
        if not (PROJECT / "pyproject.toml").is_file():
            raise FlowerError(f"{PROJECT}: not a checkout of greedyfed; Flower needs its apps")
        run_config = self._home / "run.toml"
        lines = [f"{key} = {json.dumps(value)}" for key, value in config.to_flat().items()]
        run_config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        answer = self.json("run", str(PROJECT), options=("-c", str(run_config), *options))
        if not answer.get("success"):
            raise FlowerError(f"Flower refused the run: {answer.get('error-message', answer)}")
        return str(answer["run-id"])

    def train(
        self, config: RunConfig, directory: Path, progress: RoundProgress, **how: Any
    ) -> None:
        """Run a configuration to its end: submit it, follow it, and again when its ServerApp dies.

        Args:
            directory: where the run directory is seen from here.
            how: further arguments of `follow`.

        Raises:
            FlowerError: the run failed, or its ServerApp died MAX_DEATHS times without a new round.
        """
        deaths, done = 0, len(read_history(directory))
        while True:
            run_id = self.submit(config)
            progress.say("starting the ServerApp")
            try:
                return self.follow(run_id, directory, progress, **how)
            except ServerAppDiedError:
                before, done = done, len(read_history(directory))
                deaths = 1 if done > before else deaths + 1
                if deaths == MAX_DEATHS:
                    raise
                progress.say("the ServerApp died; going on from its last checkpoint")
                config = config.with_values(resume=True)
            except BaseException:
                self("stop", run_id)  # or it would hold the clients
                raise

    def follow(
        self,
        run_id: str,
        directory: Path,
        progress: RoundProgress,
        refresh: Callable[[], object] = lambda: None,
        status_every: float = 5.0,
    ) -> None:
        """Show rounds as they appear in the run directory, until Flower says that the run is over.

        Args:
            refresh: called before each look at a directory that is a copy.
            status_every: seconds between questions to Flower, each of which costs one of a core.

        Raises:
            FlowerError: it did not end well, or the SuperLink does not answer any more.
        """
        before = {record["round"] for record in read_history(directory)}
        shown, status = len(before), {"status": "unknown"}
        asked_at = heard_at = time.monotonic()
        while not status["status"].startswith("finished"):
            time.sleep(0.3)
            refresh()
            history = read_history(directory)
            for record in history[shown:]:
                progress.show(record)
            shown = max(shown, len(history))
            now, finished = time.monotonic(), (directory / SUMMARY).exists()
            if finished or now - asked_at >= status_every:
                answer = self.json("list", "--run-id", run_id)
                asked_at = time.monotonic()
                if answer.get("runs"):
                    status, heard_at = answer["runs"][0], asked_at
                elif asked_at - heard_at > LOST_AFTER_SECONDS:
                    raise FlowerError(f"the SuperLink does not answer: {answer}")
        refresh()
        if status["status"] != "finished:completed" or not (directory / SUMMARY).exists():
            log = directory.parent / f"flower-{run_id}.log"
            log.write_text(_COLOUR.sub("", self("log", run_id, options=("--show",))), "utf-8")
            details = " ".join(str(status.get("status-details", "")).split())
            kind = ServerAppDiedError if _DIED in details else FlowerError
            raise kind(
                f"the run inside Flower ended as {status['status']}: {details}; its log: {log}"
            )


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's commands, which start one another by name.

    They reach one another on this machine past all proxies. Those that they would not even start
    with are left out; `check_superlink` has refused them for any other machine.
    """
    refused = refused_proxies()
    kept = {name: value for name, value in os.environ.items() if name not in refused}
    return kept | {
        "no_proxy": no_proxy(),
        "NO_PROXY": no_proxy(),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        # Flower's processes work in another folder than the caller.
        "PYTHONPATH": os.pathsep.join(
            os.path.abspath(entry)
            for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
            if entry
        ),
        "PATH": f"{bin_path('')}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def bin_path(name: str) -> Path:
    """A command of the environment that this Python belongs to."""
    return Path(sys.executable).parent / name


def tail(text: str) -> str:
    """The last lines of a log."""
    return "\n".join(text.rstrip().splitlines()[-15:])
