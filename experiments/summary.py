"""The short table at the end of a run, read from its run directory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from experiments.run_data import read_run
from experiments.screen import plain

_ROWS = 10


def summary_table(path: Path) -> Group:
    """Accuracy by round, and the most valuable clients, of a run.

    Raises:
        RunDataError: it cannot be read.
    """
    run = read_run(path)
    valued = {client for record in run.rounds for client in record["shapley"]}
    return Group(_rounds(run.rounds), _clients(run.clients, valued))


def _rounds(history: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Accuracy by round", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("round", "validation loss", "test accuracy", "evaluations", "failures"):
        table.add_column(heading, justify="right")
    n = len(history)
    shown = sorted({max(1, round(n * i / _ROWS)) for i in range(1, _ROWS + 1)} | {1})
    for record in (history[i - 1] for i in shown if n):
        table.add_row(
            str(record["round"]),
            f"{record['val_loss']:.4f}",
            f"{record['test_accuracy']:.2%}",
            str(record["evaluations"]),
            str(len(record["failures"])),
        )
    return table


def epsilon_text(client: dict[str, Any]) -> str:
    """The ε that a client spent; none means without limit."""
    epsilon = client.get("epsilon", 0.0)
    return "∞" if epsilon is None else f"{epsilon:.2f}"


def _clients(clients: dict[str, dict[str, Any]], valued: set[str]) -> Table:
    table = Table(
        title="Most valuable clients" if valued else "Clients",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("client", no_wrap=True)
    for heading in ("value", "times", "n", "E", "noise"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("label histogram", no_wrap=True)
    private = any("epsilon" in c for c in clients.values())
    if private:
        table.add_column("ε", justify="right", no_wrap=True)

    def rank(item: tuple[str, dict[str, Any]]) -> tuple[bool, float, int]:
        return item[0] not in valued, -item[1].get("value", 0.0), -item[1].get("times_selected", 0)

    for name, c in sorted(clients.items(), key=rank)[:_ROWS]:
        sigma, histogram = c.get("noise_sigma"), c.get("label_histogram")
        table.add_row(
            plain(name),
            f"{c['value']:+.4f}" if name in valued and "value" in c else "–",
            str(c.get("times_selected", "?")),
            str(c.get("num_examples", "?")),
            str(c.get("local_epochs") or "?"),
            "?" if sigma is None else f"{sigma:.3g}",
            " ".join(map(str, histogram)) if histogram else "?",
            *([epsilon_text(c)] if private else []),
        )
    return table
