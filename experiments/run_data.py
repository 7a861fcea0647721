"""A run as its directory tells it: what the report, the ledger, `watch` and `load_run` rest on.

Nothing is written, and a run may be read while it goes.
"""

import fcntl
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open

from common.config import Scalar
from common.errors import GreedyfedError, one_line
from server_app.run_directory import CONFIG, HISTORY, STATE, SUMMARY, read_events

Record = dict[str, Any]
Figures = dict[str, float]


class _Record(BaseModel):
    """What a line of history.jsonl must have; later versions may add to it, old ones lack some."""

    model_config = ConfigDict(extra="allow", strict=True)

    round: int
    cohort: list[str]
    shapley: Figures
    std_error: Figures
    cumulative: Figures
    evaluations: int
    valuation_end: str
    val_loss: float
    test_loss: float
    test_accuracy: float
    failures: dict[str, str]
    seconds: Figures
    bytes: Figures
    val_accuracy: float = 0.0
    gain: float = 0.0
    leave_one_out: Figures = {}
    class_shapley: dict[str, list[float]] = {}


class RunDataError(GreedyfedError):
    """There is no run to read, or its files cannot be read."""


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
            `num_examples`, and once the run is complete all that summary.json has (`value`,
            `label_histogram`, `local_epochs`, `noise_sigma`, …); what a client does not tell is
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
        RunDataError: no run there, a folder of something else, or a damaged file.
    """
    about = _config(path)
    rounds = _rounds(path / HISTORY)
    summary = _summary(path / SUMMARY)
    clients = _clients(path / STATE)
    if summary is not None:
        known = {c.pop("client_id"): c for c in summary.pop("clients")}
        clients = known | {c: about for c, about in clients.items() if c not in known}
    if summary is not None and summary["status"] == "complete":
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
    """The run directory itself, or those in a folder of runs (one or two levels), oldest first."""
    if (path / CONFIG).is_file():
        return [path]
    found = [p for depth in ("*", "*/*") for p in path.glob(f"{depth}/{CONFIG}")]
    return [p.parent for p in sorted(found, key=lambda p: p.stat().st_mtime)]


def is_held(path: Path) -> bool:
    """Whether a process is at the run: its lock is held."""
    try:
        with open(path / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _config(path: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((path / CONFIG).read_text())
    except (FileNotFoundError, NotADirectoryError) as error:
        if not path.is_dir():
            what = "a file" if path.exists() else "no such folder"
            raise RunDataError(f"{path}: {what}; give a run directory") from error
        inside = len(find_runs(path))
        hint = f"holds {inside} runs; give one of them" if inside else "give a run directory"
        raise RunDataError(f"{path}: no run here, it has no {CONFIG}; {hint}") from error
    except (OSError, ValueError) as error:
        raise RunDataError(
            f"{path / CONFIG}: cannot be read: {one_line(error)}; give a run directory that can"
        ) from error
    config = about.get("config") if isinstance(about, dict) else None
    if not isinstance(config, dict) or not isinstance(about.get("run-id"), str):
        raise RunDataError(f"{path / CONFIG}: is not that of a run; give a run directory")
    if not {"algorithm", "seed", "num-rounds"} <= config.keys():
        raise RunDataError(
            f"{path / CONFIG}: lacks algorithm, seed or num-rounds; give a run of this project"
        )
    return about


def _rounds(path: Path) -> list[Record]:
    try:
        text = path.read_text() if path.exists() else ""
    except (OSError, ValueError) as error:
        raise _damaged(path, one_line(error)) from error
    lines, records = text.splitlines(), list[Record]()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == len(lines):  # still being written, or cut short by a kill
                break
            raise _damaged(path, f"line {number} is no JSON") from error
        try:
            _Record.model_validate(record)
        except ValidationError as error:
            what = error.errors()[0]
            where = ".".join(map(str, what["loc"])) or "it"
            raise _damaged(path, f"line {number}: {where}: {what['msg'].lower()}") from error
        if record["round"] != number:
            raise _damaged(path, f"line {number} is round {record['round']}")
        records.append(record)
    return records


def _summary(path: Path) -> dict[str, Any] | None:
    try:
        summary = json.loads(path.read_text()) if path.exists() else None
        if summary is not None:
            _ = summary["status"], [client["client_id"] for client in summary["clients"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, one_line(error)) from error
    return summary


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


def _clients(path: Path) -> dict[str, dict[str, Any]]:
    """Client ids and numbers of examples of the checkpoint, without loading its model."""
    if not path.exists():
        return {}
    try:
        with safe_open(path, framework="numpy") as file:
            ids = json.loads(file.metadata()["about"])["client_ids"]
            sizes = file.get_tensor("num_examples").tolist()
        return {c: {"num_examples": n} for c, n in zip(ids, sizes, strict=True)}
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, one_line(error)) from error


def _damaged(path: Path, why: str) -> RunDataError:
    return RunDataError(f"{path}: cannot be read: {why}; restore the file, or give another run")
