"""Pictures of runs: whatever lies in a folder, a picture or one line that says why not."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from common.config import RunConfig
from common.errors import GreedyfedError
from experiments.figures import app as figures
from experiments.page_data import page_data
from experiments.plots import accuracies
from experiments.plots import app as plots
from experiments.report import ReportError, read_runs
from experiments.run_data import RunDataError
from tests.federation import history_of, run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    keys = {"num-clients": 6, "clients-per-round": 2, "num-rounds": 4, "learning-rate": 0.1}
    config = RunConfig.from_flat(keys | {"output-dir": str(tmp_path_factory.mktemp("runs"))})
    run(config)
    run(config.with_values(seed=1))
    return run(config.with_values(algorithm="fedavg")).parent


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "runs")


def renamed(path, algorithm):
    about = json.loads((path / "config.json").read_text())
    about["config"]["algorithm"] = algorithm
    (path / "config.json").write_text(json.dumps(about))


def one_of(folder, algorithm="fedavg"):
    return next(path for path in folder.iterdir() if path.name.startswith(f"{algorithm}-"))


DAMAGES = {
    "a cut config": lambda path: (path / "config.json").write_text("{"),
    "a config of something else": lambda path: (path / "config.json").write_text("[]"),
    "a deep config": lambda path: (path / "config.json").write_text("[" * 100_000),
    "no text": lambda path: (path / "history.jsonl").write_bytes(b"\xff\n{}\n"),
    "no history": lambda path: (path / "history.jsonl").unlink(),
    "a history of something else": lambda path: (path / "history.jsonl").write_text("3\n" * 4),
    "a round without accuracy": lambda path: (path / "history.jsonl").write_text(
        (path / "history.jsonl").read_text().replace("test_accuracy", "accuracy")
    ),
    "an accuracy of letters": lambda path: (path / "history.jsonl").write_text(
        re.sub(r'"test_accuracy": [0-9.]+', '"test_accuracy": "x"', history_text(path))
    ),
    "a cut summary": lambda path: (path / "summary.json").write_text("{"),
    "a summary without clients": lambda path: (path / "summary.json").write_text(
        '{"status": "complete"}'
    ),
    "a checkpoint of something else": lambda path: (path / "state.safetensors").write_text("x"),
}


def history_text(path):
    return (path / "history.jsonl").read_text()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_one_line_everywhere(folder, tmp_path, damage, capsys):
    path, out = one_of(folder), str(tmp_path / "picture.png")
    DAMAGES[damage](path)
    commands = [
        (plots, [str(folder), "-o", out]),
        (figures, ["selection", str(path), "-o", out]),
        (figures, ["values", str(path), "-o", out]),
        (figures, ["classes", str(path)]),
    ]
    for app, arguments in commands:
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, GreedyfedError), result.exception
        assert result.exception.exit_code == 2
        assert "\n" not in str(result.exception)
        assert str(path) in str(result.exception)
    with pytest.raises(RunDataError):  # it was named itself
        read_runs([folder, path])
    capsys.readouterr()
    left = read_runs([folder])
    assert len(left) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"left out: {path}")
    for other in folder.iterdir():
        (other / "config.json").write_text("{")
    with pytest.raises(ReportError) as error:
        read_runs([folder])
    assert len(str(error.value).splitlines()) == 3
    assert not capsys.readouterr().err


def test_the_report_of_a_folder_with_a_damaged_run(folder, tmp_path):
    (one_of(folder) / "history.jsonl").write_text("junk\n{}\n")
    out = tmp_path / "report.html"
    command = [sys.executable, "-m", "experiments.cli", "report", "-o", str(out)]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{out}\n")
    assert "left out: " in done.stderr
    assert len(done.stderr.splitlines()) == 1
    both = [*command, str(folder), str(one_of(folder))]
    done = subprocess.run(both, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize("algorithm", ["of-later", "$x$", r"$\nothing$", "_hidden", "[/x]", "\x1b"])
def test_an_algorithm_that_is_not_in_the_table_is_drawn(folder, tmp_path, algorithm):
    """Last, under its own name."""
    path = one_of(folder)
    renamed(path, algorithm)
    curves, out = accuracies(folder), tmp_path / "picture.svg"
    assert curves[algorithm].tolist() == [[100 * r["test_accuracy"] for r in history_of(path)]]
    result = CliRunner().invoke(plots, [str(folder), "-o", str(out), "--at", "2", "--at", "4"])
    assert result.exit_code == 0, result.exception
    rows = [line for line in result.stdout.splitlines() if "±" in line]
    assert "GreedyFed" in rows[1]
    assert algorithm.replace("\x1b", r"\x1b") in rows[2]
    for command in ("selection", "values", "classes"):
        where = [] if command == "classes" else ["-o", str(out)]
        result = CliRunner().invoke(figures, [command, str(path), *where])
        told = (result.exit_code, type(result.exception))
        expected = (1, "ConfigError") if command == "classes" else (0, "NoneType")
        assert (told[0], told[1].__name__) == expected, result.exception


@pytest.mark.parametrize("at", ["5", "400"])
def test_a_round_that_a_run_has_not(folder, tmp_path, at):
    result = CliRunner().invoke(plots, [str(folder), "-o", str(tmp_path / "a.png"), "--at", at])
    assert f"--at {at}: the shortest of these runs ends after round 4" in str(result.exception)
    assert not (tmp_path / "a.png").exists()


def stopped(path):
    lines = history_text(path).splitlines(keepends=True)
    (path / "history.jsonl").write_text("".join(lines[:3]))
    for name in ("summary.json", "state.safetensors"):
        (path / name).unlink()


def test_copies_of_a_run_are_no_further_seeds(folder, capsys):
    """Whatever they are called: the newest complete one counts, the others are named."""
    alone, path = accuracies(folder), one_of(folder)
    shutil.copytree(path, folder / "copy")
    shutil.copytree(path, folder / "of last week" / path.name)
    newest, short = folder / "restored", folder / "stopped"
    shutil.copytree(path, newest)
    os.utime(newest / "history.jsonl")
    shutil.copytree(path, short)
    stopped(short)  # newer still, but not complete
    names = [f"{path.name}", "copy", f"of last week/{path.name}", "stopped"]
    expected = sorted(
        f"left out: {folder / name}: is a copy of run {path.name} in {newest}" for name in names
    )
    capsys.readouterr()
    curves = accuracies(folder)
    assert {name: values.tolist() for name, values in curves.items()} == {
        name: values.tolist() for name, values in alone.items()
    }
    assert sorted(capsys.readouterr().err.splitlines()) == expected
    for paths in ([folder], [*folder.iterdir()], sorted({p.parent for p in runs_in(folder)})):
        runs = read_runs(paths)
        assert len(runs) == 3
        assert newest in [run.path for run in runs]
        assert sorted(capsys.readouterr().err.splitlines()) == expected
    groups = page_data(runs)["groups"]
    assert sorted(len(group["runs"]) for group in groups) == [1, 2]


def runs_in(folder):
    return folder.rglob("config.json")


def test_of_copies_that_are_all_unfinished_one_is_shown(folder, capsys):
    path = one_of(folder)
    stopped(path)
    shutil.copytree(path, folder / "copy")
    os.utime(folder / "copy" / "history.jsonl", (1, 1))
    assert [run.path for run in read_runs([path, folder / "copy"])] == [path]
    assert len(capsys.readouterr().err.splitlines()) == 1
    status = subprocess.run(
        [sys.executable, "-m", "experiments.cli", "status", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "copy" in status.stdout


def test_folders_without_runs(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file", tmp_path / ("x" * 300)):
        for app, arguments in ((plots, []), (figures, ["selection"]), (figures, ["values"])):
            command = [*arguments, str(path), "-o", str(tmp_path / "a.png")]
            result = CliRunner().invoke(app, command)
            assert isinstance(result.exception, GreedyfedError), (path, result.exception)
            assert "\n" not in str(result.exception)


def test_a_run_that_has_not_ended_is_in_no_picture(folder, tmp_path, capsys):
    path = one_of(folder)
    stopped(path)
    assert set(accuracies(folder)) == {"greedyfed"}
    assert capsys.readouterr().err == f"left out: {path}: has 3 of 4 rounds\n"
    result = CliRunner().invoke(figures, ["selection", str(path), "-o", str(tmp_path / "a.png")])
    assert f"{path}: is not complete, but stopped; finish the run" in str(result.exception)


@pytest.mark.parametrize("labels", [[1], [], [0] * 10])
def test_label_histograms_that_are_none(folder, tmp_path, labels):
    path = one_of(folder)
    summary = json.loads((path / "summary.json").read_text())
    summary["clients"][0]["label_histogram"] = labels
    (path / "summary.json").write_text(json.dumps(summary))
    for command in (["values", "-o", str(tmp_path / "a.png")], ["classes"]):
        result = CliRunner().invoke(figures, [command[0], str(path), *command[1:]])
        assert isinstance(result.exception, GreedyfedError), result.exception
