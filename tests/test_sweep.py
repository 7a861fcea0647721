"""Sweeps: many runs from one file, by several processes, none of them twice."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from rich.console import Console

from common.config import ConfigError, RunConfig
from common.errors import GreedyfedError
from experiments.parallel import WorkerError, Workers, directory, run_all
from experiments.plots import accuracies
from experiments.sweep import check_count, count_runs, expand, groups_of, read_spec, sweep
from tests.federation import history_of, run

CLOCK = ("seconds", "bytes")
KEYS = {"num-clients": 6, "clients-per-round": 2, "num-rounds": 3, "learning-rate": 0.1}


def spec_in(folder, **keys):
    """A TOML file of runs into a folder of its own."""
    folder.mkdir(exist_ok=True)
    path = folder / "spec.toml"
    keys = KEYS | {"output-dir": str(folder / "runs")} | keys
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))
    return path


def numbers(folder):
    """All histories and models in a folder; a resumed run asks once more who clients are."""
    return {
        path.name: (
            [{k: v for k, v in record.items() if k not in CLOCK} for record in history_of(path)],
            (path / "model.safetensors").read_bytes(),
        )
        for path in (folder / "runs").iterdir()
    }


def test_lists_multiply_out():
    groups = groups_of(
        {
            "seeds": [0, 1],
            "runs": [
                {"algorithm": ["greedyfed", "fedavg"], "learning-rate": [0.1, 0.2, 0.3]},
                {"algorithm": "fedprox", "proximal-mu": [0.1, 1.0]},
            ],
        }
    )
    runs = expand(groups)
    assert count_runs(groups) == len(runs) == 2 * 2 * 3 + 2 * 2
    assert [r.seed for r in runs[:12]] == [0] * 6 + [1] * 6
    assert [r.training.learning_rate for r in runs[:3]] == [0.1, 0.2, 0.3]
    assert {r.selection.algorithm for r in runs[12:]} == {"fedprox"}
    assert all(r.data.num_clients == 10 for r in runs)


def test_equal_runs_come_once():
    runs = expand([{"seed": [0, 0, 1]}, {"seed": 1, "num-rounds": 40, "resume": True}])
    assert [r.seed for r in runs] == [0, 1]


def test_a_key_of_the_command_line_wins(tmp_path):
    path = spec_in(tmp_path, seeds=[0, 1, 2])
    assert [r.seed for r in read_spec(path, {"seed": 7}, yes=False)] == [7]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed == 3", "Invalid value"),
        ("num-round = 3", "did you mean 'num-rounds'"),
        ('algorithm = ["greedyfed", "greedy"]', 'algorithm = "greedy": input should be'),
        ("seed = []", "no run: a list of values is empty"),
        ("runs = 3", "must be groups of keys"),
        ("seeds = [" + "0, " * 2001 + "]", "2,001 runs: more than 2,000; shorten the lists"),
    ],
)
def test_a_wrong_spec_is_one_line_that_names_it(tmp_path, text, words):
    path = tmp_path / "spec.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as error:
        read_spec(path, {}, yes=False)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_a_spec_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_spec(tmp_path / "spec.toml", {}, yes=False)


def test_many_runs_need_a_yes():
    check_count(2001, yes=True)
    check_count(2000, yes=False)


def test_a_folder_without_finished_runs(tmp_path):
    (tmp_path / "greedyfed-digits-0123456789").mkdir()
    with pytest.raises(GreedyfedError, match="holds no finished run; give an --output-dir"):
        accuracies(tmp_path)


def test_two_processes_give_what_one_gives(tmp_path):
    """Also the progress view and the folder that the command prints."""
    for jobs in (1, 2):
        spec = spec_in(tmp_path / str(jobs), seeds=[0, 1], algorithm=["greedyfed", "fedavg"])
        sweep(spec, jobs=jobs)
    one, two = (numbers(tmp_path / str(jobs)) for jobs in (1, 2))
    assert len(one) == 4
    assert one == two


def test_ray_gives_what_one_process_gives(tmp_path):
    sweep(spec_in(tmp_path / "one", seeds=[0, 1]))
    sweep(spec_in(tmp_path / "ray", seeds=[0, 1]), jobs=2, ray="local")
    assert numbers(tmp_path / "one") == numbers(tmp_path / "ray")


def test_a_ray_cluster_that_is_not_there(tmp_path):
    with pytest.raises(WorkerError, match=r"--ray 127.0.0.1:9: no Ray cluster answers"):
        sweep(spec_in(tmp_path), ray="127.0.0.1:9")


def test_finished_runs_are_skipped(tmp_path, capsys):
    sweep(spec_in(tmp_path, seeds=[0]))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").glob("*/history.jsonl")}
    capsys.readouterr()
    spec = spec_in(tmp_path, seeds=[0, 1])
    sweep(spec)
    captured = capsys.readouterr()
    assert "1 of 1 runs done, 0 running, 0 failed, 1 skipped" in captured.err
    assert captured.out.splitlines() == [str(tmp_path / "runs")]
    assert {p: p.stat().st_mtime_ns for p in before} == before
    sweep(spec)
    assert "all of 2 runs are complete" in capsys.readouterr().err


def test_finished_runs_of_another_version_are_told(small, capsys):
    others = [small.with_values(num_rounds=1, seed=seed) for seed in (0, 1, 2)]
    run_all(others[:2], Workers(), Console(stderr=True))
    assert "by greedyfed" not in capsys.readouterr().err
    path = directory(others[0]) / "config.json"
    about = json.loads(path.read_text())
    about["versions"]["greedyfed"] = "0.0.7"
    path.write_text(json.dumps(about))
    run_all(others, Workers(), Console(stderr=True, width=300))
    told = capsys.readouterr().err
    assert "1 of 2 complete runs are by greedyfed 0.0.7, this is" in told
    assert "numbers may differ" in told


def test_a_killed_sweep_goes_on(tmp_path):
    """kill -9 in the middle: the same command ends with what an unbroken one gives."""
    spec = spec_in(tmp_path, **{"num-rounds": 120})
    (config,) = read_spec(spec, {}, yes=False)
    command = [sys.executable, "-m", "experiments.cli", "sweep", str(spec)]
    process = subprocess.Popen(
        command, cwd=Path(__file__).parents[1], stderr=subprocess.DEVNULL, start_new_session=True
    )
    history = directory(config) / "history.jsonl"
    while not history.exists() or history.read_bytes().count(b"\n") < 10:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (directory(config) / "summary.json").exists()
    sweep(spec)
    run(config.with_values(output_dir=str(tmp_path / "straight" / "runs")))
    assert numbers(tmp_path) == numbers(tmp_path / "straight")


def test_a_half_written_run_is_reported_and_the_others_go_on(tmp_path, capsys):
    spec = spec_in(tmp_path, seeds=[0, 1])
    broken, whole = read_spec(spec, {}, yes=False)
    directory(broken).mkdir(parents=True)
    (directory(broken) / "state.safetensors").write_bytes(b"half")
    with pytest.raises(typer.Exit) as left:
        sweep(spec)
    assert left.value.exit_code == 1
    (line,) = [t for t in capsys.readouterr().err.splitlines() if t.startswith("failed: ")]
    assert line.startswith(f"failed: {broken.run_id}: ")
    assert "state.safetensors: cannot be read" in line
    assert (directory(whole) / "summary.json").exists()


@pytest.mark.parametrize("place", ["file", "file/inside", "/proc/nowhere", "x" * 300])
def test_an_output_folder_that_cannot_be_is_one_line_before_any_run(tmp_path, place, capsys):
    (tmp_path / "file").write_text("")
    spec = spec_in(tmp_path)
    for seed, folder in enumerate((tmp_path / "a", tmp_path / place)):
        with spec.open("a") as file:
            file.write(f"[[runs]]\nseed = {seed}\noutput-dir = {json.dumps(str(folder))}\n")
    with pytest.raises(
        ConfigError, match=r"^output-dir = .*: cannot be written: .*; give"
    ) as error:
        sweep(spec)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("a/*"))
    assert "runs done" not in capsys.readouterr().err


def test_an_unfinished_run_without_its_state_fails_with_one_line(tmp_path, capsys):
    spec = spec_in(tmp_path)
    sweep(spec)
    (one,) = (tmp_path / "runs").iterdir()
    for name in ("summary.json", "state.safetensors"):
        (one / name).unlink()
    capsys.readouterr()
    with pytest.raises(typer.Exit):
        sweep(spec)
    (line,) = [t for t in capsys.readouterr().err.splitlines() if t.startswith("failed: ")]
    assert line.startswith(f"failed: {one.name}: {one / 'state.safetensors'}: is missing, and")
    assert len(history_of(one)) == 3


def test_a_run_that_fails_once_is_tried_again(small, monkeypatch):
    from experiments import parallel

    tries = list[str]()
    run_one = parallel.run_one

    def fails_first(flat):
        tries.append(RunConfig.from_flat(flat).run_id)
        return "the disk is full" if len(tries) == 1 else run_one(flat)

    monkeypatch.setattr(parallel, "run_one", fails_first)
    outcome = run_all([small], Workers(), Console(stderr=True))
    assert outcome.failed == {}
    assert tries == [small.run_id] * 2
