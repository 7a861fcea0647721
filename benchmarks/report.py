"""How long the report of a large run takes to open, and how large it is.

    python -m benchmarks.report [--run DIR] [--quick] [--check]

300 clients, 400 rounds; without --run one of synthetic data is made first, in half a minute. The
page is opened in a headless Chromium, as a file, each time in a fresh tab: until its text and
ledger are painted, until it has loaded, and until the two charts of the first screen are drawn.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.table import Table

from common.errors import GreedyfedError
from experiments.cli import main
from experiments.report import read_runs, write_report

MAX_SECONDS, MAX_MEGABYTES = 2.0, 12.0
MOMENTS = ("text painted", "loaded", "charts drawn")
_TIMES = """() => [
  performance.getEntriesByName("first-contentful-paint")[0].startTime,
  performance.getEntriesByType("navigation")[0].loadEventEnd,
  performance.getEntriesByName("drawn loss")[0].startTime,
]"""


def make_run(folder: Path) -> Path:
    """A run of 300 clients and 400 rounds."""
    keys = ("dataset=synthetic", "num-clients=300", "num-rounds=400", f"output-dir={folder}")
    options = [option for key in keys for option in ("-c", key)]
    command = [sys.executable, "-m", "experiments.cli", "run", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Path(done.stdout.splitlines()[-1])


def open_once(browser: Browser, page_file: Path) -> tuple[list[float], list[str]]:
    """Seconds to each of `MOMENTS`, and what the console said."""
    page, said = browser.new_page(viewport={"width": 1280, "height": 900}), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(error.message))
    page.goto(page_file.as_uri())
    page.wait_for_selector("#chart-loss[data-drawn]")
    times = [ms / 1000 for ms in page.evaluate(_TIMES)]
    page.close()
    return times, said


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def benchmark(
    run: Annotated[Path | None, typer.Option(help="A run directory.", readable=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three openings, not nine.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a bar is missed.")] = False,
) -> None:
    """Open the report and print its times."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        raise GreedyfedError("no Chromium is found; install it (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        page_file = Path(name) / "report.html"
        write_report(read_runs([run or make_run(Path(name))]), page_file)
        megabytes = page_file.stat().st_size / 1e6
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        opened = [open_once(browser, page_file) for _ in range(3 if quick else 9)]
        browser.close()
    table = Table(
        title=f"Report of {megabytes:.2f} MB (bar: {MAX_MEGABYTES:g}), {len(opened)} times"
    )
    for heading in ("seconds until", "median", "least", "most", "bar"):
        table.add_column(heading, justify="left" if heading == "seconds until" else "right")
    columns = list(zip(*(times for times, _ in opened), strict=True))
    for moment, times in zip(MOMENTS, columns, strict=True):
        figures = (f"{f(times):.2f}" for f in (statistics.median, min, max))
        table.add_row(moment, *figures, f"{MAX_SECONDS:g}" if moment == MOMENTS[-1] else "")
    Console().print(table)
    said = [text for _, texts in opened for text in texts]
    print(*said, sep="\n", end="\n" if said else "")
    slow = statistics.median(columns[-1]) >= MAX_SECONDS
    if check and (slow or megabytes >= MAX_MEGABYTES or said):
        raise typer.Exit(1)


if __name__ == "__main__":
    main(app)
