"""A run directory as the report, the ledger and `watch` read it."""

import json
import shutil

import pytest

from experiments.run_data import RunDataError, find_runs, read_run
from server_app.run_directory import RunDirectory
from tests.federation import history_of, run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    from common.config import RunConfig

    keys = {"num-clients": 6, "clients-per-round": 2, "num-rounds": 6, "learning-rate": 0.1}
    config = RunConfig.from_flat(keys | {"output-dir": str(tmp_path_factory.mktemp("runs"))})
    return run(config, faults={2: "nan"})


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
    history = path / "history.jsonl"
    history.write_bytes(history.read_bytes()[:-cut])
    assert len(read_run(path).rounds) == (6 if cut == 1 else 5)


def test_it_reads_what_a_later_version_adds(path):
    records = [record | {"class_shapley": {}} for record in history_of(path)]
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
