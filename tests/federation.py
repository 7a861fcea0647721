"""Runs of the real apps in process, with clients that misbehave where a test wants them to."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client_app import app as real
from common.config import RunConfig
from experiments.local_grid import LocalGrid, run_in_process
from server_app.app import app as server_app

Records = list[dict[str, Any]]


def run(config: RunConfig, faults: dict[int, str] | None = None, client_app=None) -> Path:
    """Run a configuration; `faults` maps a partition to a key of FAULTS. Returns its directory."""
    nodes = [
        {"fault": f} if (f := (faults or {}).get(i)) else {} for i in range(clients_of(config))
    ]
    app = client_app or (faulty_app if faults else real.app)
    run_in_process(server_app, app, config.to_flat(), nodes)
    return directory_of(config)


def run_with_a_failure(folder: Path) -> Path:
    """Six rounds of six clients, one of which sends NaN; returns the run's directory."""
    keys = {"num-clients": 6, "clients-per-round": 2, "num-rounds": 6, "learning-rate": 0.1}
    return run(RunConfig.from_flat(keys | {"output-dir": str(folder)}), faults={2: "nan"})


def clients_of(config: RunConfig) -> int:
    return config.data.num_clients


def directory_of(config: RunConfig) -> Path:
    return Path(config.output_dir) / config.run_id


def history_of(directory: Path) -> Records:
    return [json.loads(line) for line in (directory / "history.jsonl").read_text().splitlines()]


def _params(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[RecordDict], None]:
    def spoil(content: RecordDict) -> None:
        vector = content.array_records["params"]["params"].numpy().copy()
        content.array_records["params"] = ArrayRecord({"params": Array(change(vector))})

    return spoil


def _result(key: str, value: Any) -> Callable[[RecordDict], None]:
    def spoil(content: RecordDict) -> None:
        record = dict(content.metric_records["result"])
        record[key] = value
        content.metric_records["result"] = MetricRecord(record)

    return spoil


def _set(index: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(vector: np.ndarray) -> np.ndarray:
        vector[index] = value
        return vector

    return change


def _lying_header(content: RecordDict) -> None:
    """A .npy header that announces terabytes over a few bytes."""
    array = content.array_records["params"]["params"]
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999,), }"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    content.array_records["params"] = ArrayRecord(
        {"params": Array("float32", array.shape, "numpy.ndarray", data)}
    )


def _pickled(content: RecordDict) -> None:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"cos\nsystem\n"
    content.array_records["params"] = ArrayRecord(
        {"params": Array("object", (1,), "numpy.ndarray", data)}
    )


def _raise(content: RecordDict) -> None:
    raise RuntimeError("the disk of\nthis client is full")


#: Name -> what it does to an honest reply, and words of the reason that the server must record.
FAULTS: dict[str, tuple[Callable[[RecordDict], Any], str]] = {
    "raises": (_raise, "RuntimeError: the disk of this client is full"),
    "nan": (_params(_set(3, np.nan)), "1 of 4785 parameters are NaN or Inf"),
    "huge": (_params(lambda v: v * np.float32(1e30)), "validation loss of its model is not finite"),
    "inf": (_params(_set(0, -np.inf)), "1 of 4785 parameters are NaN or Inf"),
    "short": (_params(lambda v: v[:-1]), "float32 (4784,), the model has float32 (4785,)"),
    "matrix": (_params(lambda v: v.reshape(1, -1)), "float32 (1, 4785)"),
    "double": (_params(lambda v: v.astype(np.float64)), "parameters are float64 (4785,)"),
    "pickled": (_pickled, "parameters are object (1,)"),
    "lying header": (_lying_header, "(999999999999,)"),
    "no arrays": (lambda c: c.array_records.pop("params"), "has no 'params' array"),
    "no result": (lambda c: c.metric_records.pop("result"), "has no 'result' record"),
    "zero examples": (_result("num-examples", 0), "num-examples is 0, not 1 or more"),
    "negative examples": (_result("num-examples", -5), "num-examples is -5, not 1 or more"),
    "fraction": (_result("num-examples", 1.5), "num-examples is 1.5, not a whole number"),
    "noise that is none": (_result("noise-sigma", np.nan), "noise-sigma is nan, not 0 to 1e+100"),
    "boasts": (_result("num-examples", 10**6), "claims 1000000 examples, more than max-examples"),
}

faulty_app = ClientApp(mods=[real.always_reply])
faulty_app.query()(real.query)


@faulty_app.train()
def _train(message: Message, context: Context) -> Message:
    reply = real.train(message, context)
    if fault := context.node_config.get("fault"):
        FAULTS[str(fault)][0](reply.content)
    return reply


class SilentGrid(LocalGrid):
    """Some nodes never answer when asked to train."""

    def __init__(self, *args: Any, silent: set[int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._silent = silent

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        asked = list(messages)
        ids = list(super().push_messages(asked))
        for message_id, message in zip(ids, asked, strict=True):
            metadata = message.metadata
            if metadata.message_type == "train" and metadata.dst_node_id in self._silent:
                del self._replies[message_id]
        return ids
