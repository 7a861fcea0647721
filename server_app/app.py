"""The ServerApp: configuration -> parts -> rounds -> result files."""

import json
import logging
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from math import isclose, isfinite
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from common.config import ConfigError, RunConfig
from common.datasets import load_splits
from common.models import build_model, check_device
from common.params import model_bytes
from server_app.algorithms import build_strategy, is_valued, never_by_value
from server_app.continuation import beginning, earlier_run, take_over
from server_app.events import read_events
from server_app.groups import grouping_from
from server_app.loggers import Loggers, check_loggers
from server_app.privacy import check_accountant, releases, spent_epsilon
from server_app.run_directory import (
    MODEL,
    STATE,
    SUMMARY,
    RunDirectory,
    RunDirectoryError,
    read_history,
)
from server_app.server_model import ServerModel
from server_app.state import RoundRecord, ServerState
from server_app.strategy import SelectiveFedAvg

log = logging.getLogger("greedyfed")
#: Seconds to wait for the clients to connect before the first round.
CONNECT_SECONDS = 60.0

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as the run-config says; results lie in `<output-dir>/<run_id>/`.

    Raises:
        ConfigError, DataError, ModelError, RunDirectoryError: before the first round.
        RoundError: when a round taught nothing; the run directory holds the rounds before.
    """
    _log_to_stdout()
    torch.set_num_threads(1)  # small models are slower on more, and their sums would differ
    config = RunConfig.from_flat(context.run_config)
    check_device(config.device)
    check_accountant(config.heterogeneity.privacy_delta)
    check_loggers(config)
    config = _with_clients(config, grid)
    model = server_model(config)
    new = model.initial_state()
    if config.valuation.valuation_groups == "classes":
        _warn_of_absent(model)
    directory = RunDirectory(config)
    try:
        if earlier := earlier_run(config, directory.path):
            _check_state(config, model, earlier.path / STATE, earlier.state)
            take_over(directory, earlier, new)
        before = directory.load(partial(_check_state, config, model, directory.path / STATE))
        state = before or new
        log.info("run directory %s", directory.path)
        if directory.is_complete:
            log.info("this run is complete: nothing to do")
        elif line := beginning(config, state.round, earlier):
            log.info(line)
        with Loggers(config, directory.path) as loggers:
            if not directory.is_complete:
                _train(grid, config, model, directory, state, loggers)
    finally:
        directory.close()


def server_model(config: RunConfig) -> ServerModel:
    """The network of a configuration with the server's data; raises DataError, ModelError."""
    splits, valuation = load_splits(config.data, config.seed), config.valuation
    for note in splits.notes:
        log.warning(note)
    name, shape, classes = config.training.model, splits.input_shape, splits.num_classes
    build = partial(build_model, name, shape, classes, whole=splits.inputs == "whole")
    model = ServerModel(
        partial(build, config.seed),
        splits.val,
        splits.test,
        classes,
        config.device,
        valuation.valuation_examples,
        valuation.valuation_memory,
        grouping_from(valuation, config.seed) if is_valued(config) else None,
        name,
        partial(build, config.seed + 1),
    )
    model.task = replace(
        model.task,
        inputs=splits.inputs,
        features=splits.features,
        classes=splits.classes,
        unseen=splits.unseen,
    )
    return model


def _warn_of_absent(model: ServerModel) -> None:
    """A class without examples here is one of which nobody's updates are valued."""
    names = model.task.classes or [str(c) for c in range(model.task.num_classes)]
    if absent := [names[c] for c, share in enumerate(model.group_shares) if not share]:
        log.warning(
            "the validation data have no example of %s %s, in which nobody is of value then; hold "
            "out data of every class",
            "class" if len(absent) == 1 else "classes",
            ", ".join(absent),
        )


def _check_state(config: RunConfig, model: ServerModel, path: Path, state: ServerState) -> None:
    """Raises RunDirectoryError where it is of another model, or the data fall into other groups."""
    if state.params.size != model.spec.size:
        raise RunDirectoryError(
            f"{path}: holds a model of {state.params.size} parameters, {config.training.model!r} "
            f"has {model.spec.size} now; give another output-dir"
        )
    loss = model.val_loss(state.params)
    if not isclose(loss, state.val_loss, rel_tol=1e-3, abs_tol=1e-3):
        raise RunDirectoryError(
            f"{path}: its model's validation loss was {state.val_loss:.6g} and is {loss:.6g} now: "
            f"the code of model = {config.training.model!r} or the server's data changed; restore "
            "them, or give another output-dir"
        )
    before, now = len(state.group_losses), len(model.group_shares)
    if not before and config.selection.algorithm != "greedyfed-classes":
        model.without_groups()  # begun by a version that told none apart
    elif before != now:
        raise RunDirectoryError(
            f"{path}: holds values in {before} groups, valuation-groups = "
            f"{config.valuation.valuation_groups!r} makes {now} of the server's data now; restore "
            "the data or the file, or give another output-dir"
        )


