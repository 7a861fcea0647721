"""The paper's tables, from run directories that no run has to fill first."""

import csv
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from common.errors import GreedyfedError
from experiments.cells import Cell, all_cells, select
from experiments.paper import Plan, paper
from experiments.parallel import directory
from experiments.tables import (
    Figure,
    comma_separated,
    figure_of,
    latex,
    markdown,
    show,
    tables_of,
)

CELL = Cell("data", "mnist", "alpha=0.1", "FedAvg", 300, 3, 400, 88.0, 1.0)


def write_run(run, accuracies, **more):
    """The files of a complete run, of which nothing was computed."""
    path = directory(run)
    path.mkdir(parents=True)
    nothing = {key: {} for key in ("shapley", "std_error", "cumulative", "failures", "bytes")}
    nothing |= {"cohort": ["a"], "evaluations": 0, "valuation_end": "none", "test_loss": 1.0}
    nothing |= {"val_loss": 1.0, "seconds": {"clients": 36 / len(accuracies)}}
    records = [
        nothing | {"round": t, "test_accuracy": accuracy} | more
        for t, accuracy in enumerate(accuracies, 1)
    ]
    (path / "history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    about = {"run-id": run.run_id, "config": run.to_flat(), "versions": {"torch": "2.11.0"}}
    (path / "config.json").write_text(json.dumps(about))
    client = {"client_id": "a", "label_histogram": [1, 3], "local_epochs": 5, "noise_sigma": 0.02}
    summary = {"status": "complete", "seconds": 36.0, "clients": [client]}
    (path / "summary.json").write_text(json.dumps(summary))
    return path


def plan_in(tmp_path, **changes):
    return Plan({"output-dir": str(tmp_path), "data-dir": "nowhere"} | changes)


def cells_of(table, *algorithms):
    return select(table, "mnist", algorithms)


@pytest.mark.parametrize(
    ("accuracies", "agrees"),
    [
        ((88.0, 88.0), True),
        ((90.0, 90.0), True),  # 2 apart: 0 + 1 + 1
        ((90.01, 90.01), False),
        ((85.99, 85.99), False),
        ((90.0, 92.0), True),  # 3 apart, std 1
        ((), None),
    ],
)
def test_the_rule(accuracies, agrees):
    runs = tuple(f"run-{i}" for i in range(len(accuracies)))
    assert Figure(CELL, accuracies, runs, 400).agrees is agrees


def test_no_mark_without_a_published_figure_or_at_another_t():
    assert Figure(replace(CELL, mean=None, std=None), (88.0,), ("run",), 400).agrees is None
    assert Figure(CELL, (88.0,), ("run",), 20).agrees is None


def test_a_figure_is_of_the_complete_seeds(tmp_path):
    plan = plan_in(tmp_path)
    for seed, accuracy in ((0, 0.80), (2, 0.90)):
        write_run(plan.run(CELL, seed), [0.1] * 399 + [accuracy])
    (directory(plan.run(CELL, 1))).mkdir()  # begun
    figure = figure_of(plan, CELL, 3)
    assert figure.accuracies == pytest.approx((80, 90))
    assert figure.runs == tuple(plan.run(CELL, seed).run_id for seed in (0, 2))
    assert figure.ours == "85.00 ± 5.00 (2)"


def test_the_timing_table_reads_whole_runs_at_t(tmp_path):
    plan, cells = plan_in(tmp_path), cells_of("timing", "fedavg")
    assert len({plan.run(cell, 0).run_id for cell in cells}) == 1
    write_run(plan.run(cells[0], 0), [t / 1000 for t in range(1, 401)])
    assert [figure_of(plan, c, 1).mean for c in cells] == pytest.approx([15, 25, 35])
    short = plan_in(tmp_path, **{"num-rounds": 200})
    write_run(short.run(cells[0], 0), [0.5] * 200)
    assert [f.ours for f in tables_of(short, cells, 1)[0].rows["FedAvg"]] == [
        "50.00 ± 0.00 (1)",
        "–",
        "–",
    ]


def test_hyper_parameters_are_those_of_the_largest_validation_accuracy(tmp_path):
    plan, cell = plan_in(tmp_path), cells_of("systems", "ucb")[2]
    tuning = plan.tuning(cell)
    betas = [run.selection.ucb_beta for run in tuning]
    assert betas == [0.01, 0.1, 1.0]
    assert {run.heterogeneity.straggler_fraction for run in tuning} == {0.0}  # default setting
    for run, accuracy in zip(tuning[:2], (0.5, 0.7), strict=True):
        write_run(run, [0.5] * 400, val_accuracy=accuracy)
    assert plan.run(cell, 1) is None  # not all are complete
    write_run(tuning[2], [0.9] * 400, val_accuracy=0.6)
    chosen = plan.run(cell, 1)
    assert chosen.selection.ucb_beta == 0.1
    assert chosen.heterogeneity.straggler_fraction == 0.9


def test_a_run_without_validation_accuracy_cannot_choose(tmp_path):
    plan, cell = plan_in(tmp_path), cells_of("data", "ucb")[0]
    for run in plan.tuning(cell):
        write_run(run, [0.5] * 400)
    with pytest.raises(GreedyfedError, match=r"no validation accuracy.*delete the folder"):
        plan.run(cell, 0)


def test_formats(tmp_path):
    plan, cells = plan_in(tmp_path), cells_of("data", "fedavg")
    for seed, accuracy in ((0, 0.921), (1, 0.923)):
        write_run(plan.run(cells[0], seed), [accuracy] * 400)
    write_run(plan.run(cells[1], 0), [0.5] * 400)
    tables = tables_of(plan, cells, 2)
    text = markdown(tables)
    assert "**Data heterogeneity, mnist, N = 300, M = 3, T = 400**" in text
    assert "| FedAvg | 92.20 ± 0.10 (2) ✓<br>92.19 ± 1.40 | 50.00 ± 0.00 (1) ✗<br>88.86 ±" in text
    rows = list(csv.DictReader(io.StringIO(comma_separated(tables))))
    assert rows[0]["runs"].split() == [plan.run(cells[0], seed).run_id for seed in (0, 1)]
    assert [row["agrees"] for row in rows] == ["yes", "no", "", ""]
    assert [row["seeds"] for row in rows] == ["2", "1", "0", "0"]
    assert r"FedAvg & $92.20 \pm 0.10$ (2) $\checkmark$ & $50.00 \pm 0.00$ (1) $\times$ & -- &" in (
        latex(tables)
    )
    assert r"$\alpha=10^{-4}\text{, one class}$" in latex(tables)
    output = Console(file=io.StringIO())
    show(tables, output)
    assert "92.20 ± 0.10 (2) ✓" in output.file.getvalue()
    assert "at most the sum of the two stds plus 1 point" in output.file.getvalue()


def test_fewer_rounds_than_the_papers_carry_no_marks(tmp_path):
    plan, cells = plan_in(tmp_path, **{"num-rounds": 20}), cells_of("data", "fedavg")
    write_run(plan.run(cells[0], 0), [0.9219] * 20)
    text = markdown(tables_of(plan, cells, 1))
    assert "T = 20 (the paper's: 400)" in text
    assert "92.19 ± 0.00 (1)<br>92.19 ± 1.40" in text


def out(tmp_path, name, **keys):
    keys = {"table": "data", "dataset": "mnist", "algorithm": ["fedavg"], "seeds": 1} | keys
    path = tmp_path / name
    paper(**keys, data_dir="nowhere", output_dir=str(tmp_path / "runs"), out=path)
    return path


def test_out_writes_what_there_is_and_runs_nothing(tmp_path, capsys):
    plan = plan_in(tmp_path / "runs")
    cells = cells_of("data", "fedavg")
    write_run(plan.run(cells[0], 0), [0.9] * 400)
    assert "FedAvg & $90.00" in out(tmp_path, "t.tex").read_text()
    assert out(tmp_path, "t.csv").read_text().count("\n") == 5
    assert b"PNG" in out(tmp_path, "t.png").read_bytes()[:8]
    assert "<svg" in out(tmp_path, "t.svg").read_text()
    text = out(tmp_path, "t.md").read_text()
    assert "1 runs, 0.01 hours of one core in all" in text
    assert "| alpha=1e-4 | FedAvg | 1 | 100 | 0 | 75 | 5.00 | 0.020 |" in text
    assert capsys.readouterr().out.split() == [
        str(tmp_path / f"t.{suffix}") for suffix in ("tex", "csv", "png", "svg", "md")
    ]


def test_out_replaces_its_section_of_a_page(tmp_path):
    plan = plan_in(tmp_path / "runs")
    write_run(plan.run(cells_of("data", "fedavg")[0], 0), [0.9] * 400)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- paper: mnist -->\nold\n<!-- end -->\nafter\n")
    first = out(tmp_path, "page.md").read_text()
    assert first.startswith("before\n<!-- paper: mnist -->\n")
    assert first.endswith("<!-- end -->\nafter\n")
    assert "old" not in first
    assert "90.00 ± 0.00 (1)" in first
    assert out(tmp_path, "page.md").read_text() == first


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("t.pdf", "t.pdf: of no known kind; give a .md, .csv, .tex, .png or .svg"),
        ("t.md", "holds no complete run of these cells; run them first"),
    ],
)
def test_wrong_requests(tmp_path, name, words):
    with pytest.raises(GreedyfedError, match=words) as error:
        out(tmp_path, name)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_written(tmp_path):
    write_run(plan_in(tmp_path / "runs").run(cells_of("data", "fedavg")[0], 0), [0.9] * 400)
    (tmp_path / "file").write_text("")
    for name in ("file/t.md", "file/t.csv", "file/t.png"):
        with pytest.raises(GreedyfedError, match="cannot be written"):
            out(tmp_path, name)


def test_a_complete_run_with_half_a_history_is_named(tmp_path):
    run = plan_in(tmp_path / "runs").run(cells_of("data", "fedavg")[0], 0)
    path = write_run(run, [0.9] * 399)
    words = rf"{path}/history.jsonl: cannot be read: lacks rounds: 399 of 400, .* restore"
    with pytest.raises(GreedyfedError, match=words):
        out(tmp_path, "t.md")


def test_every_cell_of_the_paper_is_in_a_table(tmp_path):
    tables = tables_of(plan_in(tmp_path), all_cells(), 1)
    figures = [f for table in tables for figures in table.rows.values() for f in figures]
    assert sum(f.cell.mean is not None for f in figures) == 252
    assert len(tables) == 4 * 3
