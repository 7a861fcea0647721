"""More rounds: a run goes on from one of the same configuration that was to have fewer.

Nothing in a round depends on how many there will be, so that both begin with the same rounds. The
shorter run stays as it is.
"""

import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

from common.config import KEYS, RunConfig
from server_app.events import EVENTS
from server_app.run_directory import (
    CONFIG,
    HISTORY,
    STATE,
    RunDirectory,
    RunDirectoryError,
    is_held,
    read_checkpoint,
)
from server_app.state import ServerState
from server_app.state_file import state_bytes
from server_app.versions import recorded_versions

log = logging.getLogger("greedyfed")


class Earlier(NamedTuple):
    """A run to go on from: its directory, its state, and its history up to that."""

    path: Path
    state: ServerState
    history: list[dict[str, Any]]


def earlier_run(config: RunConfig, path: Path) -> Earlier | None:
    """Beside a run directory, the run that has saved most of the rounds wanted.

    None without `resume`, and where the directory has rounds of its own.

    Raises:
        RunDirectoryError: a run that has such rounds, but cannot be read.
    """
    if not config.resume or has_rounds(path):
        return None
    furthest = None
    for other in sorted(file.parent for file in path.parent.glob(f"*/{CONFIG}")):
        if not _is_alike(config, other):
            continue
        if not (other / STATE).exists():
            log.info("%s: has no %s, so that it is not gone on from", other, STATE)
            continue
        if is_held(other):
            log.info("%s: a process is at this run, so that it is not gone on from", other)
            continue
        state, history = read_checkpoint(other)
        most = furthest.state.round if furthest else 0
        if state and most < state.round <= config.num_rounds:
            furthest = Earlier(other, state, history)
    return furthest


def has_rounds(path: Path) -> bool:
    """Whether a run directory has a state after round 1; raises RunDirectoryError if unreadable."""
    state, _ = read_checkpoint(path)
    return state is not None and state.round > 0


def _is_alike(config: RunConfig, other: Path) -> bool:
    """Whether a run directory is of the same configuration but for num-rounds."""
    try:
        flat = json.loads((other / CONFIG).read_text(encoding="utf-8"))["config"]
        theirs = {key: field.default for key, (_, field) in KEYS.items()} | flat
    except (OSError, ValueError, KeyError, TypeError):
        return False
    mine = config.identity()
    differ = {key for key, value in mine.items() if theirs[key] != value}
    return differ == {"num-rounds"} and theirs.keys() == KEYS.keys()


def take_over(directory: RunDirectory, earlier: Earlier, new: ServerState) -> None:
    """Make the rounds of an earlier run those of a new one, which holds them then as its own.

    A kill on the way leaves a directory with the state of a new run, in which all is done again.

    Args:
        directory: of the new run.
        earlier: the run to go on from.
        new: the state before round 1.

    Raises:
        RunDirectoryError: events that cannot be read. Nothing is written then.
    """
    # Those of the earlier run, and those of a try of this one that saved nothing.
    events = _merged(earlier.path / EVENTS, directory.path / EVENTS)
    directory.describe(recorded_versions(earlier.path / CONFIG))
    directory.write(STATE, state_bytes(new))  # history without a state is one whose state was lost
    directory.write(
        HISTORY, "".join(json.dumps(record) + "\n" for record in earlier.history).encode()
    )
    directory.write(EVENTS, events)
    directory.write(STATE, state_bytes(earlier.state))


def _merged(*files: Path) -> bytes:
    """The lines of several files, each once; raises RunDirectoryError if one cannot be read."""
    lines = dict[bytes, None]()
    for file in files:
        try:
            lines |= dict.fromkeys(file.read_bytes().splitlines() if file.exists() else [])
        except OSError as error:
            raise RunDirectoryError(
                f"{file}: cannot be read: {error.strerror}; mend the file, or give another "
                "output-dir"
            ) from error
    return b"".join(line + b"\n" for line in lines)


def beginning(config: RunConfig, done: int, earlier: Earlier | None) -> str | None:
    """The line that says where a run goes on, or that it does not though it was to.

    Args:
        done: rounds that it has behind it.
        earlier: the run that they are from, if that is another.
    """
    if earlier:
        return f"continuing {earlier.path} after round {earlier.state.round}"
    if done:
        return f"resuming after round {done}"
    if config.resume:
        return (
            f"there is no run of these keys to go on from in {config.output_dir} with at most "
            f"{config.num_rounds} rounds: this one begins at round 1"
        )
    return None
