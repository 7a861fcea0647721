"""The server's own data, a simulation's data as files, and whole runs on files."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch

from client_app import app as real
from client_app.data import simulated_client
from common.config import ConfigError, RunConfig
from common.datasets import DataError, load_splits
from common.task import Task
from experiments.local_grid import run_in_process
from experiments.partition_files import PartitionFilesError, write_partition
from experiments.settings import check_data
from server_app.app import app as server_app
from server_app.strategy import RoundError
from tests.federation import directory_of, history_of
from tests.own_files import (
    CONFIG,
    LABELS,
    PIXELS,
    class_folders,
    fresh_process,
    image,
    mine,
    npz,
    table,
)


@pytest.fixture(autouse=True)
def _every_process_reads_anew():
    fresh_process()


def bad(k, value):
    x = PIXELS.astype(np.float64)
    x[k, 0, 0, 0] = value
    return x


def server(path, **keys):
    return RunConfig.from_flat({"dataset": "own", "data-dir": str(path)} | keys).data


def test_the_server_holds_out_all_of_its_data(tmp_path):
    splits = load_splits(server(npz(tmp_path)), seed=3)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (0, 3, 3)
    assert (splits.input_shape, splits.num_classes) == ((3, 4, 4), 3)
    both = torch.cat([splits.val.x, splits.test.x]).sum()
    torch.testing.assert_close(both, torch.tensor(PIXELS / 255, dtype=torch.float32).sum())
    splits = load_splits(server(npz(tmp_path), **{"validation-size": 4}), seed=3)
    assert (len(splits.val), len(splits.test)) == (4, 2)
    root = class_folders(tmp_path, names=["ant", "bee", "cow", "dog"])
    assert load_splits(server(root), seed=3).num_classes == 4
    assert load_splits(server(table(tmp_path)), seed=3).input_shape == (2,)


def test_the_servers_errors_name_its_key(tmp_path):
    with pytest.raises(DataError, match=r"^data-dir = '.*data.npz': x misses 1 of 6 values"):
        load_splits(server(npz(tmp_path, x=bad(0, np.nan))), seed=0)
    with pytest.raises(DataError, match=r"holds 1 example; the server needs 2 or more"):
        load_splits(server(npz(tmp_path, x=PIXELS[:1], y=LABELS[:1])), seed=0)
    with pytest.raises(DataError, match="validation-size = 6: own holds out 6 examples"):
        load_splits(server(npz(tmp_path), **{"validation-size": 6}), seed=0)


def test_own_data_are_not_simulated():
    with pytest.raises(ConfigError, match="dataset = 'own': here clients are simulated, and only"):
        check_data(CONFIG)


@pytest.fixture
def digits(small, tmp_path):
    """A simulation's configuration, and the files that hold the same."""
    files = tmp_path / "files"
    return small, files, dict(write_partition(small, files, overwrite=False))


@pytest.mark.parametrize("dataset", ["digits", "synthetic", "cifar10"])
def test_files_hold_what_the_simulation_trains_on(dataset, tmp_path):
    keys = {"dataset": dataset, "num-clients": 4, "seed": 5, "min-examples-per-client": 5}
    if dataset == "cifar10":  # pixels stay uint8 in the files
        classes = class_folders(tmp_path)
        for part in ("train", "test"):
            for name in ("ant", "bee", "cow"):
                (classes / part / name).mkdir(parents=True)
                for k in range(20):
                    pixels = np.full((4, 4, 3), k, np.uint8)
                    (classes / part / name / f"{k}.png").write_bytes(image(pixels))
        keys |= {"data-dir": str(classes), "partition": "iid", "num-clients": 3}
    config = RunConfig.from_flat(keys)
    splits = load_splits(config.data, config.seed)
    files = dict(write_partition(config, tmp_path / "files", overwrite=False))
    assert len(files) == config.data.num_clients + 1
    task = Task(splits.input_shape, splits.num_classes, splits.inputs)
    for k in range(config.data.num_clients):
        path = tmp_path / "files" / f"client-{k}.npz"
        own, simulated = mine(path, task), simulated_client(config, k)
        assert torch.equal(own.data.x, simulated.data.x)
        assert torch.equal(own.data.y, simulated.data.y)
        assert files[path] == len(simulated.data)
    held_out = load_splits(server(tmp_path / "files" / "server.npz"), config.seed)
    assert held_out.num_classes == splits.num_classes
    for one, other in ((held_out.val, splits.val), (held_out.test, splits.test)):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)


def test_files_are_not_overwritten_unasked(digits):
    config, files, _ = digits
    before = {p.name: p.stat().st_mtime_ns for p in files.iterdir()}
    assert sorted(before) == [*(f"client-{k}.npz" for k in range(6)), "server.npz"]
    with pytest.raises(PartitionFilesError, match=r"holds client-0.npz already; give another"):
        list(write_partition(config, files, overwrite=False))
    assert {p.name: p.stat().st_mtime_ns for p in files.iterdir()} == before
    (files / "client-list.txt").write_text("not ours")
    fewer = config.with_values(num_clients=4)
    list(write_partition(fewer, files, overwrite=True))
    left = sorted(p.name for p in files.iterdir())
    assert left == [*(f"client-{k}.npz" for k in range(4)), "client-list.txt", "server.npz"]


