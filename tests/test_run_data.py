"""A run directory as the report, the ledger and `watch` read it."""

import json
import re
import shutil

import pytest

import greedyfed
from experiments.ledger import ledger_of
from experiments.report import data_text
from experiments.run_data import RunDataError, find_runs, read_run
from experiments.status import status
from server_app.run_directory import RunDirectory
from tests.federation import history_of, run_with_a_failure


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return run_with_a_failure(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def path(made, tmp_path):
    return shutil.copytree(made, tmp_path / made.name)


def test_a_complete_run(path):
    data, summary = read_run(path), json.loads((path / "summary.json").read_text())
    assert (data.state, data.run_id, data.num_rounds) == ("complete", path.name, 6)
    assert data.rounds == history_of(path)
    assert [{"client_id": c} | about for c, about in data.clients.items()] == summary["clients"]
    assert data.summary["test_accuracy"] == summary["test_accuracy"]
    assert {"asked", "failed"} <= {e["event"] for e in data.events}
    assert data.versions["numpy"]


def test_a_run_under_way_knows_its_clients_from_the_checkpoint(path):
    sizes = {c: about["num_examples"] for c, about in read_run(path).clients.items()}
    (path / "summary.json").unlink()
    data = read_run(path)
    assert data.state == "stopped"
    assert {c: about["num_examples"] for c, about in data.clients.items()} == sizes


def test_running_is_a_lock_that_is_held(small):
    directory = RunDirectory(small)
    directory.load()
    assert (read_run(directory.path).state, read_run(directory.path).rounds) == ("running", [])
    directory.close()
    assert read_run(directory.path).state == "stopped"


@pytest.mark.parametrize("cut", [1, 20, 300])
def test_a_last_line_cut_short_is_left_out(path, cut):
    for name in ("summary.json", "state.safetensors"):  # not written yet
        (path / name).unlink()
    history = path / "history.jsonl"
    history.write_bytes(history.read_bytes()[:-cut])
    assert len(read_run(path).rounds) == (6 if cut == 1 else 5)


def test_it_reads_what_a_later_version_adds(path):
    records = [record | {"of_later": {}} for record in history_of(path)]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (path / "history.jsonl").write_text(lines)
    assert read_run(path).rounds == records


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", b"{", "config.json: cannot be read"),
        ("config.json", b"[]", "is not that of a run"),
        ("config.json", b'{"name": "another program"}', "is not that of a run"),
        ("config.json", b'{"run-id": "x", "config": {"lr": 1}}', "lacks algorithm"),
        ("history.jsonl", b"\xff\n", "history.jsonl: cannot be read"),
        ("history.jsonl", b"3\n", "line 1: it: input should be"),
        ("history.jsonl", b'{"round": 1}\n', "line 1: cohort: field required"),
        ("history.jsonl", b"junk\n{}\n", "line 1 is no JSON"),
        ("summary.json", b'{"status": "complete"', "summary.json: cannot be read"),
        ("summary.json", b'{"status": "complete"}', "summary.json: cannot be read"),
        ("state.safetensors", b"junk", "state.safetensors: cannot be read"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(path, name, content, said):
    (path / name).write_bytes(content)
    with pytest.raises(RunDataError) as error:
        read_run(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def changed(path, name, change):
    """Rewrites a file of JSON, or the second line of history.jsonl, as `change` leaves it."""
    lines = (path / name).read_text().splitlines() if name == "history.jsonl" else []
    content = json.loads(lines[1] if lines else (path / name).read_text())
    change(content)
    lines[1:2] = [json.dumps(content)]
    (path / name).write_text("\n".join(lines) + "\n")


def refused(path):
    """What every command says of the run, in one line."""
    with pytest.raises(RunDataError) as error:
        read_run(path)
    with pytest.raises(RunDataError, match=re.escape(str(error.value))):
        status(path)
    assert "\n" not in str(error.value)
    str(error.value).encode()
    return str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e200, 10**400, "x", None, [1.0]])
@pytest.mark.parametrize("key", ["shapley", "cumulative", "leave_one_out", "seconds"])
def test_figures_that_are_none(path, key, value):
    changed(path, "history.jsonl", lambda r: r[key].update({next(iter(r[key])): value}))
    assert f"history.jsonl: cannot be read: line 2: {key}." in refused(path)


@pytest.mark.parametrize("error", [0.0, 1e200, float("inf")])
def test_standard_errors_may_be_infinite(path, error):
    def change(record):
        record["std_error"] = dict.fromkeys(record["std_error"], error)

    changed(path, "history.jsonl", change)
    assert max(a.sum_se or 0.0 for a in ledger_of(read_run(path)).clients) >= error


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("config.json", lambda c: c["config"].update({"num-rounds": "abc"}), "config.num-rounds"),
        ("config.json", lambda c: c["config"].update({"num-rounds": None}), "config.num-rounds"),
        ("config.json", lambda c: c["config"].update({"num-rounds": 3}), "more than the num-round"),
        ("config.json", lambda c: c["config"].update({"num-rounds": 9}), "lacks rounds: 6 of 9"),
        ("config.json", lambda c: c["config"].update({"clients-per-round": 1}), "more clients"),
        ("config.json", lambda c: c["config"].update({"cumulative-alpha": "x"}), "cumulative-alp"),
        ("config.json", lambda c: c.update({"run-id": "\ud800"}), "surrogates not allowed"),
        ("history.jsonl", lambda r: r["shapley"].update(other=1.0), "'other' is not of the"),
        ("history.jsonl", lambda r: r["failures"].update(other="x"), "'other' is not of the"),
        (
            "history.jsonl",
            lambda r: r["class_shapley"].update(other=[1.0] * 10),
            "class_shapley: 'other' is not of the round's shapley",
        ),
        ("history.jsonl", lambda r: r.update(class_losses=[1.0]), "line 2: its figures by class"),
        (
            "history.jsonl",
            lambda r: next(iter(r["class_shapley"].values())).pop(),
            "figures by class",
        ),
        ("history.jsonl", lambda r: r["cohort"].append("\ud800"), "line 2 is no JSON"),
        ("history.jsonl", lambda r: r["cohort"].append(["a"]), "line 2: cohort."),
        ("summary.json", lambda s: s.update(round=5), "is not that of summary.json"),
        ("summary.json", lambda s: s.update(val_loss=0.5), "is not that of summary.json"),
        ("summary.json", lambda s: s["clients"].pop(), "lacks the client"),
        ("summary.json", lambda s: s["clients"][0].update(client_id=["a"]), "clients.0.client_id"),
        ("summary.json", lambda s: s["clients"][0].update(num_examples="many"), "num_examples"),
        ("summary.json", lambda s: s["clients"][0].update(label_histogram="a"), "label_histogram"),
        ("summary.json", lambda s: s["clients"][0].update(value=float("nan")), "clients.0.value"),
    ],
)
def test_content_of_no_run(path, name, change, said):
    changed(path, name, change)
    assert said in refused(path)


