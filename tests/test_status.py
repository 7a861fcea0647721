"""`greedyfed status`, and the events that it reads."""

import json
import subprocess
import sys
from collections import Counter

import pytest
from rich.console import Console

from common.errors import RunFailedError
from experiments.run_data import RunDataError
from experiments.status import status
from experiments.summary import summary_table
from server_app.events import read_events
from server_app.run_directory import RunDirectory
from tests.federation import directory_of, history_of, run


def shown(path):
    console = Console(width=200)
    with console.capture() as capture:
        console.print(status(path))
    return capture.get()


def test_events_tell_of_every_request(small):
    path = run(small.with_values(num_rounds=8), faults={2: "nan", 4: "raises"})
    events, history = read_events(path), history_of(path)
    for record in history:
        mine = [e for e in events if e["round"] == record["round"]]
        kinds = {
            k: [e for e in mine if e["event"] == k] for k in ("accepted", "failed", "answered")
        }
        assert [c for e in mine if e["event"] == "asked" for c in e["clients"]] == record["cohort"]
        assert {e["client"]: e["why"] for e in kinds["failed"]} == record["failures"]
        accepted = {e["client"] for e in kinds["accepted"]}
        assert accepted == set(record["cohort"]) - set(record["failures"])
        assert {e["client"] for e in kinds["answered"]} == set(record["cohort"])
    times = [e["time"] for e in events]
    assert times == sorted(times)
    assert Counter(e["event"] for e in events)["failed"] >= 2


def test_a_complete_run(small):
    path = run(small, faults={2: "nan"})
    text = shown(path)
    assert f"{path.name}: complete, 6 of 6 rounds" in text
    assert all(f"partition-{i}" in text for i in range(6))
    assert "1 of 4785 parameters are NaN or Inf" in text
    assert f"{path.name}" in shown(path.parent)


def test_a_round_that_failed_is_shown_with_who_failed_and_why(small):
    with pytest.raises(RunFailedError):
        run(small, faults=dict.fromkeys(range(6), "raises"))
    text = shown(directory_of(small))
    assert "stopped, 0 of 6 rounds" in text
    assert "Round 1" in text
    assert text.count("RuntimeError: the disk of this client is full") >= 6


def test_a_run_under_way_shows_who_has_not_answered(small):
    directory = RunDirectory(small)
    directory.load()
    directory.note({"round": 1, "event": "asked", "clients": ["a", "b", "c"]})
    directory.note({"round": 1, "event": "answered", "client": "b"})
    directory.note({"round": 1, "event": "refused", "node": "stranger", "why": "no data-path"})
    text = shown(directory.path)
    assert "running, 0 of 6 rounds" in text
    rows = {line.split()[0]: line for line in text.splitlines() if line.split()}
    assert "has not answered yet" in rows["a"]
    assert "answered" in rows["b"]
    assert "no data-path" in rows["stranger"]
    directory.close()
    assert "stopped" in shown(directory.path)


def test_a_line_cut_short_by_a_kill_costs_only_itself(small):
    directory = RunDirectory(small)
    directory.load()
    directory.note({"round": 1, "event": "asked", "clients": ["a"]})
    directory.close()
    with open(directory.path / "events.jsonl", "a") as file:
        file.write('{"time": 1.0, "round": 1, "ev')
    directory = RunDirectory(small.with_values(resume=True))
    directory.load()
    directory.note({"round": 1, "event": "asked", "clients": ["b"]})
    directory.close()
    assert [e["clients"] for e in read_events(directory.path)] == [["a"], ["b"]]


def test_a_damaged_run_hides_no_other(small):
    whole, other = run(small), run(small.with_values(seed=1))
    (other / "history.jsonl").write_bytes(b"\xff\n{}\n")
    text = shown(whole.parent)
    assert f"{whole.name}" in text
    assert "complete" in text
    assert "damaged: history.jsonl: cannot be read" in " ".join(text.split())


def test_who_was_never_valued_has_no_value_and_comes_last(small):
    path = run(small, faults={2: "nan", 4: "raises"})
    valued = {c for record in history_of(path) for c in record["shapley"]}
    console = Console(width=200)
    with console.capture() as capture:
        console.print(summary_table(path))
    for text, none in ((capture.get(), "–"), (shown(path), "none yet")):
        lines = [li.split(maxsplit=1) for li in text.splitlines() if "partition-" in li]
        lines = [li for li in lines if li[0].startswith("partition-")]
        assert len(lines) == 6 > len(valued)
        assert [li[0] in valued for li in lines] == [True] * len(valued) + [False] * (
            6 - len(valued)
        )
        assert all(li[1].startswith(none) != (li[0] in valued) for li in lines)


def test_what_is_not_a_run(small, tmp_path):
    with pytest.raises(RunDataError, match="no such folder"):
        status(tmp_path / "nowhere")
    path = run(small.with_values(num_rounds=1))
    (path / "config.json").write_text(json.dumps({"config": {"no-such-key": 1}}))
    with pytest.raises(RunDataError, match="is not that of a run"):
        status(path)
    command = [sys.executable, "-m", "experiments.cli", "status", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
