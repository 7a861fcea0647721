"""`greedyfed ledger`: its figures against the lines of history.jsonl."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from fractions import Fraction
from math import sqrt
from statistics import stdev

import pytest
from flwr.app import Context, RecordDict

from common.config import RunConfig
from common.errors import RunFailedError
from experiments.ledger import COLUMNS, ledger_of
from experiments.ledger_formats import as_csv, as_json, as_markdown
from experiments.local_grid import FIRST_CLIENT_NODE
from experiments.run_data import read_run
from server_app.app import app as server_app
from tests.federation import SilentGrid, directory_of, faulty_app, history_of, run

KEYS = {"num-clients": 6, "clients-per-round": 2, "num-rounds": 8, "learning-rate": 0.1}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    config = RunConfig.from_flat(KEYS | {"output-dir": str(tmp_path_factory.mktemp("runs"))})
    return run(config.with_values(valuation="gtg"), faults={2: "nan", 4: "raises"})


@pytest.fixture
def path(made, tmp_path):
    return shutil.copytree(made, tmp_path / made.name)


def rewrite(path, change):
    records = history_of(path)
    for record in records:
        change(record)
    text = "".join(json.dumps(record) + "\n" for record in records)
    (path / "history.jsonl").write_text(text)


def exact_sum(numbers):
    return float(sum(map(Fraction, numbers)))


def test_every_figure_follows_from_the_history(path):
    ledger, history = ledger_of(read_run(path)), history_of(path)
    gain = exact_sum(r["gain"] for r in history)
    assert (ledger.gain, ledger.num_rounds) == (gain, 8)
    positive = exact_sum(max(a.sum, 0) for a in ledger.clients if a.valued)
    for a in ledger.clients:
        asked = [r for r in history if a.client in r["cohort"]]
        valued = [r for r in asked if a.client in r["shapley"]]
        values = [r["shapley"][a.client] for r in valued]
        assert (a.asked, a.valued, a.frequency) == (len(asked), len(valued), len(asked) / 8)
        assert a.failed == sum(a.client in r["failures"] for r in asked)
        if not valued:
            assert (a.sum, a.mean, a.share, a.credit, a.loss_without) == (None,) * 5
            continue
        assert a.sum == exact_sum(values)
        assert a.mean == a.sum / len(values)
        errors = [Fraction(r["std_error"][a.client] ** 2) for r in valued]
        assert a.sum_se == pytest.approx(sqrt(exact_sum(errors)), rel=1e-15)
        assert a.spread == (stdev(values) if len(values) > 1 else None)
        assert (a.latest, a.latest_round) == (values[-1], valued[-1]["round"])
        assert a.cumulative == valued[-1]["cumulative"][a.client]
        assert a.share == a.sum / gain
        assert a.credit == max(a.sum, 0) / positive
        assert a.marginal == exact_sum(r["leave_one_out"][a.client] for r in valued)
        assert a.loss_without == valued[-1]["val_loss"] + valued[-1]["leave_one_out"][a.client]
    assert sum(a.credit for a in ledger.clients if a.valued) == pytest.approx(1)


def test_the_shares_and_the_residual_add_up(path):
    ledger = ledger_of(read_run(path))
    shares = sum(a.share for a in ledger.clients if a.share is not None)
    assert shares == pytest.approx(1 - ledger.residual / ledger.gain)
    for told, record in zip(ledger.rounds, history_of(path), strict=True):
        assert told.gain == record["gain"]
        assert told.residual == told.gain - exact_sum(record["shapley"].values())


@pytest.mark.parametrize("spares", [0, 2])
def test_failures_silence_and_spares_are_told_apart(small, spares):
    config = small.with_values(round_deadline=0.3, spare_clients=spares, num_rounds=4)
    flat, nodes = config.to_flat(), [{}, {}, {"fault": "nan"}, {}, {}, {}]
    grid = SilentGrid(faulty_app, flat, nodes, silent={FIRST_CLIENT_NODE + 3})
    server_app(grid=grid, context=Context(1, 1, {}, RecordDict(), flat))
    accounts = {a.client: a for a in ledger_of(read_run(directory_of(config))).clients}
    nan, silent = accounts["partition-2"], accounts["partition-3"]
    assert nan.answered == nan.failed == nan.asked > 0
    assert silent.asked > silent.answered == silent.counted == 0
    assert silent.left_out + silent.failed == silent.asked
    assert bool(silent.left_out) == bool(spares)
    for a in accounts.values():
        assert a.asked == a.counted + a.failed + a.left_out


def test_a_round_that_broke_off_is_counted(small):
    with pytest.raises(RunFailedError):
        run(small, faults=dict.fromkeys(range(6), "raises"))
    data = read_run(directory_of(small))
    ledger, lost = ledger_of(data), data.unfinished
    assert (data.rounds, lost["round"]) == ([], 1)
    assert len(lost["failures"]) == len(lost["asked"]) == len(set(lost["asked"])) > 0
    assert "the disk of this client is full" in next(iter(lost["failures"].values()))
    for a in ledger.clients:
        of_it = a.client in lost["asked"]
        assert (a.asked, a.failed, a.counted, a.left_out) == (of_it, of_it, 0, 0)
        assert a.frequency == of_it
    count = len(lost["asked"])
    assert f"Round 1 broke off: {count} of {count} clients asked failed" in " ".join(ledger.notes)


def test_the_forms_agree_to_the_last_digit(path):
    ledger = ledger_of(read_run(path))
    told = json.loads(as_json(ledger))
    rows = list(csv.DictReader(io.StringIO(as_csv(ledger))))
    assert list(rows[0]) == list(COLUMNS)
    assert list(told["columns"]) == [*COLUMNS, "class_sums"]
    for row, account in zip(rows, told["clients"], strict=True):
        for name, value in account.items():
            assert row[name] == ("" if value is None else str(value))
    assert f"fell by {ledger.gain:.6g} nats" in as_markdown(ledger)


def test_a_spreadsheet_takes_no_client_for_a_formula(path):
    names = ["=1+1", "+1", "-1", "@A1", "\tx", "a=b"]
    text = (path / "history.jsonl").read_text()
    for k, name in enumerate(names):
        text = text.replace(f'"partition-{k}"', json.dumps(name))
    (path / "history.jsonl").write_text(text)
    (path / "summary.json").unlink()
    (path / "state.safetensors").unlink()
    ledger = ledger_of(read_run(path))
    cells = {row["client"] for row in csv.DictReader(io.StringIO(as_csv(ledger)))}
    assert cells == {"'=1+1", "'+1", "'-1", "'@A1", "\\tx", "a=b"}
    assert {a["client"] for a in json.loads(as_json(ledger))["clients"]} == set(names)


def test_markdown_shows_a_client_as_it_is_called(path):
    for name in ("history.jsonl", "summary.json"):
        text = (path / name).read_text().replace('"partition-0"', '"a|b<i>_c"')
        (path / name).write_text(text)
    assert "| a\\|b\\<i\\>\\_c |" in as_markdown(ledger_of(read_run(path)))


def test_a_run_that_was_recorded_before_gains_were(path):
    before = ledger_of(read_run(path))

    def older(record):
        del record["gain"], record["leave_one_out"], record["val_accuracy"]

    rewrite(path, older)
    (path / "events.jsonl").unlink()
    ledger = ledger_of(read_run(path))
    assert ledger.gain == pytest.approx(before.gain, abs=2e-4)
    assert ledger.rounds[0].residual == 0
    assert ledger.rounds[1:] == before.rounds[1:]
    assert "did not record what its first round gained" in ledger.notes[0]
    columns = ("client", "asked", "answered", "failed", "counted", "sum")
    for a in ledger.clients:
        b = next(b for b in before.clients if b.client == a.client)
        assert [getattr(a, c) for c in columns] == [getattr(b, c) for c in columns]
        assert (a.marginal, a.marginal_rounds, a.loss_without) == (None, 0, None)


def test_without_values_nothing_is_shared_out(small):
    ledger = ledger_of(read_run(run(small.with_values(algorithm="fedavg"))))
    assert {(a.sum, a.share, a.valued) for a in ledger.clients} == {(None, None, 0)}
    assert sum(a.counted for a in ledger.clients) == 12
    assert (ledger.gain, ledger.notes) == (None, ["The run has no values: nothing is shared out."])


def test_no_improvement_no_shares(path):
    rewrite(path, lambda record: record.update(gain=-abs(record["gain"])))
    ledger = ledger_of(read_run(path))
    assert {a.share for a in ledger.clients} == {None}
    assert "did not fall" in ledger.notes[0]
    assert f"The validation loss rose by {-ledger.gain:.6g} nats" in as_markdown(ledger)


def test_values_by_class_are_summed(path):
    def by_class(record):
        record["class_shapley"] = {c: [v, 2 * v] for c, v in record["shapley"].items()}
        record |= {"class_cumulative": record["class_shapley"], "class_losses": [1.0, 2.0]}

    rewrite(path, by_class)
    ledger = ledger_of(read_run(path))
    sums = {a.client: a.sum for a in ledger.clients if a.valued}
    assert ledger.class_sums == {c: [v, 2 * v] for c, v in sums.items()}


@pytest.mark.parametrize("form", ["csv", "json", "md"])
def test_the_command(path, form):
    command = [sys.executable, "-m", "experiments.cli", "ledger", str(path), "--format", form]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    write = {"csv": as_csv, "json": as_json, "md": as_markdown}[form]
    assert done.stdout == write(ledger_of(read_run(path)))
    assert ("add up to" in done.stderr) == (form == "csv")


def test_the_epsilon_of_a_run_is_the_same_before_its_end(small):
    keys = {"noise_sigma": 3.0, "clip_norm": 1.0, "privacy_delta": 1e-4}
    path = run(small.with_values(**keys))
    told = {a.client: a.epsilon for a in ledger_of(read_run(path)).clients}
    summary = json.loads((path / "summary.json").read_text())["clients"]
    assert told == {
        c["client_id"]: float("inf") if c["epsilon"] is None else c["epsilon"] for c in summary
    }
    (path / "summary.json").unlink()
    assert {a.client: a.epsilon for a in ledger_of(read_run(path)).clients} == told
    assert '"epsilon": null' in as_json(ledger_of(read_run(path)))
    assert "| ∞ |" in as_markdown(ledger_of(read_run(path)))


def test_output_that_cannot_be_written_is_one_line(path):
    command = [sys.executable, "-m", "experiments.cli", "ledger", str(path), "--format", "json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("greedyfed: output cannot be written: No space left on device")


@pytest.mark.parametrize("command", ["ledger", "status"])
def test_a_reader_that_has_had_enough_is_no_error(path, command):
    reader, writer = os.pipe()
    os.close(reader)
    line = [sys.executable, "-m", "experiments.cli", command, str(path)]
    with open(writer, "w") as closed:
        done = subprocess.run(line, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode != 0, done.stderr) == (True, "")
