"""How a run stands, from its directory alone: `greedyfed status`."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from safetensors import SafetensorError

from common.config import ConfigError, RunConfig
from common.errors import GreedyfedError
from experiments.run_data import find_runs, is_held
from server_app.privacy import releases, spent_epsilon
from server_app.run_directory import CONFIG, STATE, SUMMARY, read_events, read_history, read_state
from server_app.state import ServerState


class StatusError(GreedyfedError):
    """There is no run to look at, or it cannot be read."""


def status(path: Path) -> Group:
    """A run's state, its round under way, and its clients; of a folder of runs, a line for each.

    Raises:
        StatusError: no run there, or files that cannot be read.
    """
    if (path / CONFIG).is_file():
        return _run(path)
    runs = find_runs(path)
    if not runs:
        raise StatusError(f"{path}: no run here; give a run directory, or a folder of them")
    table = _table("", "run", "state", "rounds", "validation loss", "test accuracy")
    for run in runs:
        config, history = _read(run)
        last = history[-1] if history else {}
        table.add_row(
            str(run.relative_to(path)),
            _state(run, history),
            f"{len(history)}/{config.num_rounds}",
            f"{last['val_loss']:.4f}" if last else "",
            f"{last['test_accuracy']:.2%}" if last else "",
        )
    return Group(table)


def _run(path: Path) -> Group:
    config, history = _read(path)
    events = read_events(path)
    lines = [f"{path.name}: {_state(path, history)}, {len(history)} of {config.num_rounds} rounds"]
    if history:
        last = history[-1]
        lines[0] += (
            f", validation loss {last['val_loss']:.4f}, test accuracy {last['test_accuracy']:.2%}"
        )
    parts: list[str | Table] = list(lines)
    now = [e for e in events if e["round"] == len(history) + 1]
    if now and not (path / SUMMARY).exists():
        parts.append(_round(now))
    refused = {e["node"]: e for e in events if e["event"] == "refused"}
    if refused:
        table = _table("Nodes that were refused", "node", "round", "why")
        for node, event in refused.items():
            table.add_row(node, str(event["round"]), event["why"])
        parts.append(table)
    if (path / STATE).exists():
        parts.append(_clients(path, config, events))
    return Group(*parts)


def _read(path: Path) -> tuple[RunConfig, list[dict[str, Any]]]:
    try:
        about = json.loads((path / CONFIG).read_text())
        return RunConfig.from_flat(about["config"]), read_history(path)
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        first = str(error).partition("\n")[0]
        raise StatusError(
            f"{path / CONFIG}: cannot be read: {first}; give the directory of a run of this version"
        ) from error


def _state(path: Path, history: list[dict[str, Any]]) -> str:
    """complete, running (its lock is held), stopped, or damaged: files that do not fit together."""
    try:
        if (path / STATE).exists() and _checkpoint(path).round > len(history):
            return "damaged (history.jsonl lacks rounds)"
    except StatusError:
        return "damaged (state.safetensors cannot be read)"
    if (path / SUMMARY).exists():
        try:
            return str(json.loads((path / SUMMARY).read_text())["status"])
        except (OSError, ValueError, KeyError, TypeError):
            return "damaged (summary.json cannot be read; go on with --resume)"
    return "running" if is_held(path) else "stopped"


def _round(events: list[dict[str, Any]]) -> Table:
    """The round under way: what is known of each client that was asked, the latest last."""
    asked: dict[str, float] = {}
    latest: dict[str, dict[str, Any]] = {}
    for event in events:
        if event["event"] == "asked":
            if asked.keys() & event["clients"]:  # the round was begun anew
                asked, latest = {}, {}
            asked |= dict.fromkeys(event["clients"], event["time"])
        elif event["event"] in ("answered", "accepted", "failed"):
            latest[event["client"]] = event
    table = _table(f"Round {events[-1]['round']}", "client", "asked", "", "")
    for client, when in asked.items():
        event = latest.get(client, {"event": "has not answered yet"})
        table.add_row(client, _ago(when), event["event"], event.get("why", ""))
    return table


def _checkpoint(path: Path) -> ServerState:
    try:
        return read_state(path / STATE)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise StatusError(f"{path / STATE}: cannot be read: {error}; restore it") from error


def _clients(path: Path, config: RunConfig, events: list[dict[str, Any]]) -> Table:
    stats = _checkpoint(path).stats
    asked = Counter(c for e in events if e["event"] == "asked" for c in e["clients"])
    failures = [e for e in events if e["event"] == "failed"]
    failed, why = Counter(e["client"] for e in failures), {e["client"]: e["why"] for e in failures}
    clip_norm, delta = config.heterogeneity.clip_norm, config.heterogeneity.privacy_delta
    released = releases(events, read_history(path)) if delta else {}
    table = _table("Clients", "client", "value", "n", "asked", "failed")
    if delta:
        table.add_column(f"ε (δ = {delta:g})", justify="right")
    table.add_column("last failure", overflow="fold")
    for k in sorted(range(len(stats.client_ids)), key=lambda k: -stats.value[k]):
        client = stats.client_ids[k]
        epsilon = (
            f"{spent_epsilon(released.get(client, {}), clip_norm, delta):.2f}" if delta else ""
        )
        table.add_row(
            client,
            f"{stats.value[k]:+.4f}" if stats.count[k] else "none yet",
            str(stats.num_examples[k]),
            str(asked[client]),
            str(failed[client]),
            *([epsilon.replace("inf", "∞")] if delta else []),
            why.get(client, ""),
        )
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _ago(when: float) -> str:
    return f"{max(0.0, time.time() - when):.0f} s ago"
