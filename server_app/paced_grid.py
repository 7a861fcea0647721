"""Any Flower grid, with a receive loop that sets its own pace and always ends."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from flwr.app import Array, Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.25


class PacedGrid(Grid):
    """Polls a grid often; returns at the deadline at the latest, or when enough clients answered.

    Flower's own loop polls a deployment every 3 s, and waits for its whole timeout for a node that
    went away and came back between two polls, since that node's message is lost without an error.

    Args:
        grid: the grid that carries the messages.
        enough: trained models that end the wait before all have answered; None: wait for all.
        on_reply: called with a request to train and its reply, as soon as that comes.

    Attributes:
        traffic: bytes of all messages so far, by `size_of`: `down` to the clients, and `up` from
            them as far as it was pulled.
    """

    def __init__(
        self,
        grid: Grid,
        enough: int | None = None,
        on_reply: Callable[[Message, Message], None] = lambda request, reply: None,
    ) -> None:
        self._grid, self._enough, self._on_reply = grid, enough, on_reply
        self.traffic = Counter(down=0, up=0)

    def set_run(self, run: Run) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """The replies that came in time; late ones are never pulled, and do no harm."""
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        requests = list(messages)
        training = all(m.metadata.message_type == MessageType.TRAIN for m in requests)
        enough = self._enough if training and self._enough else len(requests)
        asked = {i: m for i, m in zip(self.push_messages(requests), requests, strict=True) if i}
        self.traffic["down"] += sum(map(size_of, asked.values()))
        waiting = set(asked)
        replies: list[Message] = []
        pause = FIRST_PAUSE
        while waiting:
            new = list(self.pull_messages(waiting))
            replies += new
            for reply in new:
                self.traffic["up"] += size_of(reply)
                waiting.discard(reply.metadata.reply_to_message_id)
                if training:
                    self._on_reply(asked[reply.metadata.reply_to_message_id], reply)
            answered = sum(not reply.has_error() for reply in replies)
            left = deadline - time.monotonic()
            if not waiting or left <= 0 or answered >= enough:
                break
            time.sleep(min(pause, left))
            pause = min(1.5 * pause, LONGEST_PAUSE)
        return replies


def size_of(message: Message) -> int:
    """Bytes of what a message says: names and values of its records, or the reason of its error.

    Numbers take 8, text its UTF-8. What Flower adds to carry it is not part of it. (Flower's own
    `count_bytes` counts letters, not bytes, and raises for an empty text or list.)
    """
    if message.has_error():
        return _size(message.error.reason or "")
    return _size(message.content)


def _size(value: object) -> int:
    if isinstance(value, Mapping):
        return sum(_size(name) + _size(each) for name, each in value.items())
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, list):
        return sum(map(_size, value))
    return 1 if isinstance(value, bool) else 8
