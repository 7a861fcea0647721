"""docs/tutorial.md, followed word by word in a copy of the checkout."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import copy_checkout

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Checkout:
    """A copy of this checkout; its `.venv` is this environment with the copy's own code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        copy_checkout(folder)
        bin_path = folder / ".venv" / "bin"
        bin_path.mkdir(parents=True)
        greedyfed = f'PYTHONPATH={folder} exec {sys.executable} -m experiments.cli "$@"'
        for name, line in {
            "greedyfed": greedyfed,
            "python": f'PYTHONPATH={folder} exec {sys.executable} "$@"',
        }.items():
            (bin_path / name).write_text(f"#!/bin/sh\n{line}\n")
            (bin_path / name).chmod(0o755)
        own = Path(sys.executable).parent
        (bin_path / "activate").write_text(f"PATH={bin_path}:{own}:$PATH\n")
        (bin_path.parent / ".installed").touch()

    def follow(self, *titles: str) -> str:
        """Do the blocks of the page's sections; gives what they print."""
        printed = ""
        for section in PAGE.read_text().split("\n## "):
            if section.partition("\n")[0] not in titles:
                continue
            for language, name, text in BLOCK.findall(section):
                if name:
                    (self.folder / name).write_text(text)
                elif language == "bash":
                    printed += self.do(text)
                elif language == "python":
                    (self.folder / "example.py").write_text(text)
                    printed += self.do("python example.py")
        return printed

    def do(self, script: str) -> str:
        activated = "" if "make " in script else "source .venv/bin/activate\n"
        done = subprocess.run(
            ["bash", "-euc", activated + script],
            cwd=self.folder,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}"
        return done.stdout


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path / "greedyfed")


def test_what_needs_no_federation(checkout):
    checkout.do("greedyfed run --config experiments/demo.toml --output-dir runs/demo-1")
    printed = checkout.follow("Who helped", "Was it the selection?", "Your own model")
    assert "partition-0" in printed
    assert "noise_sigma" in printed
    assert (checkout.folder / "report.html").stat().st_size > 10_000
    assert (checkout.folder / "compared.html").stat().st_size > 10_000
    assert len(list((checkout.folder / "runs" / "compared").glob("*/summary.json"))) == 2
    assert len(list((checkout.folder / "runs" / "sweep").glob("*/summary.json"))) == 6
    assert len(list((checkout.folder / "runs" / "own-model").glob("*/summary.json"))) == 1


@pytest.mark.deployment
def test_demo_and_federation(checkout):
    printed = checkout.follow("A first run")
    assert "complete, 40 of 40 rounds" in printed
    checkout.follow("Your own model")
    printed = checkout.follow("Your own data")
    values = dict(re.findall(r"^ (clinic-[abc]) +([+-][\d.]+)", printed, re.MULTILINE))
    assert float(values["clinic-c"]) < 0 < min(float(values["clinic-a"]), float(values["clinic-b"]))