def _train(
    grid: Grid,
    config: RunConfig,
    model: ServerModel,
    directory: RunDirectory,
    state: ServerState,
    loggers: Loggers,
) -> None:
    if state.round < config.num_rounds and (
        line := never_by_value(config, config.data.num_clients or len(list(grid.get_nodes())))
    ):
        log.warning(line)

    def on_round(record: RoundRecord, state: ServerState) -> None:
        directory.record(record, state)
        loggers.add(record.to_json())
        log.info(_line(record, config.num_rounds), extra={"round_record": record})

    directory.save(state)  # before history has a round: one without a state has lost it
    strategy = build_strategy(
        config, model=model, state=state, on_round=on_round, on_event=directory.note
    )
    try:
        strategy.run(grid, config.num_rounds)
    finally:
        directory.save(strategy.state)  # also when a round failed: what was learned is kept
    model.spec.load(model.model, strategy.state.params)
    directory.write(MODEL, model_bytes(model.model))
    summary = json.dumps(_summary(config, directory, strategy), indent=2) + "\n"
    directory.write(SUMMARY, summary.encode())


def _with_clients(config: RunConfig, grid: Grid) -> RunConfig:
    """Wait for the clients; the configuration with N, where a public data set is split over them.

    Clients with their own data may join and leave at any round, so that N is not a property of
    their run.

    Raises:
        ConfigError: too few nodes, or others than num-clients says.
    """
    wanted, deadline = config.data.num_clients, time.monotonic() + CONNECT_SECONDS
    needed = max(wanted, config.selection.clients_per_round)
    while len(nodes := list(grid.get_nodes())) < needed and time.monotonic() < deadline:
        time.sleep(0.2)
    n = len(nodes)
    if n < needed:
        key = f"num-clients = {wanted}" if wanted else f"clients-per-round = {needed}"
        here = ", ".join(sorted(node.name or str(node.node_id) for node in nodes)) or "none"
        raise ConfigError(
            f"{key}: only {n} clients are connected after {CONNECT_SECONDS:g} s ({here:.300}); "
            "start the others (simulation: num-supernodes) or lower it"
        )
    if config.data.dataset == "own":
        return config
    if wanted and n > wanted:
        raise ConfigError(
            f"num-clients = {wanted}: {n} clients are connected; set it to {n}, or to 0 to take "
            "as many as there are"
        )
    return config.with_values(num_clients=n)


def _line(record: RoundRecord, num_rounds: int) -> str:
    cohort = " ".join(record.cohort)
    failed = f"  failed: {' '.join(record.failures)}" if record.failures else ""
    return (
        f"round {record.round}/{num_rounds}  {cohort}  validation loss {record.val_loss:.4f}  "
        f"test accuracy {record.test_accuracy:.2%}  {sum(record.seconds.values()):.2f} s{failed}"
    )


def _summary(
    config: RunConfig, directory: RunDirectory, strategy: SelectiveFedAvg
) -> dict[str, object]:
    """The end of the run, and every client with its statistics and what it said of itself."""
    history, stats = read_history(directory.path), strategy.state.stats
    chosen = [client for record in history for client in record["cohort"]]
    by_class = any("class_shapley" in record for record in history)
    spent = _privacy(config, directory) if config.heterogeneity.privacy_delta else {}
    clients: list[dict[str, object]] = []
    for k, client_id in enumerate(stats.client_ids):
        known = strategy.clients.get(client_id)
        about: dict[str, object] = asdict(known) if known else {"client_id": client_id}
        about["num_examples"] = int(stats.num_examples[k])
        figures: dict[str, object] = {
            "value": float(stats.value[k]),
            "times_selected": chosen.count(client_id),
            "times_counted": int(stats.count[k]),
        }
        if by_class:
            figures["class_values"] = stats.group_value[k].tolist()
        clients.append(about | figures | spent.get(client_id, {}))
    keys = "round", "val_loss", "val_accuracy", "test_loss", "test_accuracy"
    last = {k: history[-1][k] for k in keys if k in history[-1]}  # old rounds lack val_accuracy
    seconds = sum(sum(record["seconds"].values()) for record in history)
    return {"status": "complete", **last, "seconds": round(seconds, 3), "clients": clients}


def _privacy(config: RunConfig, directory: RunDirectory) -> dict[str, dict[str, object]]:
    """Client id -> the ε that it spent in this run, null if without limit, and its δ."""
    clip_norm, delta = config.heterogeneity.clip_norm, config.heterogeneity.privacy_delta
    spent = dict[str, dict[str, object]]()
    events, history = read_events(directory.path), read_history(directory.path)
    for client_id, released in releases(events, history).items():
        epsilon = spent_epsilon(released, clip_norm, delta)
        spent[client_id] = {"epsilon": epsilon if isfinite(epsilon) else None, "delta": delta}
    return spent


def _log_to_stdout() -> None:
    """One line a round on stdout, which Flower forwards, unless someone else shows the rounds."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    if not log.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
