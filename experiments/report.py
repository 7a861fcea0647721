"""`greedyfed report`: one page without network, from run directories."""

import base64
import errno
import hashlib
import html
import json
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from common.errors import GreedyfedError, printable
from experiments.ledger_formats import finite
from experiments.page_data import page_data
from experiments.run_data import RunData, RunDataError, each_once, find_runs, read_run

#: More runs than these make a page that no browser opens quickly.
MANY_RUNS = 60


class ReportError(GreedyfedError):
    """The report cannot be made or written."""


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """The runs of run directories, and of folders of them.

    Of a folder those that cannot be read are left out, and copies of a run also where they are
    named, each with a line on stderr that says why.

    Raises:
        RunDataError: a run directory that cannot be read.
        ReportError: too many, or none in the folders that can be read.
    """
    found = [run for path in paths for run in find_runs(path) or [path]]
    unique = list({path.resolve(): path for path in found}.values())
    if len(unique) > MANY_RUNS:
        raise ReportError(
            f"{len(unique)} runs: more than {MANY_RUNS} in one report; name fewer of them"
        )
    named = {path.resolve() for path in paths}
    runs, left_out = list[RunData](), list[str]()
    for path in unique:
        try:
            runs.append(read_run(path))
        except RunDataError as error:
            if path.resolve() in named:
                raise
            left_out.append(str(error))
    if not runs:
        raise ReportError("\n".join(left_out))
    for why in left_out:
        print(f"left out: {printable(why)}", file=sys.stderr)
    return each_once(runs)


def write_report(runs: Sequence[RunData], out: Path) -> None:
    """Write the page of runs. A file that is there is replaced once the new one is whole.

    Raises:
        ReportError: plotly is not installed, or the file cannot be written.
    """
    text = page(data_text(runs))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if str(out.parent) in ("/dev", "/dev/fd") or (out.exists() and not out.is_file()):
            out.write_text(text, encoding="utf-8")  # a pipe, or this process' own output
        else:
            _replace(out.resolve(), text)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = "free space or name another file" if full else "give a file that can"
        raise ReportError(f"{out}: cannot be written: {error.strerror}; {remedy}") from error


def _replace(out: Path, text: str) -> None:
    partial = out.with_name(f".{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)


def data_text(runs: Sequence[RunData], trouble: str | None = None) -> str:
    """What the page shows, as JSON that may stand in a script element.

    `trouble` says why a run cannot be read any more.
    """
    told = _printable(page_data(runs) | {"trouble": trouble})
    data = json.dumps(finite(told), separators=(",", ":"), allow_nan=False)
    return data.replace("<", "\\u003c")  # no client's name ends the element


def _printable(value: Any) -> Any:
    """The value with each text in it as `printable` leaves it."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, list | tuple) else value


def page(data: str, live: bool = False) -> str:
    """The whole page; a live one asks the server that it came from for news.

    Raises:
        ReportError: plotly is not installed.
    """
    return Template(_part("page.html")).substitute(
        title="GreedyFed",
        live=" data-live" if live else "",
        policy=html.escape(policy(live)),
        css=_part("page.css"),
        data=data,
        **_scripts(),
    )


def policy(live: bool = False) -> str:
    """The page's Content-Security-Policy: its own scripts, and nothing from anywhere else."""
    scripts = " ".join(f"'sha256-{_digest(script)}'" for script in _scripts().values())
    asked = "self" if live else "none"
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; "
        f"img-src data: blob:; connect-src '{asked}'; base-uri 'none'; form-action 'none'"
    )


def _scripts() -> dict[str, str]:
    """The page's scripts by their place in it, in the order in which they run."""
    names = ("tables", "page", "plotly", "figures", "charts")
    return {name: _plotly() if name == "plotly" else _part(f"{name}.js") for name in names}


@cache
def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _part(name: str) -> str:
    return files("experiments").joinpath("page", name).read_text(encoding="utf-8")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ReportError(
            "the page needs the extra `report`; pip install 'greedyfed[report]'"
        ) from error
    return str(get_plotlyjs())
