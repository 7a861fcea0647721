"""The receive loop: it ends when all or enough have answered, or at the deadline."""

import time

from flwr.app import Error, Message, MessageType, RecordDict

from client_app.app import app as client_app
from common.config import RunConfig
from experiments.local_grid import FIRST_CLIENT_NODE, LocalGrid
from server_app.paced_grid import PacedGrid

FLAT = RunConfig.from_flat({"num-clients": 4}).to_flat()


class SlowGrid(LocalGrid):
    """Nodes answer after their own time; node i fails when it is in `failing`."""

    def __init__(self, delays, failing=()):
        super().__init__(client_app, FLAT, [{} for _ in delays])
        self._delays, self._failing, self._due = delays, set(failing), {}
        self.pulls = 0

    def push_messages(self, messages):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{message.metadata.dst_node_id}"
            index = message.metadata.dst_node_id - FIRST_CLIENT_NODE
            content = Error(2, "no") if index in self._failing else RecordDict()
            reply = Message(content, reply_to=message)
            self._due[message.metadata.message_id] = (time.monotonic() + self._delays[index], reply)
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids):
        self.pulls += 1
        now = time.monotonic()
        ready = [i for i in message_ids if i in self._due and self._due[i][0] <= now]
        return [self._due.pop(i)[1] for i in ready]


def ask(grid, kind=MessageType.TRAIN, timeout=5.0):
    requests = [Message(RecordDict(), n, kind) for n in grid.get_node_ids()]
    started = time.monotonic()
    replies = list(grid.send_and_receive(requests, timeout=timeout))
    return len(replies), time.monotonic() - started


def test_waits_for_all():
    count, seconds = ask(PacedGrid(SlowGrid([0, 0.1, 0.3])))
    assert count == 3
    assert 0.3 <= seconds < 2


def test_ends_at_the_deadline_with_what_there_is():
    count, seconds = ask(PacedGrid(SlowGrid([0, 60, 60])), timeout=0.4)
    assert count == 1
    assert 0.4 <= seconds < 2


def test_enough_trained_models_end_the_wait():
    count, seconds = ask(PacedGrid(SlowGrid([0, 0.1, 60, 60]), enough=2))
    assert count == 2
    assert seconds < 2


def test_errors_are_not_enough():
    count, _ = ask(PacedGrid(SlowGrid([0, 0, 0.3, 60], failing=[0]), enough=2))
    assert count == 3


def test_enough_is_for_training_only():
    assert ask(PacedGrid(SlowGrid([0, 0.2, 0.2]), enough=1), MessageType.QUERY)[0] == 3


def test_polls_less_and_less_often():
    grid = SlowGrid([1.5])
    ask(PacedGrid(grid))
    assert grid.pulls < 20


def test_late_replies_do_no_harm():
    grid = SlowGrid([0, 0.2])
    paced = PacedGrid(grid)
    assert ask(paced, timeout=0.05)[0] == 1
    time.sleep(0.25)
    assert ask(paced)[0] == 2
