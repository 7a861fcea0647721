"""The example of docs/extending.md runs as it is written."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import greedyfed
from experiments.ledger import ledger_of
from experiments.ledger_formats import FORMATS
from experiments.report import read_runs, write_report
from experiments.run_data import read_run
from experiments.status import status
from experiments.summary import summary_table
from experiments.terminal import view
from experiments.watch import follow
from tests.federation import history_of, run

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


def example():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {"__name__": "example"}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


@pytest.mark.parametrize("complete", [True, False])
def test_every_reader_reads_a_run_with_its_valuation(small, tmp_path, monkeypatch, complete):
    """It tells no values by class, so the run has none."""
    valuation = example()["leave_one_out"]
    monkeypatch.setattr("server_app.algorithms.valuation_from", lambda *_: valuation)
    path = run(small)
    history = history_of(path)
    assert not [key for record in history for key in record if key.startswith("class_")]
    summary = json.loads((path / "summary.json").read_text())
    assert not [c for c in summary["clients"] if "class_values" in c]
    if not complete:
        (path / "summary.json").unlink()
    ledger = ledger_of(read_run(path))
    assert ledger.class_sums == {}
    sums = {a.client: a.sum for a in ledger.clients}
    assert sums == pytest.approx({c: sum(r["shapley"].get(c, 0.0) for r in history) for c in sums})
    console = Console(width=200, file=(tmp_path / "shown").open("w"))
    console.print(status(path), status(path.parent), summary_table(path), view(follow(path)))
    assert all(write(ledger) for write in FORMATS.values())
    frames = greedyfed.load_run(path)
    assert (len(frames.values), len(frames.by_class)) == (12, 0)
    write_report(read_runs([path]), tmp_path / "report.html")
    assert path.name in (tmp_path / "report.html").read_text()


def test_the_example(capsys):
    names = example()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(t) for t in range(1, 11)]
    state = names["state"]
    assert state.round == 10
    assert (state.stats.count > 0).all()  # the round robin
    assert len(np.unique(state.stats.value)) == 10
    assert float(lines[-1].split()[-1]) > float(lines[0].split()[-1])
