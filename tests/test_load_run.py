"""`greedyfed.load_run`: what history.jsonl and the ledger say, as frames."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import greedyfed
from common.config import RunConfig
from common.errors import GreedyfedError
from experiments.ledger import COLUMNS, ledger_of
from experiments.run_data import read_run
from server_app.run_directory import RunDirectory
from tests.federation import history_of, run

pytest.importorskip("pandas")
KEYS = {"num-clients": 6, "clients-per-round": 2, "num-rounds": 6, "learning-rate": 0.1}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A run in which a client fails each time that it is asked."""
    config = RunConfig.from_flat(KEYS | {"output-dir": str(tmp_path_factory.mktemp("runs"))})
    return run(config, faults={2: "nan"})


def test_rounds_have_the_numbers_of_history_to_the_last_digit(path):
    loaded, history = greedyfed.load_run(path), history_of(path)
    rows = loaded.rounds.reset_index().to_dict("records")
    for row, record in zip(rows, history, strict=True):
        numbers = {k: v for k, v in record.items() if isinstance(v, int | float | str)}
        assert {key: row[key] for key in numbers} == numbers
        assert row["asked"] == len(record["cohort"])
        assert row["failed"] == len(record["failures"])
        assert row["counted"] == len(record["shapley"])
        assert {k: row[f"seconds_{k}"] for k in record["seconds"]} == record["seconds"]
        assert {k: row[f"bytes_{k}"] for k in record["bytes"]} == record["bytes"]
        assert row["seconds"] == sum(record["seconds"].values())


def test_values_are_those_of_history(path):
    values = greedyfed.load_run(path).values
    for record in history_of(path):
        of_round = values[values["round"] == record["round"]].set_index("client")
        for key in ("shapley", "std_error", "cumulative", "leave_one_out"):
            known = of_round[key].dropna()
            assert known.to_dict() == record[key]


def test_values_by_class_are_those_of_history(path):
    by_class = greedyfed.load_run(path).by_class
    for record in history_of(path):
        of_round = by_class[by_class["round"] == record["round"]]
        for key in ("shapley", "cumulative"):
            found = of_round.groupby("client", sort=False)[key].apply(list)
            assert found.to_dict() == record[f"class_{key}"]


def test_selections_say_who_failed_and_why(path):
    selections = greedyfed.load_run(path).selections
    assert len(selections) == sum(len(record["cohort"]) for record in history_of(path))
    failed = selections[selections["status"] == "failed"]
    assert set(failed["client"]) == {"partition-2"}
    assert failed["why"].str.contains("are NaN or Inf").all()
    assert selections.loc[selections["status"] != "failed", "why"].isna().all()


def test_clients_are_the_ledger_s_lines(path):
    loaded, ledger = greedyfed.load_run(path), ledger_of(read_run(path))
    summary = {
        c["client_id"]: c for c in json.loads((path / "summary.json").read_text())["clients"]
    }
    assert list(loaded.clients.index) == [account.client for account in ledger.clients]
    for account in ledger.clients:
        row = loaded.clients.loc[account.client]
        for key in list(COLUMNS)[1:]:
            expected = getattr(account, key)
            assert row[key] == expected or (expected is None and row[key] != row[key])
        assert row["local_epochs"] == summary[account.client]["local_epochs"]
        histogram = loaded.labels[loaded.labels["client"] == account.client]["examples"]
        assert histogram.to_list() == summary[account.client]["label_histogram"]
    assert loaded.config == read_run(path).config
    assert (loaded.run_id, loaded.state) == (path.name, "complete")


def test_a_spare_client_that_nobody_waited_for_was_left_out(path, tmp_path):
    changed = shutil.copytree(path, tmp_path / path.name)
    history = history_of(path)
    spare = next(c for c in read_run(path).clients if c not in history[0]["cohort"])
    history[0]["cohort"].append(spare)  # asked, and in neither values nor failures
    (changed / "history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in history))
    selections = greedyfed.load_run(changed).selections
    (left_out,) = selections[selections["status"] == "left out"].itertuples()
    assert (left_out.round, left_out.client) == (1, spare)


def test_a_run_without_values(small):
    loaded = greedyfed.load_run(run(small.with_values(algorithm="fedavg")))
    assert loaded.values.empty
    assert loaded.clients["cumulative"].isna().all()
    assert (loaded.rounds["counted"] == 2).all()
    assert loaded.clients["asked"].sum() == 12


def test_the_epsilon_of_a_client_without_noise_is_infinite(small):
    keys = {"noise_sigma": 3.0, "clip_norm": 1.0, "privacy_delta": 1e-4}
    epsilon = greedyfed.load_run(run(small.with_values(**keys))).clients["epsilon"]
    assert (epsilon == float("inf")).sum() == 1  # noise levels begin at 0
    assert (epsilon > 0).all()


def test_a_run_that_goes_on(small):
    """No round yet: frames have their columns, and no rows."""
    directory = RunDirectory(small)
    directory.load()
    try:
        loaded = greedyfed.load_run(str(directory.path))
    finally:
        directory.close()
    assert loaded.state == "running"
    assert loaded.rounds["val_loss"].empty
    assert loaded.clients["cumulative"].empty
    assert loaded.labels.empty
    assert loaded.selections["status"].empty


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda p: p, "no such folder; give a run directory"),
        (lambda p: p.mkdir() or p, "no run here, it has no config.json; give a run directory"),
        (lambda p: p.write_text("x") and p, "a file; give a run directory"),
    ],
    ids=["missing", "empty", "a file"],
)
def test_what_is_no_run_gives_one_line(tmp_path, make, line):
    with pytest.raises(GreedyfedError) as error:
        greedyfed.load_run(make(tmp_path / "run"))
    assert str(error.value) == f"{tmp_path / 'run'}: {line}"


@pytest.mark.parametrize("name", ["config.json", "history.jsonl", "summary.json"])
def test_a_damaged_file_is_named(path, tmp_path, name):
    changed = shutil.copytree(path, tmp_path / path.name)
    (changed / name).write_text('{"cut": \n{}\n')
    with pytest.raises(GreedyfedError) as error:
        greedyfed.load_run(changed)
    assert str(error.value).startswith(f"{changed / name}: cannot be read: ")
    assert len(str(error.value).splitlines()) == 1


def test_without_pandas_it_says_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(GreedyfedError) as error:
        greedyfed.load_run(path)
    assert str(error.value) == "load_run: needs pandas; pip install 'greedyfed[frames]'"


def test_importing_greedyfed_loads_nothing():
    code = (
        "import sys; before = set(sys.modules); import greedyfed; print(*set(sys.modules) - before)"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert not {"numpy", "torch", "pandas", "pydantic", "experiments"} & set(done.stdout.split())
