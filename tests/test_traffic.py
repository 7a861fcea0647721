"""Bytes of a round are those of its messages; spares that nobody waits for have not failed."""

import json
from collections import Counter, defaultdict

import pytest
from flwr.app import Array, ConfigRecord, Context, Error, Message, RecordDict
from rich.console import Console

from client_app.app import app as client_app
from experiments.ledger import ledger_of
from experiments.local_grid import FIRST_CLIENT_NODE
from experiments.run_data import read_run
from experiments.status import status
from server_app.app import app as server_app
from server_app.paced_grid import size_of
from tests.federation import SilentGrid, directory_of, faulty_app, history_of

QUERY, TRAIN, EVALUATE = "query", "train", "evaluate"


class WeighingGrid(SilentGrid):
    """Weighs each message as it passes, by the round that is under way."""

    def __init__(self, config, app=client_app, silent=(), faults=()):
        self.history = directory_of(config) / "history.jsonl"
        self.weighed = defaultdict(Counter)
        self.kinds = Counter()
        nodes = [{"fault": "raises"} if i in faults else {} for i in range(6)]
        silent = {FIRST_CLIENT_NODE + i for i in silent}
        super().__init__(app, config.to_flat(), nodes, silent=silent)

    def push_messages(self, messages):
        asked = list(messages)
        for message in asked:
            self.note("down", message)
            self.kinds[message.metadata.message_type] += 1
        return super().push_messages(asked)

    def pull_messages(self, message_ids):
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            self.note("up", reply)
        return replies

    def note(self, way, message):
        rounds = self.history.read_text().count("\n") if self.history.exists() else 0
        self.weighed[rounds + 1][way] += weight(message)


def weight(message):
    """By hand, from what it says."""
    if message.has_error():
        return len(message.error.reason.encode())
    total = 0
    for name, record in message.content.items():
        total += len(name.encode())
        for key, value in record.items():
            total += len(key.encode())
            if isinstance(value, Array):
                total += len(value.data)
            elif isinstance(value, str):
                total += len(value.encode())
            elif isinstance(value, list):
                total += sum(len(v.encode()) if isinstance(v, str) else 8 for v in value)
            else:
                total += 8
    return total


def run_on(config, **how):
    grid = WeighingGrid(config, **how)
    server_app(grid=grid, context=Context(1, 1, {}, RecordDict(), config.to_flat()))
    return grid, history_of(directory_of(config))


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({}, {}),
        ({"algorithm": "power-of-choice"}, {}),
        ({"clients_per_round": 3, "spare_clients": 2}, {"silent": [0, 4]}),
        ({"clients_per_round": 3, "round_deadline": 0.2}, {"silent": [3]}),
        ({"clients_per_round": 3}, {"app": faulty_app, "faults": [2]}),
    ],
    ids=["all answer", "losses are asked", "spares", "one is silent", "one raises"],
)
def test_bytes_are_those_of_the_messages(small, changes, how):
    grid, history = run_on(small.with_values(num_rounds=4, **changes), **how)
    assert [r["bytes"] for r in history] == [grid.weighed[r["round"]] for r in history]
    asked = sum(len(r["cohort"]) for r in history)
    assert (grid.kinds[TRAIN], grid.kinds[QUERY]) == (asked, 6)
    assert bool(grid.kinds[EVALUATE]) == ("algorithm" in changes)
    params = 4 * 4785
    answers = sum(e["event"] == "answered" for e in read_run(grid.history.parent).events)
    down, up = (sum(r["bytes"][way] for r in history) for way in ("down", "up"))
    assert down > params * (asked + grid.kinds[EVALUATE])
    assert params * (asked - 12) < up < params * answers + 10_000


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (RecordDict(), 0),
        (RecordDict({"é": ConfigRecord({"ü": "日本"})}), 2 + 2 + 6),
        (RecordDict({"c": ConfigRecord({"t": "", "l": [], "b": True, "d": b"abc"})}), 9),
        (RecordDict({"c": ConfigRecord({"n": 1, "x": [0.5, 2.0], "s": ["", "ab"]})}), 30),
    ],
)
def test_the_size_of_a_message(content, size):
    assert size_of(Message(content, 1, TRAIN)) == size


@pytest.mark.parametrize(("reason", "size"), [("", 0), ("naïve", 6)])
def test_the_size_of_an_error_is_that_of_its_reason(reason, size):
    assert size_of(Message(Error(2, reason), reply_to=Message(RecordDict(), 1, TRAIN))) == size


def failed_by_status(path):
    console = Console(width=200)
    with console.capture() as shown:
        console.print(status(path))
    lines = shown.get().replace("none yet", "none").splitlines()
    rows = [line.split() for line in lines if line.strip().startswith("partition-")]
    return {row[0]: int(row[4]) for row in rows}


@pytest.mark.parametrize("algorithm", ["greedyfed", "fedavg"])
def test_a_spare_that_nobody_waited_for_has_not_failed(small, algorithm):
    keys = {"clients_per_round": 3, "spare_clients": 2, "num_rounds": 6, "algorithm": algorithm}
    config = small.with_values(**keys)
    _, history = run_on(config, silent=[0])
    path = directory_of(config)
    events = [json.loads(li) for li in (path / "events.jsonl").read_text().splitlines() if li]
    assert not [e for e in events if e["event"] == "failed"]
    assert not any(r["failures"] for r in history)
    accounts = {a.client: a for a in ledger_of(read_run(path)).clients}
    times = sum("partition-0" in r["cohort"] for r in history)
    mine = accounts["partition-0"]
    assert (mine.asked, mine.failed, mine.left_out, mine.answered) == (times, 0, times, 0)
    assert times > 0
    assert set(failed_by_status(path).values()) == {0}


def test_a_spare_that_fails_has_failed_all_the_same(small):
    keys = {"clients_per_round": 3, "spare_clients": 2, "num_rounds": 3}
    config = small.with_values(**keys)
    run_on(config, app=faulty_app, silent=[0], faults=[2])
    path = directory_of(config)
    by_ledger = {a.client: a.failed for a in ledger_of(read_run(path)).clients}
    assert failed_by_status(path) == by_ledger
    assert by_ledger["partition-2"] > 0
    assert by_ledger["partition-0"] == 0


def test_whoever_is_silent_to_the_deadline_has_failed_though_the_quorum_is_there(small):
    """Two of three that are wanted answer: the others had all the time that there was."""
    keys = {"clients_per_round": 3, "spare_clients": 1, "quorum": 2, "num_rounds": 1}
    config = small.with_values(round_deadline=0.3, **keys)
    _, (record,) = run_on(config, silent=[0, 1, 2, 3])
    silent = {f"partition-{i}" for i in range(4)} & set(record["cohort"])
    assert len(record["cohort"]) - len(silent) == 2
    assert record["failures"] == dict.fromkeys(silent, "no answer before the deadline")
    assert failed_by_status(directory_of(config))[min(silent)] == 1
