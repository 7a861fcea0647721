"""The apps that benchmarks/deploy.py submits: greedyfed's own with clocks around them, and in turn
Flower's FedAvg of an empty ClientApp.

In the FAB this module lies beside greedyfed's packages. Server and clients append JSON lines to one
file; times are seconds of the machine's monotonic clock, which its processes share.
"""

import copy
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

LOG = "GREEDYFED_DEPLOY_LOG"  # environment variable: the file
EMPTY, TORCH, GREEDYFED = KINDS = "empty", "torch", "greedyfed"
#: Rounds of one kind before the next kind's turn. The first of them does not count: how long its
#: requests wait for the SuperNodes, which look every 3 s, depends on the kind before.
BLOCK = 4

client = ClientApp()
server = ServerApp()


def write(**line: object) -> None:
    with open(os.environ[LOG], "a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")


@contextmanager
def clock(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the time of the block to a name."""
    started = time.monotonic()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.monotonic() - started


# ---- a client's process, a new one for each message ---------------------------------------------


@client.query()
@client.train()
def answer(message: Message, context: Context) -> Message:
    """As greedyfed's client, or as an empty one when FedAvg's config says so."""
    called, seconds = time.monotonic(), dict[str, float]()
    started = called - _age()
    config = message.content.config_records.get("config", ConfigRecord())
    kind = config.get("kind", GREEDYFED)
    if kind != EMPTY:
        with clock(seconds, "torch"):
            import torch  # noqa: F401
    if kind == GREEDYFED:
        reply = _timed_app(seconds)(message, context)
    else:
        arrays = message.content.array_records["arrays"].to_numpy_ndarrays()
        changed = ArrayRecord([a + 1 for a in arrays])  # what is as before is not sent back
        metrics = MetricRecord({"num-examples": 1})
        reply = Message(RecordDict({"arrays": changed, "metrics": metrics}), reply_to=message)
    done = time.monotonic()
    write(kind=kind, started=started, called=called, done=done, seconds=seconds)
    return reply


def _age() -> float:
    """Seconds since this process was started; 0 where only Linux would say."""
    if sys.platform != "linux":
        return 0.0
    ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _timed_app(seconds: dict[str, float]) -> ClientApp:
    """greedyfed's ClientApp, whose parts leave their times in `seconds`."""
    with clock(seconds, "import"):
        import client_app.app as real
    parts = vars(real)
    local_sgd = parts["local_sgd"]

    def timed(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **keywords: object) -> object:
            with clock(seconds, name):
                return function(*arguments, **keywords)

        return call

    def train_twice(*arguments: Any) -> float:
        """What the second time needs less is the price of the new process, not of training."""
        with clock(seconds, "repeat"):
            again = copy.deepcopy(arguments)
        with clock(seconds, "first"):
            loss: float = local_sgd(*arguments)
        with clock(seconds, "repeat"), clock(seconds, "training"):
            local_sgd(*again)
        return loss

    for name in ("my_data", "build_model"):
        parts[name] = timed(name, parts[name])
    parts["local_sgd"] = train_twice
    return real.app


# ---- the server's process, one for the run ------------------------------------------------------


class Watch:
    """The rounds of a grid, told from the messages that pass."""

    def __init__(self, grid: Grid) -> None:
        self._push, self._pull = grid.push_messages, grid.pull_messages
        self._began = self._asked = self._looked = 0.0
        self._last: dict[str, float] = {}
        vars(grid).update(push_messages=self.push, pull_messages=self.pull)

    def push(self, messages: Iterable[Message]) -> Iterable[str]:
        requests = list(messages)
        if requests:
            self._asked = time.monotonic()
        ids = self._push(requests)
        self._looked = time.monotonic()
        return ids

    def pull(self, message_ids: Iterable[str]) -> Iterable[Message]:
        before, started = self._looked, time.monotonic()
        replies = list(self._pull(message_ids))
        self._looked = time.monotonic()
        if replies:
            self._last = {"paused": before, "seen": started, "answered": self._looked}
        return replies

    def begin(self) -> None:
        self._began = time.monotonic()

    def end_round(self, kind: str, number: int, seconds: dict[str, float]) -> None:
        """Write down the round that ends now; the next one begins."""
        times = {"began": self._began, "asked": self._asked, **self._last}
        position, now = (number - 1) % BLOCK, time.monotonic()
        write(kind=kind, position=position, **times, ended=now, seconds=seconds)
        self._began = now


@server.main()
def main(grid: Grid, context: Context) -> None:
    """greedyfed's ServerApp; after each BLOCK rounds as many of FedAvg with each empty client."""
    import server_app.app as real
    from server_app.run_directory import RunDirectory

    watch = Watch(grid)

    class Paused(RunDirectory):
        def record(self, record: Any, state: Any) -> None:
            super().record(record, state)
            watch.end_round(GREEDYFED, record.round, record.seconds)
            if record.round % BLOCK == 0:
                for kind in (EMPTY, TORCH):
                    _fedavg(grid, watch, kind, state.params)
                watch.begin()

    vars(real)["RunDirectory"] = Paused
    real.app(grid, context)


def _fedavg(grid: Grid, watch: Watch, kind: str, params: Any) -> None:
    """A block of Flower's own rounds; the model is as large as greedyfed's."""
    from flwr.serverapp.strategy import FedAvg

    def end_round(number: int, arrays: ArrayRecord) -> None:
        watch.end_round(kind, number, {}) if number else watch.begin()

    FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3).start(
        grid,
        ArrayRecord({"params": Array(params)}),
        num_rounds=BLOCK,
        timeout=100.0,
        train_config=ConfigRecord({"kind": kind}),
        evaluate_fn=end_round,
    )
