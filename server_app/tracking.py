"""Where a round can be written beside history.jsonl: TensorBoard and MLflow.

Their libraries are loaded when one is made, and only then.
"""

import fcntl
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from common.config import RunConfig
from server_app.events import read_events

#: So many clients, those first valued, have a curve of their own.
MAX_CURVES = 30
TENSORBOARD, MLFLOW_RUN = "tensorboard", "mlflow-run"


def scalars(record: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, float]:
    """What is logged of a round, by the names of history.jsonl.

    Args:
        record: a line of history.jsonl.
        values: each client's cumulative value after the round, by client id, in the order in which
            they were first valued.
    """
    numbers = (item for item in record.items() if isinstance(item[1], int | float))
    found = {key: value for key, value in numbers if key != "round"}
    found |= {f"seconds/{phase}": seconds for phase, seconds in record["seconds"].items()}
    found["seconds/total"] = sum(record["seconds"].values())
    found |= {f"bytes/{way}": count for way, count in record["bytes"].items()}
    found |= {"clients/asked": len(record["cohort"]), "clients/failed": len(record["failures"])}
    if values:
        lowest, median, highest = np.quantile(list(values.values()), [0, 0.5, 1]).tolist()
        of_all = {"lowest": lowest, "median": median, "highest": highest}
        found |= {f"cumulative-of-all/{key}": value for key, value in of_all.items()}
    for client in list(values)[:MAX_CURVES]:
        if client in record["cumulative"]:
            found[f"cumulative/{_name(client)}"] = record["cumulative"][client]
    return {key: float(value) for key, value in found.items()}


def _name(client_id: str) -> str:
    """A client id as MLflow allows it in names: other characters by their code."""
    return re.sub(r"^\.+$|[^\w.-]", lambda m: "".join(f"_{ord(c):x}_" for c in m[0]), client_id)


class Logger(Protocol):
    """Where rounds go. Made anew after a failure; whatever it raises is a failure."""

    last: int  # the last round that it has

    def __init__(self, config: RunConfig, path: Path) -> None: ...
    def write(
        self, record: Mapping[str, Any], values: Mapping[str, float], seconds: float
    ) -> None: ...
    def close(self, status: str) -> None: ...


class TensorBoard:
    """Event files in `<run directory>/tensorboard`, made anew from history.jsonl by every start.

    They hold 32-bit numbers; history.jsonl has all digits.
    """

    def __init__(self, config: RunConfig, path: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.last = 0
        folder = path / TENSORBOARD
        old = list(folder.glob("events.out.tfevents.*"))
        for file in old:
            file.unlink()
        # A TensorBoard that has read the old file forgets its rounds.
        self._writer = SummaryWriter(str(folder), purge_step=1 if old else None)
        rows = [f"| {key} | {value} |" for key, value in config.identity().items()]
        self._writer.add_text("config", "\n".join(["| key | value |", "|---|---|", *rows]))

    def write(self, record: Mapping[str, Any], values: Mapping[str, float], seconds: float) -> None:
        step = record["round"]
        for name, value in scalars(record, values).items():
            self._writer.add_scalar(name, value, step, seconds)
        if values:
            every = np.array(list(values.values()))
            self._writer.add_histogram(
                "cumulative-of-all/histogram", every, step, bins=20, walltime=seconds
            )
        self._writer.flush()

    def close(self, status: str) -> None:
        self._writer.close()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class MLflow:
    """A run in MLflow, named as ours; `mlflow-run` in the run directory holds its id there.

    MLflow's own variables say where and in which experiment; without MLFLOW_TRACKING_URI it is
    `<output-dir>/mlflow.db`.
    """

    def __init__(self, config: RunConfig, path: Path) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._local = None if os.environ.get("MLFLOW_TRACKING_URI") else path.parent
        if self._local:
            with _locked(self._local):  # several runs may begin at once, and MLflow makes tables
                self._client = mlflow.MlflowClient(f"sqlite:///{self._local}/mlflow.db")
        else:
            self._client = mlflow.MlflowClient()
        self._id, self._status, self.last = "", "", 0
        self._until: int | None = None  # the time of the last round, in ms
        file = path / MLFLOW_RUN
        if file.exists():
            try:
                run = self._client.get_run(file.read_text(encoding="utf-8").strip())
                self._id, self._status = run.info.run_id, run.info.status
                points = self._client.get_metric_history(self._id, "val_loss")
                self.last = max((point.step for point in points), default=0)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        if not self._id:  # none yet, or not on this server
            began = int(1000 * next((e["time"] for e in read_events(path)), time.time()))
            tags = {"run_directory": str(path)}
            run = self._client.create_run(self._experiment(), began, tags, config.run_id)
            self._id, self._status = run.info.run_id, run.info.status
            file.write_text(self._id + "\n", encoding="utf-8")
        params = [Param(key, str(value)) for key, value in config.identity().items()]
        self._client.log_batch(self._id, params=params)

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        if given := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return given
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "greedyfed"
        try:
            artifacts = (self._local / "mlartifacts").as_uri() if self._local else None
            return self._client.create_experiment(name, artifacts)
        except MlflowException:
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return found.experiment_id

    def write(self, record: Mapping[str, Any], values: Mapping[str, float], seconds: float) -> None:
        from mlflow.entities import Metric

        if self._status != "RUNNING":  # a run that is resumed
            self._client.update_run(self._id, "RUNNING")
            self._status = "RUNNING"
        self._until, step = int(1000 * seconds), record["round"]
        metrics = [Metric(k, v, self._until, step) for k, v in scalars(record, values).items()]
        self._client.log_batch(self._id, metrics)

    def close(self, status: str) -> None:
        if self._status != status:
            self._client.set_terminated(self._id, status, self._until)


KINDS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "mlflow": MLflow}
