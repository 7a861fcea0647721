"""The pictures in docs/screenshots: the report of `make demo`'s run, opened in Chromium.

`make screenshots` writes them; the run takes some seconds in this process.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from common.config import RunConfig
from experiments.report import read_runs, write_report
from experiments.settings import read_toml
from tests.browser import chromium
from tests.federation import run

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "screenshots"
SIZE = {"width": 1200, "height": 820}  # all parts fit, so that the bar on top covers none
#: Parts of the page, by their ids.
PARTS = "ledger", "selection"


def take(folder: Path = FOLDER) -> Iterator[Path]:
    """Write the pictures; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as name, chromium() as browser:
        keys = read_toml(ROOT / "experiments" / "demo.toml")
        path = run(RunConfig.from_flat(keys | {"output-dir": name}))
        write_report(read_runs([path]), report := Path(name) / "report.html")
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(120_000)
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        page.screenshot(path=folder / "report.png")
        yield folder / "report.png"
        for part in PARTS:
            page.locator(f"#{part}").screenshot(path=folder / f"{part}.png")
            yield folder / f"{part}.png"


if __name__ == "__main__":
    for picture in take():
        print(f"{picture.relative_to(ROOT)}  {picture.stat().st_size // 1000} kB")
