"""The `greedyfed` command as its user meets it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.settings import parse_change

ROOT = Path(__file__).parents[1]


def greedyfed(*arguments, cwd):
    command = [sys.executable, "-m", "experiments.cli", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, check=False, env=None, timeout=300
    )


def test_run_prints_the_run_directory_last(tmp_path):
    (tmp_path / "keys.toml").write_text("num-rounds = 3\nnum-clients = 6\n")
    done = greedyfed(
        "run", "--config", "keys.toml", "-c", "seed=7", "-c", "model=mlp", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    directory = Path(done.stdout.splitlines()[-1])
    assert directory.parent == tmp_path / "runs"
    assert (directory / "summary.json").exists()
    assert "Accuracy by round" in done.stdout
    assert "round 3/3" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-c", "num-round=3"], "did you mean 'num-rounds'?"),
        (["-c", "num-rounds"], "must be key=value"),
        (["-c", "=3"], "must be key=value"),
        (["-c", "num-rounds=many"], 'num-rounds = "many": input should be a valid integer'),
        (["--config", "missing.toml"], "--config missing.toml: [Errno 2]"),
        (["--config", "bad.toml"], "--config bad.toml: "),
        (["-c", "dataset=mnist", "--data-dir", "nowhere"], "nowhere': no such folder"),
        (["-c", "num-clients=500"], "num-clients = 500: more than min-examples-per-client"),
        (["--superlink", "nowhere", "--insecure"], "--superlink nowhere: is not HOST:PORT"),
        (["--superlink", "::1:9", "--insecure"], "--superlink ::1:9: is not HOST:PORT"),
        (["--superlink", "[:::]:9", "--insecure"], "--superlink [:::]:9: no answer: "),
        (["--superlink", "[::1]:9", "--insecure"], "--superlink [::1]:9: no answer: "),
        (["-c", "model=a:b"], "model = 'a:b': cannot be imported"),
        (["--output-dir", "file"], "file': cannot be written"),
        (["--ray", "--output-dir", "file"], "file': cannot be written"),
        (
            ["-c", "dataset=own", "--data-dir", "x.npz"],
            "dataset = 'own': here clients are simulated",
        ),
        (["--output-dir", "a\x1bb"], r'output-dir = "a\u001bb": must be one line'),
        (["-c", "device=cuda"], "device = 'cuda': PyTorch finds no CUDA device here"),
        (["-c", "validation-size=5000"], "validation-size = 5000: digits holds out 599"),
    ],
)
def test_errors_are_one_line_and_exit_with_2(arguments, words, tmp_path):
    (tmp_path / "bad.toml").write_text("seed == 3")
    (tmp_path / "file").write_text("")
    done = greedyfed("run", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_partition_writes_files_and_says_how_to_use_them(tmp_path):
    command = ["partition", "--dataset", "digits", "--num-clients", "4", "--out", "files"]
    done = greedyfed(*command, "-c", "partition=iid", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:5]] == [
        *(f"files/client-{k}.npz" for k in range(4)),
        "files/server.npz",
    ]
    assert lines[4].endswith("599 examples")
    assert f'data-path="{tmp_path}/files/client-0.npz" client-id="client-0"' in done.stdout
    assert f'dataset="own" data-dir="{tmp_path}/files/server.npz"' in done.stdout
    again = greedyfed(*command, cwd=tmp_path)
    assert again.returncode == 2
    assert "--out files: holds client-0.npz already; give another folder" in again.stderr
    assert greedyfed(*command, "--overwrite", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed=3", ("seed", 3)),
        ("learning-rate = 1e-4", ("learning-rate", 1e-4)),
        ("dataset=mnist", ("dataset", "mnist")),
        ('dataset="mnist"', ("dataset", "mnist")),
        ("resume=true", ("resume", True)),
        ("data-dir=2024", ("data-dir", "2024")),
        ("model=a.b:c", ("model", "a.b:c")),
    ],
)
def test_values_need_no_quotes(text, expected):
    assert parse_change(text) == expected


@pytest.mark.parametrize("module", ["typer", "rich.console", "pydantic", "numpy"])
def test_ctrl_c_while_the_command_loads_leaves_no_traceback(module):
    """Stopped when a module has just been loaded, of which there are seconds."""
    command = [sys.executable, "-X", "importtime", "-m", "experiments", "run"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.split("|")[-1].strip() == module:
            process.send_signal(signal.SIGINT)
            break
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in rest
