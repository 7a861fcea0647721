"""A run that was interrupted ends as an unbroken one, to the last bit."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from server_app import run_directory
from server_app.run_directory import RunDirectory, RunDirectoryError, SaveError
from tests.federation import directory_of, history_of, run


def numbers(directory):
    """History without the clock."""
    return [
        {k: v for k, v in r.items() if k not in ("seconds", "bytes")} for r in history_of(directory)
    ]


class StopError(Exception):
    pass


def stopped(config, after, monkeypatch):
    """A run that is stopped after a round, with its state."""
    record = RunDirectory.record

    def stop(self, row, state):
        record(self, row, state)
        if row.round == after:
            raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "record", stop)
        with pytest.raises(StopError):
            run(config)
    return directory_of(config)


@pytest.mark.parametrize("stop_after", [1, 3, 5])
@pytest.mark.parametrize("saved_every_round", [True, False])
def test_resume_equals_straight_run(small, tmp_path, monkeypatch, stop_after, saved_every_round):
    config = small.with_values(noise_sigma=0.1, straggler_fraction=0.5, cumulative="exponential")
    straight = run(config.with_values(output_dir=str(tmp_path / "straight")))
    monkeypatch.setattr(run_directory, "SAVE_EVERY_SECONDS", 0 if saved_every_round else 1e9)
    stopped(config, stop_after, monkeypatch)
    resumed = run(config.with_values(resume=True))
    for name in ("model.safetensors", "state.safetensors"):
        assert (resumed / name).read_bytes() == (straight / name).read_bytes()
    assert numbers(resumed) == numbers(straight)


def test_a_killed_run_resumes(small, tmp_path):
    """SIGKILL at any moment: nothing is lost but time, no round is counted twice."""
    config = small.with_values(num_rounds=300)
    straight = run(config.with_values(output_dir=str(tmp_path / "straight")))
    flat = config.to_flat()
    changes = [f"-c{k}={json.dumps(v)}" for k, v in flat.items() if k != "resume" and v != ""]
    command = [sys.executable, "-m", "experiments.cli", "run", "--resume", *changes]
    for wanted in (20, 120):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        history = directory_of(config) / "history.jsonl"
        while not history.exists() or history.read_bytes().count(b"\n") < wanted:
            time.sleep(0.01)
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    resumed = run(config.with_values(resume=True))
    assert (resumed / "model.safetensors").read_bytes() == (
        straight / "model.safetensors"
    ).read_bytes()
    assert numbers(resumed) == numbers(straight)


def test_a_finished_run_is_not_overwritten(small):
    directory = run(small)
    before = (directory / "history.jsonl").read_bytes()
    with pytest.raises(RunDirectoryError, match=r"holds a finished run.*another output-dir"):
        run(small)
    assert run(small.with_values(resume=True)) == directory  # nothing to do
    assert (directory / "history.jsonl").read_bytes() == before


def test_a_run_keeps_the_versions_that_it_was_begun_with(small):
    path = run(small) / "config.json"
    about = json.loads(path.read_text())
    now = about["versions"]
    about["versions"] = now | {"greedyfed": "0.0.7"}
    path.write_text(json.dumps(about))
    run(small.with_values(resume=True))  # complete: nothing of it is by another version
    assert json.loads(path.read_text()) == about
    (path.parent / "summary.json").unlink()
    run(small.with_values(resume=True))
    after = json.loads(path.read_text())
    assert after["versions"] == about["versions"]
    assert after["resumed-with"] == now


def test_a_history_line_cut_short_is_dropped(small, monkeypatch):
    directory = run(small)
    expected = numbers(directory)
    (directory / "summary.json").unlink()
    with open(directory / "history.jsonl", "a") as file:
        file.write('{"round": 7, "coh')
    run(small.with_values(resume=True))
    assert numbers(directory) == expected


def test_a_damaged_state_is_named(small):
    directory = run(small)
    (directory / "state.safetensors").write_bytes(b"not a state")
    with pytest.raises(RunDirectoryError, match=r"state\.safetensors: cannot be read"):
        run(small.with_values(resume=True))


def test_a_history_that_lacks_rounds_is_named(small):
    directory = run(small)
    (directory / "summary.json").unlink()
    lines = (directory / "history.jsonl").read_text().splitlines(keepends=True)
    (directory / "history.jsonl").write_text("".join(lines[:2] + lines[3:]))
    with pytest.raises(RunDirectoryError, match=r"history\.jsonl: lacks rounds"):
        run(small.with_values(resume=True))


@pytest.mark.parametrize("damage", ["summary.json", "model.safetensors"])
def test_a_lost_result_file_is_written_again(small, damage):
    directory = run(small)
    before = (directory / damage).read_bytes()
    (directory / damage).unlink()
    run(small.with_values(resume=True))
    assert (directory / damage).exists()
    assert damage == "summary.json" or (directory / damage).read_bytes() == before


def contents(directory):
    return {
        file.relative_to(directory): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in directory.rglob("*")
        if file.is_file() and file.name != ".lock"
    }


LARGE = "state.safetensors", "model.safetensors"


@pytest.mark.parametrize("deleted", [(), LARGE, LARGE[:1]], ids=["none", "both", "state"])
def test_a_complete_run_stays_as_it_is(small, deleted, told):
    """Also where the files were deleted that are large (docs/operations.md, Disk)."""
    directory = run(small)
    for name in deleted:
        (directory / name).unlink()
    before = contents(directory)
    with pytest.raises(RunDirectoryError, match=r"holds a finished run.*another output-dir"):
        run(small)
    assert run(small.with_values(resume=True)) == directory
    assert "this run is complete: nothing to do" in told.messages
    assert contents(directory) == before


def test_loggers_get_a_complete_run_that_has_no_state(small):
    directory = run(small)
    for name in LARGE:
        (directory / name).unlink()
    before = contents(directory)
    run(small.with_values(resume=True, loggers="tensorboard"))
    after = contents(directory)
    assert {path: after[path] for path in before} == before
    assert {path.parts[0] for path in after.keys() - before.keys()} == {"tensorboard"}


LOST = {
    "an unfinished run": (["summary.json"], "history.jsonl has 6 rounds"),
    "without its model": (["summary.json", "model.safetensors"], "history.jsonl has 6 rounds"),
    "complete without history": (["history.jsonl"], "summary.json says that the run is complete"),
}


@pytest.mark.parametrize("case", LOST)
def test_a_run_without_its_state_is_refused_and_stays_as_it_is(small, case):
    directory, (files, words) = run(small), LOST[case]
    for name in ("state.safetensors", *files):
        (directory / name).unlink()
    before = contents(directory)
    for config, expected in [
        (
            small.with_values(resume=True),
            rf"state\.safetensors: is missing, and {words}; restore it",
        ),
        (small, "holds an unfinished run of this configuration; set resume = true"),
    ]:
        with pytest.raises(RunDirectoryError, match=expected) as caught:
            run(config)
        assert caught.value.exit_code == 2
        assert contents(directory) == before


@pytest.mark.parametrize("rounds", [1, 5])
def test_of_a_complete_run_without_its_state_the_history_must_be_whole(small, rounds):
    directory = run(small)
    (directory / "state.safetensors").unlink()
    lines = (directory / "history.jsonl").read_text().splitlines(keepends=True)
    (directory / "history.jsonl").write_text("".join(lines[:rounds]))
    before = contents(directory)
    with pytest.raises(RunDirectoryError, match=f"has {rounds} round{'s' * (rounds > 1)}; restore"):
        run(small.with_values(resume=True))
    assert contents(directory) == before


@pytest.mark.parametrize("history", [None, "", '{"round": 1, "coh'])
def test_without_a_whole_round_a_run_begins_at_round_1(small, history, tmp_path):
    straight = run(small.with_values(output_dir=str(tmp_path / "straight")))
    directory = run(small)
    for name in ("state.safetensors", "model.safetensors", "summary.json", "history.jsonl"):
        (directory / name).unlink()
    if history is not None:
        (directory / "history.jsonl").write_text(history)
    run(small.with_values(resume=True))
    assert numbers(directory) == numbers(straight)


def test_a_kill_before_the_first_state_of_a_round_loses_nothing(small, tmp_path):
    """History is written first: there must be a state before, or it would seem lost."""
    config = small.with_values(num_rounds=3)
    straight = run(config.with_values(output_dir=str(tmp_path / "straight")))
    code = (
        "import os, sys, json\n"
        "from server_app.run_directory import RunDirectory\n"
        "save = RunDirectory.save\n"
        "RunDirectory.save = lambda self, s: os._exit(9) if s.round else save(self, s)\n"
        "from tests.federation import run\n"
        "from common.config import RunConfig\n"
        "run(RunConfig.from_flat(json.loads(sys.argv[1])))\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, json.dumps(config.to_flat())], check=False)
    assert killed.returncode == 9
    assert len(history_of(directory_of(config))) >= 1
    resumed = run(config.with_values(resume=True))
    assert numbers(resumed) == numbers(straight)


def test_two_processes_do_not_share_a_run(small):
    held = RunDirectory(small)
    with pytest.raises(RunDirectoryError, match="another process"):
        RunDirectory(small)
    held.close()
    RunDirectory(small).close()


def test_a_full_disk_keeps_what_was_saved(small, monkeypatch):
    """The last good state stays when a later one cannot be written, and the run can go on."""
    monkeypatch.setattr(run_directory, "SAVE_EVERY_SECONDS", 0)
    write, calls = RunDirectory.write, []

    def full(self, name, content):
        calls.append(name)
        if calls.count("state.safetensors") > 3 and name == "state.safetensors":
            (self.path / f".{name}.partial").write_bytes(content[:10])
            with self._saving(name):
                raise OSError(28, "No space left on device")
        write(self, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write", full)
        with pytest.raises(SaveError, match=r"cannot be written: No space left.*--resume"):
            run(small)
    resumed = run(small.with_values(resume=True))
    assert [r["round"] for r in history_of(resumed)] == [1, 2, 3, 4, 5, 6]
