"""TensorBoard and MLflow have what history.jsonl has, and no run depends on them."""

import logging
import shutil
import socket
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from common.config import ConfigError
from experiments.loopback import wait_for
from experiments.parallel import Workers, run_all
from experiments.simulation import free_port
from server_app import loggers, run_directory
from server_app.run_directory import RunDirectory
from server_app.tracking import MAX_CURVES, MLFLOW_RUN, MLflow, scalars
from tests.federation import directory_of, history_of, run

NUMBERS = "gain", "evaluations", "val_loss", "val_accuracy", "test_loss", "test_accuracy"
event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
mlflow = pytest.importorskip("mlflow")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """A database with MLflow's tables, which take seconds to make."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{path}")
    return path


@pytest.fixture(autouse=True)
def _store(small, empty_store, monkeypatch):
    """MLflow's database where a run looks for it when no variable says otherwise."""
    monkeypatch.setattr(loggers, "END_SECONDS", 300)  # this machine may be busy
    Path(small.output_dir).mkdir()
    shutil.copy(empty_store, small.output_dir)
    for variable in ("TRACKING_URI", "EXPERIMENT_ID", "EXPERIMENT_NAME"):
        monkeypatch.delenv(f"MLFLOW_{variable}", raising=False)


@pytest.fixture
def messages(caplog, monkeypatch):
    """What the ServerApp tells its user."""
    logger = logging.getLogger("greedyfed")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    return caplog


def events_of(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> steps and values, as TensorBoard reads them."""
    reader = event_accumulator.EventAccumulator(str(directory / "tensorboard")).Reload()
    return {t: [(e.step, e.value) for e in reader.Scalars(t)] for t in reader.Tags()["scalars"]}


def run_in(store: Path, directory: Path):
    """MLflow's client, and its run of a run directory."""
    client = mlflow.MlflowClient(f"sqlite:///{store}/mlflow.db")
    return client, client.get_run((directory / MLFLOW_RUN).read_text().strip())


def metrics_of(directory: Path, store: Path | None = None) -> dict[str, list[tuple[int, float]]]:
    """Metric -> steps and values, as MLflow reads them."""
    client, found = run_in(store or directory.parent, directory)
    return {
        key: [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, key)]
        for key in found.data.metrics
    }


