"""A run on disk: what is written survives a crash at any moment, and a run can go on from it."""

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from common.config import RunConfig
from common.errors import GreedyfedError, RunFailedError
from server_app.events import EVENTS, parsed
from server_app.state import RoundRecord, ServerState
from server_app.state_file import read_state, state_bytes
from server_app.versions import current_versions, recorded_versions

log = logging.getLogger("greedyfed")
#: The state is written at most this often, so that fast rounds do not wait for the disk. Rounds
#: lost to a kill are computed again, with the same result.
SAVE_EVERY_SECONDS = 1.0
CONFIG, HISTORY, STATE = "config.json", "history.jsonl", "state.safetensors"
MODEL, SUMMARY = "model.safetensors", "summary.json"


class RunDirectoryError(GreedyfedError):
    """The run directory cannot be used as asked."""


class SaveError(RunFailedError):
    """The run directory can no longer be written."""


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
        self._config, self._saved_at = config, 0.0
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / ".lock", "a+", encoding="utf-8")  # noqa: SIM115  held until close
        except OSError as error:
            raise RunDirectoryError(
                f"output-dir = {config.output_dir!r}: cannot be written: {error}; "
                "give a folder that can"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            owner = (self.path / ".lock").read_text(encoding="utf-8") or "?"
            raise RunDirectoryError(
                f"{self.path}: another process ({owner}) is at this run; wait for it or stop it"
            ) from error
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        try:
            self._check(config)
        except RunDirectoryError:
            self.close()
            raise
        self.describe(recorded_versions(self.path / CONFIG))

    def _check(self, config: RunConfig) -> None:
        """Raises RunDirectoryError where its run is not to be gone on with, or cannot be."""
        has_state, is_complete = (self.path / STATE).exists(), self.is_complete
        lost = "" if has_state or is_complete else self._lost()
        if not config.resume and (has_state or is_complete or lost):
            state, remedy = "an unfinished run", "set resume = true (--resume) to continue it, or "
            if is_complete:
                state, remedy = "a finished run", ""
            raise RunDirectoryError(
                f"{self.path}: holds {state} of this configuration; {remedy}give another "
                "output-dir, or delete the folder"
            )
        if lost:
            raise RunDirectoryError(
                f"{self.path / STATE}: is missing, and {lost}; restore it, or delete the folder to "
                "start anew"
            )
        self._compare_with(config)

    def _lost(self) -> str:
        """What tells, where there is no state, that there was one: it is written before history."""
        if done := len(_rounds_of(self.path)):
            return f"{HISTORY} has {done} round{'s' * (done > 1)}"
        return f"{SUMMARY} says that the run is complete" if self._has_summary else ""

    def describe(self, begun: dict[str, str]) -> None:
        """Write config.json, unless the run is complete, with the versions it was begun by, if any.

        Tells where those are others than now.
        """
        now = current_versions()
        begun = begun or now
        for package, is_now in now.items():
            if (was := begun.get(package, is_now)) != is_now:
                log.warning("%s was %s, is now %s: numbers may differ", package, was, is_now)
        versions = {"versions": begun} | ({"resumed-with": now} if begun != now else {})
        about = {"run-id": self._config.run_id, "config": self._config.to_flat()} | versions
        if not self.is_complete:
            self.write(CONFIG, (json.dumps(about, indent=2) + "\n").encode())

    def _compare_with(self, config: RunConfig) -> None:
        """Raises RunDirectoryError: a default is another one in this version, so is the run."""
        try:
            flat = json.loads((self.path / CONFIG).read_text(encoding="utf-8"))["config"]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if changed := config.differences(flat):
            key, was, default = changed[0]
            raise RunDirectoryError(
                f"{self.path}: was begun with {key} = {was!r}, now {key} = {default!r} by a "
                f"default of another version; set {key}, or give another output-dir"
            )

    @property
    def is_complete(self) -> bool:
        """Whether the run has ended.

        Its summary says so, and its model is there, or as little as its state: then both were
        deleted to save space, and the history must be whole. A lost model alone is written again.

        Raises:
            RunDirectoryError: a history without a state that cannot be read.
        """
        if not self._has_summary:
            return False
        if (self.path / STATE).exists():
            return (self.path / MODEL).exists()
        return _rounds_of(self.path) == list(range(1, self._config.num_rounds + 1))

    @property
    def _has_summary(self) -> bool:
        try:
            about = json.loads((self.path / SUMMARY).read_text(encoding="utf-8"))
            return bool(about["status"] == "complete")
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def load(self, check: Callable[[ServerState], None] = lambda state: None) -> ServerState | None:
        """The last saved state, or None for a new run; history is cut to its round.

        A complete run stays as it is, and may be without its state: None too.

        Raises:
            RunDirectoryError: a state that cannot be read. Nothing is written then, nor if `check`,
                which gets the state, raises.
        """
        state, history = read_checkpoint(self.path)
        if state:
            check(state)
        if self.is_complete:
            return state
        self.write(HISTORY, "".join(json.dumps(record) + "\n" for record in history).encode())
        with self._saving(EVENTS):
            self._history = open(self.path / HISTORY, "a", encoding="utf-8")  # noqa: SIM115  held until close
            self._events = open(self.path / EVENTS, "a", encoding="utf-8")  # noqa: SIM115  held until close
            self._events.write("\n")  # what follows is not part of a line cut short
        return state

    def note(self, event: dict[str, Any]) -> None:
        """Append an event. Events are never taken back, so they also tell of rounds begun anew."""
        with self._saving(EVENTS):
            self._events.write(json.dumps({"time": round(time.time(), 3)} | event) + "\n")
            self._events.flush()

    def record(self, record: RoundRecord, state: ServerState) -> None:
        """Append a round's record; save the state when it is time to."""
        with self._saving(HISTORY):
            self._history.write(json.dumps(record.to_json()) + "\n")
            self._history.flush()
        if time.monotonic() - self._saved_at >= SAVE_EVERY_SECONDS:
            self.save(state)

    def save(self, state: ServerState) -> None:
        """Write the state, after the history that belongs to it."""
        with self._saving(HISTORY):
            os.fsync(self._history.fileno())
        self.write(STATE, state_bytes(state))
        self._saved_at = time.monotonic()

    def write(self, name: str, content: bytes) -> None:
        """Replace a file at once: readers see the old content or the new, never a part."""
        partial = self.path / f".{name}.partial"
        with self._saving(name):
            try:
                with open(partial, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(partial, self.path / name)
            finally:
                partial.unlink(missing_ok=True)

    @contextmanager
    def _saving(self, name: str) -> Iterator[None]:
        """Say what could not be saved, and where; raises SaveError."""
        try:
            yield
        except OSError as error:
            raise SaveError(
                f"{self.path / name}: cannot be written: {error.strerror}; free space or mend the "
                "folder, then continue what was saved with --resume"
            ) from error

    def close(self) -> None:
        """Give the directory free."""
        for name in ("_history", "_events"):
            with suppress(OSError):  # a full disk: what is still buffered is lost, and was reported
                if hasattr(self, name):
                    getattr(self, name).close()
        self._lock.truncate(0)
        self._lock.close()


def read_checkpoint(path: Path) -> tuple[ServerState | None, list[dict[str, Any]]]:
    """The last state saved in a run directory, or None, and the history up to its round.

    Raises:
        RunDirectoryError: one of them cannot be read, or they do not fit.
    """
    state = None
    try:
        if (path / STATE).exists():
            (path / STATE).open("rb").close()  # safetensors calls each failure "not found"
            state = read_state(path / STATE)
    except (OSError, SafetensorError, ValueError) as error:
        raise RunDirectoryError(
            f"{path / STATE}: cannot be read: {error}; restore it, or delete the folder "
            "to start anew"
        ) from error
    done = state.round if state else 0
    with _reading_history(path):
        history = read_history(path)
        rounds = [record["round"] for record in history]
        if state:
            clients = (record["shapley"] for record in history if record["round"] <= state.round)
            state = replace(state, stats=state.stats.with_memory(clients))
    if rounds[:done] != list(range(1, done + 1)):
        raise RunDirectoryError(
            f"{path / HISTORY}: lacks rounds that {STATE} has ({done}); restore the "
            "file, or delete the folder to start anew"
        )
    return state, [record for record in history if record["round"] <= done]


@contextmanager
def _reading_history(path: Path) -> Iterator[None]:
    """Raises RunDirectoryError for a history that the block cannot read."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{error} is not where it should be" if isinstance(error, KeyError) else error
        raise RunDirectoryError(
            f"{path / HISTORY}: cannot be read: {why}; restore the file, or delete the "
            "folder to start anew"
        ) from error


def _rounds_of(path: Path) -> list[int]:
    """The rounds that history.jsonl has; raises RunDirectoryError if it cannot be read."""
    with _reading_history(path):
        return [record["round"] for record in read_history(path)]


def is_held(path: Path) -> bool:
    """Whether a process is at the run: its lock is held."""
    try:
        with open(path / ".lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def read_history(path: Path) -> list[dict[str, Any]]:
    """The records of history.jsonl in a run directory; a last line cut short is left out."""
    records = []
    if (path / HISTORY).exists():
        for line in (path / HISTORY).read_text(encoding="utf-8").splitlines():
            try:
                records.append(parsed(line))
            except ValueError:
                break
    return records
