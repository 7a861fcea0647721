"""A run as its directory tells it: what the report, the ledger, `watch` and `load_run` rest on.

Nothing is written, and a run may be read while it goes.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from common.config import Scalar
from common.errors import printable
from experiments.run_files import (
    Record,
    RunDataError,
    check_together,
    read_checkpoint,
    read_config,
    read_rounds,
    read_summary,
)
from server_app.events import read_events
from server_app.run_directory import CONFIG, HISTORY, STATE, SUMMARY, is_held

__all__ = ["Record", "RunData", "RunDataError", "each_once", "find_runs", "is_held", "read_run"]


@dataclass(frozen=True, eq=False)
class RunData:
    """What a run directory holds.

    Attributes:
        path: the run directory.
        run_id: the run's name.
        state: `complete`, `running` (a process is at it), or `stopped`.
        config: every key of the configuration, flat.
        versions: of the packages that computed it.
        rounds: the lines of history.jsonl, from round 1 on; see `server_app.state.RoundRecord`.
        events: the lines of events.jsonl, oldest first; old runs have none.
        summary: summary.json without its clients; None before the run's end.
        clients: what is known of each client by its id, in the order of their arrival:
            `num_examples` and `value`, and once the run is complete all that summary.json has
            (`label_histogram`, `local_epochs`, `noise_sigma`, …); what a client does not tell is
            missing or None.
        unfinished: the round that has no record, as it broke off, or goes on and has failures:
            `round`, the clients `asked`, those who `answered`, and `failures`, client -> why.
    """

    path: Path
    run_id: str
    state: Literal["complete", "running", "stopped"]
    config: dict[str, Scalar]
    versions: dict[str, str]
    rounds: Sequence[Record]
    events: Sequence[dict[str, Any]]
    summary: dict[str, Any] | None
    clients: dict[str, dict[str, Any]]
    unfinished: Record | None = None

    @property
    def num_rounds(self) -> int:
        """The rounds T that the run is to have."""
        return int(self.config["num-rounds"])


def read_run(path: Path) -> RunData:
    """Read a run directory, of a complete run, a stopped one, or one that goes on.

    A last line cut short is left out.

    Raises:
        RunDataError: no run there, a folder of something else, a damaged file, or files that do
            not belong together.
    """
    _need_run(path)
    about = read_config(path / CONFIG)
    # The run's last file first: a run that goes on meanwhile seems no damaged one.
    summary = read_summary(path / SUMMARY)
    done, clients = read_checkpoint(path / STATE)
    rounds = read_rounds(path / HISTORY, about["config"])
    check_together(path / HISTORY, about["config"], rounds, done, summary)
    if summary is not None:
        known = {c.pop("client_id"): c for c in summary.pop("clients")}
        clients = known | {c: about for c, about in clients.items() if c not in known}
        state: Literal["complete", "running", "stopped"] = "complete"
    else:
        state = "running" if is_held(path) else "stopped"
    events = read_events(path)
    unfinished = None if state == "complete" else _unfinished(events, len(rounds) + 1)
    if unfinished is not None and state == "running" and not unfinished["failures"]:
        unfinished = None
    for cohort in [r["cohort"] for r in rounds] + ([unfinished["asked"]] if unfinished else []):
        for client in cohort:
            clients.setdefault(client, {})
    return RunData(
        path=path,
        run_id=about["run-id"],
        state=state,
        config=about["config"],
        versions=about.get("versions", {}),
        rounds=rounds,
        events=events,
        summary=summary,
        clients=clients,
        unfinished=unfinished,
    )


def find_runs(path: Path) -> list[Path]:
    """The run directory itself, or those in a folder of runs (one or two levels), oldest first.

    Raises:
        RunDataError: the system does not let it be looked into.
    """
    try:
        if (path / CONFIG).is_file():
            return [path]
        found = [p for depth in ("*", "*/*") for p in path.glob(f"{depth}/{CONFIG}")]
        return [p.parent for p in sorted(found, key=lambda p: p.stat().st_mtime)]
    except OSError as error:
        raise RunDataError(
            f"{path}: cannot be read: {error.strerror}; give a run directory"
        ) from error


def each_once(runs: Sequence[RunData]) -> list[RunData]:
    """The runs without copies of them, which are no further seeds: of a name the newest complete.

    Copies left out are named, each by a line on stderr.
    """
    kept = dict[str, RunData]()
    for run in sorted(sorted(runs, key=lambda run: run.path), key=_newest, reverse=True):
        kept.setdefault(run.run_id, run)
    for run in runs:
        if run is not (original := kept[run.run_id]):
            copy = f"{run.path}: is a copy of run {run.run_id} in {original.path}"
            print(f"left out: {printable(copy)}", file=sys.stderr)
    return [run for run in runs if run is kept[run.run_id]]


def _newest(run: RunData) -> tuple[bool, float]:
    """Sorts complete runs last, and of each kind the one last written to."""
    written = 0.0
    with suppress(OSError):  # no round yet
        written = (run.path / HISTORY).stat().st_mtime
    return run.state == "complete", written


def _need_run(path: Path) -> None:
    inside = len(find_runs(path))
    if (path / CONFIG).exists():
        return
    if not path.is_dir():
        what = "a file" if path.exists() else "no such folder"
        raise RunDataError(f"{path}: {what}; give a run directory")
    hint = f"holds {inside} runs; give one of them" if inside else "give a run directory"
    raise RunDataError(f"{path}: no run here, it has no {CONFIG}; {hint}")


def _unfinished(events: Sequence[Record], number: int) -> Record | None:
    """What events tell of a round that has no record; of one begun anew, the last try."""
    asked, answered, failures = list[str](), list[str](), dict[str, str]()
    for event in events:
        if event["round"] != number:
            continue
        if event["event"] == "asked":
            if set(asked) & set(event["clients"]):
                asked, answered, failures = [], [], {}
            asked = asked + event["clients"]
        elif event["event"] == "answered":
            answered.append(event["client"])
        elif event["event"] == "failed":
            failures[event["client"]] = event["why"]
    told = {"round": number, "asked": asked, "answered": answered, "failures": failures}
    return told if asked else None
