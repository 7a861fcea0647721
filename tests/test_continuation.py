"""More rounds continue a run: what comes out is what an unbroken run of them gives."""

import json
import shutil

import pytest

from experiments.ledger import ledger_of
from experiments.run_data import read_run
from server_app import run_directory
from server_app.continuation import take_over
from server_app.run_directory import RunDirectory, RunDirectoryError
from tests.federation import directory_of, history_of, run
from tests.test_resume import StopError, numbers, stopped

RESULTS = "model.safetensors", "state.safetensors"


def contents(directory):
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()}


def summary_of(directory):
    return json.loads((directory / "summary.json").read_text())


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "greedyfed"},
        {"algorithm": "greedyfed-classes", "noise_sigma": 0.05},
        {"algorithm": "ucb", "cumulative": "exponential", "straggler_fraction": 0.5},
        {"algorithm": "power-of-choice", "loggers": "tensorboard"},
        {"algorithm": "sfedavg", "valuation_examples": 50},
    ],
    ids=lambda keys: keys["algorithm"],
)
def test_six_rounds_after_three_are_an_unbroken_run_of_six(small, tmp_path, keys, told):
    small = small.with_values(**keys)
    straight = run(small.with_values(output_dir=str(tmp_path / "straight")))
    three = run(small.with_values(num_rounds=3))
    before = contents(three)
    six = run(small.with_values(resume=True))
    assert f"continuing {three} after round 3" in told.messages
    assert six != three
    assert contents(three) == before
    for name in RESULTS:
        assert (six / name).read_bytes() == (straight / name).read_bytes()
    assert numbers(six) == numbers(straight)
    ours, theirs = summary_of(six), summary_of(straight)
    assert ours["clients"] == theirs["clients"]
    assert ours["seconds"] == pytest.approx(
        sum(sum(r["seconds"].values()) for r in history_of(six)), abs=1e-3
    )
    mine, other = read_run(six), read_run(straight)
    assert (mine.state, mine.num_rounds, len(mine.rounds)) == ("complete", 6, 6)
    asked = [e["clients"] for e in mine.events if e["event"] == "asked"]
    assert asked == [e["clients"] for e in other.events if e["event"] == "asked"]
    assert ledger_of(mine).clients == ledger_of(other).clients
    assert not keys.get("loggers") or list((six / "tensorboard").iterdir())


def test_privacy_is_counted_from_the_first_round(small, tmp_path):
    pytest.importorskip("opacus")
    keys = {"clip_norm": 1.0, "noise_sigma": 0.5, "privacy_delta": 1e-5}
    small = small.with_values(**keys)
    straight = run(small.with_values(output_dir=str(tmp_path / "straight")))
    run(small.with_values(num_rounds=3))
    six = run(small.with_values(resume=True))
    assert [c["epsilon"] for c in summary_of(six)["clients"]] == [
        c["epsilon"] for c in summary_of(straight)["clients"]
    ]


def test_an_interrupted_run_is_gone_on_from_with_more_rounds(small, tmp_path, monkeypatch):
    """What it has beyond its state is computed again, and its events stay."""
    straight = run(small.with_values(output_dir=str(tmp_path / "straight")))
    monkeypatch.setattr(run_directory, "SAVE_EVERY_SECONDS", 0)
    five = stopped(small.with_values(num_rounds=5), 4, monkeypatch)
    with open(five / "history.jsonl", "a") as file:
        file.write(json.dumps(history_of(straight)[4] | {"test_accuracy": 0.0}) + "\n")
    six = run(small.with_values(resume=True))
    assert numbers(six) == numbers(straight)


def test_of_several_the_furthest_is_taken_and_never_one_beyond(small, told):
    runs = {rounds: run(small.with_values(num_rounds=rounds)) for rounds in (2, 4, 6)}
    run(small.with_values(num_rounds=5, resume=True))
    assert f"continuing {runs[4]} after round 4" in told.messages
    told.clear()
    one = run(small.with_values(num_rounds=1, resume=True))
    assert [r["round"] for r in history_of(one)] == [1]
    assert any("at most 1 rounds: this one begins at round 1" in m for m in told.messages)


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"algorithm": "fedavg"},
        {"learning_rate": 0.2},
        {"clients_per_round": 3},
        {"valuation_stop": "released"},
    ],
    ids=str,
)
def test_a_run_of_another_configuration_is_not_gone_on_from(small, other, told):
    run(small.with_values(num_rounds=3, **other))
    six = run(small.with_values(resume=True))
    assert any("this one begins at round 1" in m for m in told.messages)
    assert [r["round"] for r in history_of(six)] == [1, 2, 3, 4, 5, 6]
    assert len([e for e in read_run(six).events if e["event"] == "asked"]) == 6