def expected(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Each name that is logged, with its round and value, straight from history.jsonl."""
    points, latest = {}, {}
    for record in history_of(directory):
        latest |= record["cumulative"]
        values = sorted(latest.values())
        row = {key: record[key] for key in NUMBERS}
        row |= {f"seconds/{k}": v for k, v in record["seconds"].items()}
        row["seconds/total"] = sum(record["seconds"].values())
        row |= {f"bytes/{k}": v for k, v in record["bytes"].items()}
        row |= {f"cumulative/{k}": v for k, v in record["cumulative"].items()}
        row["cumulative-of-all/lowest"] = values[0]
        row["cumulative-of-all/median"] = np.median(values)
        row["cumulative-of-all/highest"] = values[-1]
        row["clients/asked"] = len(record["cohort"])
        row["clients/failed"] = len(record["failures"])
        for key, value in row.items():
            points.setdefault(key, []).append((record["round"], value))
    return points


def in_32_bits(points):
    return {k: [(step, np.float32(value)) for step, value in v] for k, v in points.items()}


def test_both_have_every_round_of_history(small):
    config = small.with_values(loggers="tensorboard, mlflow")
    directory = run(config, faults={1: "nan"})
    assert any(record["failures"] for record in history_of(directory))
    points = expected(directory)
    assert metrics_of(directory) == points
    assert events_of(directory) == in_32_bits(points)
    _, found = run_in(directory.parent, directory)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == directory.name == small.run_id
    assert found.data.params == {k: str(v) for k, v in config.identity().items()}
    assert found.data.tags["run_directory"] == str(directory)
    began, ended = found.info.start_time, found.info.end_time
    assert 0 < ended - began < 60_000


class StopError(Exception):
    pass


def at_round(monkeypatch, actions):
    """After a round is recorded, do what `actions` has for it with the run directory."""
    record = RunDirectory.record

    def act(self, row, state):
        record(self, row, state)
        actions.get(row.round, lambda path: None)(self.path)

    monkeypatch.setattr(RunDirectory, "record", act)


def stop(path):
    raise StopError


@pytest.mark.parametrize("checkpoint_lost", [False, True])
def test_a_resumed_run_has_each_round_once(small, monkeypatch, checkpoint_lost):
    """Also rounds that are computed again, as after a `kill -9`."""
    monkeypatch.setattr(run_directory, "SAVE_EVERY_SECONDS", 0)
    config, old = small.with_values(loggers="tensorboard,mlflow"), {}
    with monkeypatch.context() as patch:
        keep = {2: lambda path: old.update(state=(path / "state.safetensors").read_bytes())}
        at_round(patch, keep | {5: stop})
        with pytest.raises(StopError):
            run(config)
    directory = directory_of(config)
    assert run_in(directory.parent, directory)[1].info.status == "FAILED"
    assert [step for step, _ in metrics_of(directory)["val_loss"]] == [1, 2, 3, 4]
    if checkpoint_lost:
        (directory / "state.safetensors").write_bytes(old["state"])
    run(config.with_values(resume=True))
    points, metrics = expected(directory), metrics_of(directory)
    assert steps(metrics) == steps(points)
    assert metrics["cumulative-of-all/median"] == points["cumulative-of-all/median"]
    assert events_of(directory) == in_32_bits(points)
    assert run_in(directory.parent, directory)[1].info.status == "FINISHED"


def steps(points):
    return {key: [step for step, _ in values] for key, values in points.items()}


def test_a_finished_run_is_handed_over(small):
    """A run that had no logger, by --resume."""
    directory = run(small)
    run(small.with_values(resume=True, loggers="tensorboard,mlflow"))
    points = expected(directory)
    assert metrics_of(directory) == points
    assert events_of(directory) == in_32_bits(points)
    info = run_in(directory.parent, directory)[1].info
    assert 0 < info.end_time - info.start_time < 60_000  # the run's own time
    run(small.with_values(resume=True, loggers="mlflow"))  # it has them
    assert metrics_of(directory) == points


def test_a_failure_costs_a_warning_and_is_made_up_for(small, monkeypatch, messages):
    """MLflow's database loses a table for two rounds."""
    monkeypatch.setattr(loggers, "RETRY_SECONDS", 0)

    def rename(path, old, new):
        with sqlite3.connect(path.parent / "mlflow.db") as store:
            store.execute(f"ALTER TABLE {old} RENAME TO {new}")

    def warnings():
        return [m for m in messages.messages if m.startswith("mlflow")]

    def lose(path):
        # The logger has a thread of its own, which may be behind: its run, but not yet a round.
        wait_for((path / MLFLOW_RUN).exists, 30, "a run in MLflow")
        rename(path, "metrics", "lost")

    def restore(path):
        wait_for(warnings, 30, "the warning")
        rename(path, "lost", "metrics")

    at_round(monkeypatch, {2: lose, 4: restore})
    directory = run(small.with_values(loggers="mlflow"))
    (warning,) = warnings()
    assert "no such table: metrics" in warning
    assert warning.endswith("; the run goes on without it")
    assert metrics_of(directory) == expected(directory)


def test_a_server_that_is_not_there_loses_nothing(small, tmp_path, monkeypatch, messages):
    straight = run(small.with_values(output_dir=str(tmp_path / "straight")))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    directory = run(small.with_values(loggers="mlflow"))
    assert model(directory) == model(straight)
    first, last = (m for m in messages.messages if m.startswith("mlflow"))
    assert "refused" in first
    assert "the run goes on without it" in first
    assert last.startswith(f"mlflow lacks rounds of {small.run_id}; ")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    run(small.with_values(loggers="mlflow", resume=True))
    assert metrics_of(directory, tmp_path) == expected(directory)


def model(directory):
    return (directory / "model.safetensors").read_bytes()


def test_a_server_that_does_not_answer_holds_up_no_round(small, monkeypatch, messages):
    monkeypatch.setattr(loggers, "END_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3600")
        directory = run(small.with_values(loggers="mlflow"))
    assert len(history_of(directory)) == 6
    assert f"mlflow lacks rounds of {small.run_id}" in messages.text


def test_event_files_that_cannot_be_written_lose_no_run(small, messages):
    directory = directory_of(small)
    directory.mkdir(parents=True)
    (directory / "tensorboard").write_text("a file where the folder should be")
    run(small.with_values(loggers="tensorboard"))
    assert len(history_of(directory)) == 6
    assert "tensorboard: " in messages.text
    (directory / "tensorboard").unlink()
    run(small.with_values(loggers="tensorboard", resume=True))
    assert events_of(directory) == in_32_bits(expected(directory))


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_missing_library_is_told_before_any_work(small, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as error:
        run(small.with_values(loggers=name))
    assert str(error.value) == (
        f"loggers = '{name}': needs {name}, which is not installed; "
        f"pip install 'greedyfed[{name}]', or leave it out"
    )
    assert not directory_of(small).exists()


def test_runs_that_begin_at_once_share_a_database(small):
    """Two processes, and no database yet."""
    (store := Path(small.output_dir) / "mlflow.db").unlink()
    configs = [small.with_values(loggers="mlflow", seed=seed) for seed in (1, 2)]
    outcome = run_all(configs, Workers(2), Console(quiet=True))
    assert not outcome.failed
    for config in configs:
        assert len(metrics_of(directory_of(config), store.parent)["val_loss"]) == 6


def test_any_client_id_can_be_logged(small, tmp_path):
    """Ids may hold any printable characters; MLflow's names may not."""
    ids = ["clinic-a.example.org", "Klinik München", "a+b", "a-b", "..", ".", "a/b", "x" * 100]
    values = {client: float(k) for k, client in enumerate(ids)}
    record = {
        **{"round": 1, "cohort": ids, "failures": {}, "cumulative": values},
        **{"val_loss": 1.0, "seconds": {}, "bytes": {}},
    }
    (tmp_path / "runs" / "run").mkdir()
    logger = MLflow(small, tmp_path / "runs" / "run")
    logger.write(record, values, 1.0)
    logged = metrics_of(tmp_path / "runs" / "run")
    of_clients = [key for key in logged if key.startswith("cumulative/")]
    assert sorted(logged[key][0][1] for key in of_clients) == sorted(values.values())
    assert "cumulative/clinic-a.example.org" in of_clients


def test_what_is_logged_is_bounded(small):
    record = history_of(run(small))[-1]
    values = {f"partition-{k}": 0.1 * k for k in range(1000)}
    logged = scalars(record | {"cumulative": values}, values)
    curves = [key for key in logged if key.startswith("cumulative/")]
    assert curves == [f"cumulative/partition-{k}" for k in range(MAX_CURVES)]
    assert len(logged) < MAX_CURVES + 25