@pytest.mark.parametrize(
    "left_out",
    [
        ("class_shapley",),
        ("class_cumulative",),
        ("class_losses",),
        ("class_shapley", "class_losses"),
        ("class_shapley", "class_cumulative", "class_losses"),
    ],
)
@pytest.mark.parametrize("rounds", [(1,), (2, 3), range(1, 7)])
def test_a_valuation_may_tell_any_part_by_class(path, rounds, left_out):
    records = history_of(path)
    for record in records:
        for key in left_out if record["round"] in rounds else ():
            del record[key]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (path / "history.jsonl").write_text(lines)
    sums = {}
    for record in records:
        for client, values in record.get("class_shapley", {}).items():
            before = sums.get(client, [0.0] * 10)
            sums[client] = [a + b for a, b in zip(before, values, strict=True)]
    told = ledger_of(read_run(path)).class_sums
    assert told.keys() == sums.keys()
    assert all(told[c] == pytest.approx(sums[c]) for c in told)
    by_class = greedyfed.load_run(path).by_class
    assert len(by_class) == sum(10 * len(r.get("class_shapley", {})) for r in records)
    told = {r["round"] for r in records if "class_cumulative" in r}
    assert set(by_class.dropna()["round"]) == told & set(by_class["round"])
    status(path)
    data_text([read_run(path)])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algorithm", "of-later"),
        ("valuation", "of-later"),
        ("cumulative", "median"),
        ("of-later", 1),
        ("partition", ""),
        ("learning-rate", -1.0),
        ("dataset", 3),
    ],
)
def test_what_this_version_does_not_know_is_shown_as_it_is(path, key, value):
    changed(path, "config.json", lambda c: c["config"].update({key: value}))
    run = read_run(path)
    assert run.config[key] == value
    (told,) = json.loads(data_text([run]))["runs"]
    assert told["config"][key] == value
    assert ledger_of(run).clients
    assert greedyfed.load_run(path).config[key] == value
    if key == "algorithm":
        assert told["label"] == "of-later, seed 0"
    if key == "cumulative":  # whose errors would be of another rule
        assert {row[4] for rows in told["values"] for row in rows} == {None}


@pytest.mark.parametrize("name", ["config.json", "summary.json", "history.jsonl"])
def test_deep_nesting_and_a_folder_in_a_files_place(path, name):
    (path / name).write_text("[" * 100_000 + "\n{}\n")
    assert f"{name}: cannot be read" in refused(path)
    (path / name).unlink()
    (path / name).mkdir()
    assert f"{name}: cannot be read" in refused(path)


def test_events_of_something_else_are_left_out(path):
    before = read_run(path).events
    asked = {"time": 1.0, "round": 1, "event": "asked", "clients": ["a"]}
    strange = [asked | {"round": "x"}, asked | {"round": -99}, asked | {"clients": 5}]
    strange += [asked | {"time": float("nan")}, asked | {"clients": ["\ud800"]}, 3, [asked], {}]
    strange += [{"time": 1.0, "round": 1, "event": "answered", "client": ["a"]}]
    with open(path / "events.jsonl", "a") as file:
        file.writelines(json.dumps(event) + "\n" for event in strange)
        file.write("[" * 100_000 + "\n")
    assert read_run(path).events == before


def test_a_missing_round_is_found(path):
    lines = (path / "history.jsonl").read_text().splitlines(keepends=True)
    (path / "history.jsonl").write_text("".join(lines[:2] + lines[3:]))
    with pytest.raises(RunDataError, match="line 3 is round 4"):
        read_run(path)


def test_what_is_no_run(path, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDataError, match="no such folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(RunDataError, match="a file"):
        read_run(tmp_path / "file")
    with pytest.raises(RunDataError, match=r"no run here, it has no config\.json; give"):
        read_run(tmp_path / "empty")
    with pytest.raises(RunDataError, match="holds 1 runs"):
        read_run(tmp_path)
    assert find_runs(tmp_path) == [path]
