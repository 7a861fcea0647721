"""Runs as pandas frames, for notebooks: `greedyfed.load_run(path)`.

Needs pandas: `pip install 'greedyfed[frames]'`. The frames are read when they are asked for;
importing this package loads nothing.
"""

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from greedyfed.frames import Run

__all__ = ["load_run"]


def load_run(path: str | PathLike[str]) -> "Run":
    """A run directory as frames: of a complete run, of one that was stopped or goes on.

    Raises:
        experiments.run_data.RunDataError: no run there, or a damaged file; one line that says why.
        greedyfed.frames.FramesError: pandas is not installed.
    """
    from greedyfed.frames import read

    return read(path)