def test_where_a_run_lies_and_what_it_is_called_does_not_matter(small, tmp_path, told):
    three = run(small.with_values(num_rounds=3, output_dir=str(tmp_path / "elsewhere")))
    moved = tmp_path / "runs" / "of last week"
    shutil.copytree(three, moved)
    about = json.loads((moved / "config.json").read_text())
    del about["config"]["quorum"]  # by a version that did not have the key
    (moved / "config.json").write_text(json.dumps(about))
    run(small.with_values(resume=True, device="cpu", round_deadline=5.0))
    assert f"continuing {moved} after round 3" in told.messages


@pytest.mark.parametrize("junk", [b"", b"{}", b"[1]", b'{"config": 3}', b"\xff"])
def test_a_folder_that_is_no_run_is_passed_by(small, tmp_path, junk):
    other = tmp_path / "runs" / "other"
    other.mkdir(parents=True)
    (other / "state.safetensors").write_bytes(b"junk")
    (other / "config.json").write_bytes(junk)
    assert len(history_of(run(small.with_values(resume=True)))) == 6


def test_a_run_that_a_process_is_at_is_left_alone(small, monkeypatch, told):
    three = small.with_values(num_rounds=3)
    run(three)
    held = RunDirectory(three.with_values(resume=True))
    six = run(small.with_values(resume=True))
    held.close()
    assert any("a process is at this run" in m for m in told.messages)
    assert len(history_of(six)) == 6


@pytest.mark.parametrize("damaged", ["state.safetensors", "history.jsonl", "events.jsonl"])
def test_a_damaged_earlier_run_is_named_and_nothing_written(small, damaged):
    three = run(small.with_values(num_rounds=3))
    (three / damaged).unlink()
    (three / damaged).mkdir()
    with pytest.raises(RunDirectoryError, match=rf"^{three / damaged}: cannot be read"):
        run(small.with_values(resume=True))
    left = {name for name in contents(directory_of(small)) if name != ".lock"}
    assert left == {"config.json"}


@pytest.mark.parametrize("at", range(5))
def test_a_kill_while_rounds_are_taken_over(small, tmp_path, monkeypatch, at):
    """Whatever file was the last: the same command goes on, and counts no event twice."""
    straight = run(small.with_values(output_dir=str(tmp_path / "straight")))
    run(small.with_values(num_rounds=3))
    write, writes = RunDirectory.write, []

    def die(self, name, content):
        writes.append(name)
        if len(writes) == at + 1:
            raise StopError
        write(self, name, content)

    def dying(directory, earlier, new):
        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, "write", die)
            take_over(directory, earlier, new)

    with monkeypatch.context() as patch:
        patch.setattr("server_app.app.take_over", dying)
        with pytest.raises(StopError):
            run(small.with_values(resume=True))
    assert len(writes) == at + 1
    six = run(small.with_values(resume=True))
    assert numbers(six) == numbers(straight)
    for name in RESULTS:
        assert (six / name).read_bytes() == (straight / name).read_bytes()
    asked = [e["round"] for e in read_run(six).events if e["event"] == "asked"]
    assert asked == [1, 2, 3, 4, 5, 6]
    assert (six / "config.json").read_bytes().count(b'"num-rounds": 6') == 1


@pytest.mark.parametrize("complete", [True, False])
def test_a_shorter_run_without_its_state_is_named_and_stays_as_it_is(small, told, complete):
    three = run(small.with_values(num_rounds=3))
    (three / "state.safetensors").unlink()
    if not complete:
        (three / "summary.json").unlink()
    before = contents(three)
    six = run(small.with_values(resume=True))
    assert f"{three}: has no state.safetensors, so that it is not gone on from" in told.messages
    assert any("this one begins at round 1" in m for m in told.messages)
    assert contents(three) == before
    assert [r["round"] for r in history_of(six)] == [1, 2, 3, 4, 5, 6]


def test_a_run_that_has_no_round_yet_takes_over_what_a_shorter_one_has(small, monkeypatch, told):
    """Such as one that was begun without --resume, and stopped at once."""
    three = run(small.with_values(num_rounds=3))
    with monkeypatch.context() as patch:
        patch.setattr("server_app.strategy.SelectiveFedAvg.run", lambda *_: raise_stop())
        with pytest.raises(StopError):
            run(small)
    run(small.with_values(resume=True))
    assert f"continuing {three} after round 3" in told.messages


def raise_stop():
    raise StopError


def test_the_versions_of_the_first_rounds_are_kept(small):
    path = run(small.with_values(num_rounds=3)) / "config.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"versions": about["versions"] | {"torch": "0.1"}}))
    after = json.loads((run(small.with_values(resume=True)) / "config.json").read_text())
    assert after["versions"]["torch"] == "0.1"
    assert after["resumed-with"] == about["versions"]
