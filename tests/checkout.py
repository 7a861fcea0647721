"""A copy of this checkout, for tests that follow a page word by word."""

import shutil
from pathlib import Path

from experiments.flower import PROJECT


def copy_checkout(folder: Path) -> None:
    """Copy all but what .gitignore names, as a clone would have it; also where git is not."""
    ignored = (PROJECT / ".gitignore").read_text(encoding="utf-8").split()
    names = shutil.ignore_patterns(".git", *(name.strip("/") for name in ignored))
    shutil.copytree(PROJECT, folder, ignore=names, dirs_exist_ok=True)
