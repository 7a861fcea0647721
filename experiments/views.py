"""The commands that show runs: `greedyfed report`, `ledger` and `watch`."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Argument(help="A run directory.", readable=False)]
Runs = Annotated[
    list[Path],
    typer.Argument(help="Run directories, or folders of them; 60 at most.", readable=False),
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
    if out.is_file():  # and not the terminal or a pipe, where it stands above
        print(out)


def watch(
    run: Annotated[
        Path,
        typer.Argument(help="A run directory, or a folder: its newest run.", readable=False),
    ],
    host: Annotated[str, typer.Option(help="Address to serve at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8765,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Show it here, until the run ends or stops.")
    ] = False,
) -> None:
    """The report's page of a run while it goes, updated as rounds finish; Ctrl-C ends it."""
    from experiments.watch import RunServer, follow

    follower = follow(run)
    if terminal:
        from rich.console import Console

        from experiments.terminal import watch_here

        return watch_here(follower, Console())
    with RunServer(follower, host, port) as server:
        if not server.is_local:
            print("whoever reaches this address can read the run", file=sys.stderr)
        print(server.url, flush=True)
        server.serve_forever()
