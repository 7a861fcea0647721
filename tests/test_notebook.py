"""docs/notebook.ipynb runs as it is written.

`python -m tests.test_notebook` executes it and keeps what it shows.
"""

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def read():
    return nbformat.read(NOTEBOOK, as_version=4)


def executed():
    """The notebook with this checkout's outputs; raises what a cell raises."""
    notebook, folder = read(), {"metadata": {"path": str(NOTEBOOK.parent)}}
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    client = nbclient.NotebookClient(notebook, resources=folder, record_timing=False)
    client.execute(env=environment)
    return notebook


def shown(notebook):
    """What the cells show; pictures as text."""
    return [
        output.get("text") or output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    ]


def test_the_notebook():
    kept, again = read(), executed()
    assert shown(kept)[0] == shown(again)[0]  # the run's name: a hash of its configuration
    assert len(shown(kept)) == len(shown(again))
    assert [cell.get("execution_count") for cell in kept.cells] == [
        cell.get("execution_count") for cell in again.cells
    ]


if __name__ == "__main__":
    nbformat.write(executed(), NOTEBOOK)
