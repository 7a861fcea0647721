"""`greedyfed watch --terminal`: a run as it goes, where there is no browser."""

import time
from collections.abc import Iterator
from itertools import pairwise

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from experiments.answers import answers_of
from experiments.ledger import ledger_of
from experiments.run_data import RunData
from experiments.screen import plain
from experiments.watch import Follower

#: Seconds between two looks at the run.
EVERY = 1.0
_ROWS, _WIDTH, _BLOCKS = 10, 60, "▁▂▃▄▅▆▇█"


def watch_here(follower: Follower, console: Console) -> None:
    """Show the run while it goes or has not begun, anew whenever something has changed."""
    with Live(view(follower), console=console, auto_refresh=False) as live:
        while _goes(follower.run):
            time.sleep(EVERY)
            if follower.look():
                live.update(view(follower), refresh=True)
    if follower.run.state != "complete":
        console.print(
            f"the run has ended after {len(follower.run.rounds)} of {follower.run.num_rounds} "
            "rounds; `greedyfed run` with its configuration and --resume goes on with it",
            soft_wrap=True,
        )


def _goes(run: RunData) -> bool:
    return run.state == "running" or not (run.rounds or run.events or run.state == "complete")


def view(follower: Follower) -> Group:
    """The run's state, curves, most valuable clients and last failures."""
    run = follower.run
    told = answers_of(run, ledger_of(run))
    lines: list[Text | Table] = [
        Text(
            f"{plain(run.run_id)}: {run.state}, {len(run.rounds)} of {run.num_rounds} rounds",
            "bold",
        )
    ]
    if follower.trouble:
        lines.append(Text(str(plain(follower.trouble)), "red"))
    lines += _curves(run)
    lines += [plain(sentence) for sentence in told["helped"] + told["cost"]]
    if any(record["shapley"] for record in run.rounds):
        lines.append(_clients(run))
    if failures := [(r["round"], *f) for r in run.rounds for f in r["failures"].items()]:
        table = _table(f"Failures ({len(failures)})", "round", "client", "reason")
        for row in failures[-5:]:
            table.add_row(*map(plain, row))
        lines.append(table)
    return Group(*lines)


def _curves(run: RunData) -> Iterator[Text]:
    for key, name in (("test_accuracy", "test accuracy"), ("val_loss", "validation loss")):
        values = [float(record[key]) for record in run.rounds]
        if values:
            yield Text(f"{name:16} {sparkline(values)} {values[-1]:.4f}")


def sparkline(values: list[float]) -> str:
    """A line of at most 60 blocks, each the mean of some rounds; not finite: a blank."""
    width = min(_WIDTH, len(values))
    edges = [len(values) * i // width for i in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    known = [m for m in means if abs(m) < float("inf")]
    low, high = min(known, default=0.0), max(known, default=0.0)
    top = len(_BLOCKS) - 1
    return "".join(
        _BLOCKS[round(top * (m - low) / (high - low)) if high > low else 0]
        if abs(m) < float("inf")
        else " "
        for m in means
    )


def _clients(run: RunData) -> Table:
    table = _table("Most valuable clients", "client", "sum", "credit", "mean", "asked", "failed")
    for a in [a for a in ledger_of(run).clients if a.sum is not None][:_ROWS]:
        table.add_row(
            plain(a.client),
            _figure(a.sum, a.sum_se),
            "" if a.credit is None else f"{a.credit:.1%}",
            _figure(a.mean, a.mean_se),
            str(a.asked),
            str(a.failed),
        )
    return table


def _figure(value: float | None, error: float | None) -> str:
    return f"{value:+.4f}" + (f" ± {error:.4f}" if error else "")


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("client", "reason") else "right")
    return table
