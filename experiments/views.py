"""The commands that show runs: `greedyfed report`, `ledger` and `watch`."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Argument(help="A run directory.", readable=False)]


Runs = Annotated[
    list[Path], typer.Argument(help="Run directories, or folders of them.", readable=False)
]


class Form(StrEnum):
    CSV = "csv"
    JSON = "json"
    MD = "md"


def ledger(
    run: Run,
    form: Annotated[Form, typer.Option("--format", help="What to print.")] = Form.MD,
) -> None:
    """What each client contributed: rounds, Shapley values with errors, share of the gain."""
    from experiments.ledger import ledger_of
    from experiments.ledger_formats import FORMATS, sentences
    from experiments.run_data import read_run

    account = ledger_of(read_run(run))
    print(FORMATS[form](account), end="")
    if form is Form.CSV:  # a table has no place for them
        print(*sentences(account), file=sys.stderr)


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("-o", "--out", help="Page to write.", readable=False)] = Path(
        "report.html"
    ),
) -> None:
    """One self-contained page: what runs learned, who contributed, what it cost."""
    from experiments.report import read_runs, write_report

    write_report(read_runs(runs), out)
    print(out)