def test_files_that_cannot_be_written_are_named(small, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PartitionFilesError, match=r"file: cannot be written: .*; give a folder"):
        list(write_partition(small, tmp_path / "file", overwrite=False))


def deploy(config, files, clients, names="client-{}"):
    """A run whose clients and server have only files."""
    own = config.with_values(dataset="own", data_dir=str(files / "server.npz"))
    nodes = [
        {"data-path": str(files / f"client-{k}.npz"), "client-id": names.format(k)} for k in clients
    ]
    run_in_process(server_app, real.app, own.to_flat(), nodes)
    return directory_of(own)


def test_a_run_on_files_equals_the_simulation(digits):
    """Client ids seed the local SGD, so that with the simulated ones all numbers are the same."""
    config, files, _ = digits
    run_in_process(server_app, real.app, config.to_flat(), [{} for _ in range(6)])
    simulated = history_of(directory_of(config))
    own = history_of(deploy(config, files, range(6), names="partition-{}"))
    for key in ("cohort", "shapley", "val_loss", "test_accuracy"):
        assert [r[key] for r in own] == [r[key] for r in simulated]


def test_a_run_on_files_learns(digits):
    config, files, _ = digits
    directory = deploy(config.with_values(num_rounds=25), files, range(6))
    history = history_of(directory)
    assert history[-1]["test_accuracy"] > 0.8
    assert {c for r in history for c in r["cohort"]} == {f"client-{k}" for k in range(6)}
    assert "label_histogram" in (directory / "summary.json").read_text()


def test_a_client_with_unusable_data_stays_out(digits, caplog):
    config, files, _ = digits
    with np.load(files / "client-2.npz") as arrays:
        np.savez(files / "client-2.npz", x=arrays["x"], y=arrays["y"] + 9)
    history = history_of(deploy(config, files, range(6)))
    assert len(history) == config.num_rounds
    assert "client-2" not in {c for r in history for c in r["cohort"]}


def test_the_reason_reaches_the_server(digits):
    config, files, _ = digits
    for k in range(6):
        np.savez(files / f"client-{k}.npz", x=PIXELS, y=LABELS)
    with pytest.raises(
        RoundError, match=r"DataError: data-path = .* an example has shape \(3, 4, 4\)"
    ):
        deploy(config, files, range(6))


def clinics(folder, orders, labels=("ill", "well")):
    """A table for each order of columns; the columns' contents do not depend on it."""
    for k, order in enumerate(orders):
        rng = np.random.default_rng(k)
        y = rng.integers(0, 2, 40)
        cells = {"age": rng.normal(y * 2, 1), "dose": rng.normal(-y, 1), "size": rng.normal(y, 1)}
        frame = pd.DataFrame({name: cells[name] for name in order})
        frame["label"] = np.array(labels)[y]
        frame.to_csv(folder / f"client-{k}.csv", index=k == 3)


def run_on_tables(config, folder, caplog):
    """The history of a run whose server has the table of client 3, and what was logged."""
    own = config.with_values(
        dataset="own", data_dir=str(folder / "client-3.csv"), output_dir=str(folder / "runs")
    )
    nodes = [
        {"data-path": str(folder / f"client-{k}.csv"), "client-id": f"client-{k}"} for k in range(4)
    ]
    logging.getLogger("greedyfed").addHandler(caplog.handler)
    try:
        run_in_process(server_app, real.app, own.to_flat(), nodes)
    finally:
        logging.getLogger("greedyfed").removeHandler(caplog.handler)
    return history_of(directory_of(own)), caplog.messages


def test_a_run_does_not_depend_on_the_order_of_columns(small, tmp_path, caplog):
    config, names = small.with_values(num_clients=0, num_rounds=4), ["age", "dose", "size"]
    runs = []
    for name, orders in {
        "same": [names] * 4,
        "other": [names[::-1], [*names[1:], names[0]], names, names],
    }.items():
        (tmp_path / name).mkdir()
        clinics(tmp_path / name, orders)
        history, said = run_on_tables(config, tmp_path / name, caplog)
        runs.append([(r["cohort"], r["shapley"], r["val_loss"]) for r in history])
    assert runs[0] == runs[1]
    assert any("data-dir = " in line and "as a row index: ''" in line for line in said)


def test_other_names_stay_out_before_the_first_round(small, tmp_path, caplog):
    clinics(tmp_path, [["age", "dose"], ["age", "dose", "size"], ["age", "dose", "size"]] * 2)
    frame = pd.read_csv(tmp_path / "client-1.csv")
    frame.replace({"label": {"ill": "dead"}}).to_csv(tmp_path / "client-1.csv", index=False)
    frame.to_csv(tmp_path / "client-3.csv", index=False)
    config = small.with_values(num_clients=0, num_rounds=3)
    history, said = run_on_tables(config, tmp_path, caplog)
    assert {c for r in history for c in r["cohort"]} == {"client-2", "client-3"}
    first = next(k for k, line in enumerate(said) if line.startswith("round 1/3"))
    for words in ("lacks the server's feature 'size'", "the server has no class 'dead', its"):
        assert any(words in line for line in said[:first])
