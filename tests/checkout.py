"""A copy of this checkout, for tests that follow a page word by word."""

import shutil
import subprocess
from pathlib import Path

from experiments.flower import PROJECT


def copy_checkout(folder: Path) -> None:
    """Copy what git has or would add, as a clone of this state would have it."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=PROJECT, capture_output=True, text=True, check=True)
    for file in filter(None, files.stdout.split("\0")):
        if (PROJECT / file).is_file():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / file, folder / file)
