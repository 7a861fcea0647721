"""A run on disk: what is written survives a crash at any moment, and a run can go on from it."""

import fcntl
import json
import os
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from common.config import RunConfig
from common.errors import GreedyfedError
from server_app.state import ClientStats, RoundRecord, ServerState

#: The state is written at most this often, so that fast rounds do not wait for the disk. Rounds
#: lost to a kill are computed again, with the same result.
SAVE_EVERY_SECONDS = 1.0
CONFIG, HISTORY, STATE = "config.json", "history.jsonl", "state.safetensors"
MODEL, SUMMARY = "model.safetensors", "summary.json"


class RunDirectoryError(GreedyfedError):
    """The run directory cannot be used as asked."""


class RunDirectory:
    """`<output-dir>/<run_id>/`, held by one process at a time.

    `summary.json` is written last: a run that has one is complete.
    """

    def __init__(self, config: RunConfig) -> None:
        """Create or reopen the directory of a configuration.

        Raises:
            RunDirectoryError: it holds a run and `resume` is off, another process writes to it, or
                it cannot be written.
        """
        self.path = Path(config.output_dir).resolve() / config.run_id
        self._saved_at = 0.0
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / ".lock", "w")  # noqa: SIM115  held until close
        except OSError as error:
            raise RunDirectoryError(
                f"output-dir = {config.output_dir!r}: cannot be written: {error}; "
                "give a folder that can"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise RunDirectoryError(
                f"{self.path}: another process is at this run; wait for it or stop it"
            ) from error
        if (self.path / STATE).exists() and not config.resume:
            state = "a finished run" if self.is_complete else "an unfinished run"
            self.close()
            raise RunDirectoryError(
                f"{self.path}: holds {state} of this configuration; set resume = true to continue "
                "it, or give another output-dir, or delete it"
            )
        about = {"run-id": config.run_id, "config": config.to_flat(), "versions": _versions()}
        self.write(CONFIG, (json.dumps(about, indent=2) + "\n").encode())

    @property
    def is_complete(self) -> bool:
        return (self.path / SUMMARY).exists()

    def load(self) -> ServerState | None:
        """The last saved state, or None for a new run; history is cut to its round.

        Raises:
            RunDirectoryError: a state that cannot be read.
        """
        state = None
        try:
            if (self.path / STATE).exists():
                state = _read_state(self.path / STATE)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise RunDirectoryError(
                f"{self.path / STATE}: cannot be read: {error}; delete the folder to start anew"
            ) from error
        done = state.round if state else 0
        lines = [json.dumps(r) for r in read_history(self.path) if r["round"] <= done]
        self.write(HISTORY, "".join(line + "\n" for line in lines).encode())
        self._history = open(self.path / HISTORY, "a")  # noqa: SIM115  held until close
        return state

    def record(self, record: RoundRecord, state: ServerState) -> None:
        """Append a round's record; save the state when it is time to."""
        self._history.write(json.dumps(record.to_json()) + "\n")
        self._history.flush()
        if time.monotonic() - self._saved_at >= SAVE_EVERY_SECONDS:
            self.save(state)

    def save(self, state: ServerState) -> None:
        """Write the state, after the history that belongs to it."""
        os.fsync(self._history.fileno())
        self.write(STATE, _state_bytes(state))
        self._saved_at = time.monotonic()

    def write(self, name: str, content: bytes) -> None:
        """Replace a file at once: readers see the old content or the new, never a part."""
        partial = self.path / f".{name}.partial"
        try:
            with open(partial, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self.path / name)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Give the directory free."""
        if hasattr(self, "_history"):
            self._history.close()
        self._lock.close()


def read_history(path: Path) -> list[dict[str, Any]]:
    """The records of history.jsonl in a run directory; a last line cut short is left out."""
    records = []
    if (path / HISTORY).exists():
        for line in (path / HISTORY).read_text().splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return records


def _state_bytes(state: ServerState) -> bytes:
    stats = state.stats
    arrays: dict[str, NDArray[Any]] = {
        "params": state.params,
        "value": stats.value,
        "count": stats.count,
        "num_examples": stats.num_examples,
        "failures": stats.failures,
        "retry_round": stats.retry_round,
    }
    about = {"round": state.round, "val_loss": state.val_loss, "client_ids": stats.client_ids}
    # One metadata entry: safetensors writes several in a random order, and equal states should be
    # equal files.
    return save(arrays, metadata={"about": json.dumps(about)})


def _read_state(path: Path) -> ServerState:
    with safe_open(path, framework="numpy") as file:
        about = json.loads(file.metadata()["about"])
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dict
    params = arrays.pop("params")
    stats = ClientStats(tuple(about["client_ids"]), **arrays)
    return ServerState(about["round"], params, stats, about["val_loss"])


def _versions() -> dict[str, str]:
    found = {}
    for package in ("greedyfed", "flwr", "torch", "torchvision", "numpy", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
