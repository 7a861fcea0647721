"""How a run stands, from its directory alone: `greedyfed status`."""

import time
from collections import Counter
from math import inf
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from experiments.ledger import ledger_of
from experiments.run_data import RunData, RunDataError, find_runs, read_run
from experiments.screen import plain


def status(path: Path) -> Group:
    """A run's state, its round under way, and its clients; of a folder of runs, a line for each.

    Raises:
        RunDataError: no run there, or files that cannot be read; in a folder, the line says so.
    """
    runs = find_runs(path)
    if runs == [path] or not runs:
        return _run(read_run(path))
    table = _table("", "run", "state", "rounds", "validation loss", "test accuracy")
    for each in runs:
        name = str(each.relative_to(path))
        try:
            run = read_run(each)
        except RunDataError as error:
            why = str(error).removeprefix(f"{each}/")
            table.add_row(plain(name), plain(f"damaged: {why}"), "", "", "")
            continue
        last = run.rounds[-1] if run.rounds else {}
        table.add_row(
            plain(name),
            run.state,
            f"{len(run.rounds)}/{run.num_rounds}",
            f"{last['val_loss']:.4f}" if last else "",
            f"{last['test_accuracy']:.2%}" if last else "",
        )
    return Group(table)


def _run(run: RunData) -> Group:
    line = f"{run.path.name}: {run.state}, {len(run.rounds)} of {run.num_rounds} rounds"
    if run.rounds:
        last = run.rounds[-1]
        line += (
            f", validation loss {last['val_loss']:.4f}, test accuracy {last['test_accuracy']:.2%}"
        )
    parts: list[Text | Table] = [plain(line)]
    now = [e for e in run.events if e["round"] == len(run.rounds) + 1]
    if now and run.state != "complete":
        parts.append(_round(now))
    refused = {e["node"]: e for e in run.events if e["event"] == "refused"}
    if refused:
        table = _table("Nodes that were refused", "node", "round", "why")
        for node, event in refused.items():
            table.add_row(plain(node), str(event["round"]), plain(event["why"]))
        parts.append(table)
    if run.clients:
        parts.append(_clients(run))
    return Group(*parts)


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
        table.add_row(plain(client), _ago(when), event["event"], plain(event.get("why", "")))
    return table


def _clients(run: RunData) -> Table:
    asked = Counter(c for e in run.events if e["event"] == "asked" for c in e["clients"])
    failures = [e for e in run.events if e["event"] == "failed"]
    failed, why = Counter(e["client"] for e in failures), {e["client"]: e["why"] for e in failures}
    accounts = ledger_of(run).clients
    private = any(a.epsilon is not None for a in accounts)
    table = _table("Clients", "client", "value", "n", "asked", "failed")
    if private:
        table.add_column(f"ε (δ = {run.config.get('privacy-delta', 0.0):g})", justify="right")
    table.add_column("last failure", overflow="fold")
    for a in sorted(accounts, key=lambda a: inf if a.cumulative is None else -a.cumulative):
        epsilon = "" if a.epsilon is None else f"{a.epsilon:.2f}".replace("inf", "∞")
        table.add_row(
            plain(a.client),
            "none yet" if a.cumulative is None else f"{a.cumulative:+.4f}",
            "?" if a.examples is None else str(a.examples),
            str(asked[a.client]),
            str(failed[a.client]),
            *([epsilon] if private else []),
            plain(why.get(a.client, "")),
        )
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _ago(when: float) -> str:
    return f"{max(0.0, time.time() - when):.0f} s ago"
