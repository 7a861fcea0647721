"""Which clients are connected, and at which Flower node each of them is found."""

import logging
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from common.fields import BadReplyError
from common.task import Task, encode_task
from common.wire import (
    ClientInfo,
    ClientUpdate,
    content_of,
    decode_info,
    decode_loss,
    decode_update,
    replies_by_request,
)

log = logging.getLogger("greedyfed")


class ClientRegistry:
    """Client id -> node, by asking each new node once who it is.

    Node ids are drawn anew in every simulation and may change when a client reconnects, so that
    nothing else in the server knows them.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self.nodes: dict[str, int] = {}  # clients connected now
        self.infos: dict[str, ClientInfo] = {}  # all clients ever heard of
        self._known: dict[int, str] = {}  # node -> client
        self._refused: dict[int, tuple[int, int, str]] = {}  # node -> (tries, ask again at, why)

    def refresh(
        self, grid: Grid, server_round: int, timeout: float
    ) -> tuple[list[ClientInfo], dict[str, str]]:
        """Look who is connected; returns the clients that were not there before, and refused nodes.

        A refused node stands under its registered name, or its id, with the reason.

        A node without a usable answer is asked again after 1, 2, 4, … rounds. Of two nodes that
        claim one client id at the same time, the one that came first keeps it. Where the operator
        has registered nodes' keys under names, a client's id must be the name of its key.
        """
        present = set(grid.get_node_ids())
        self.nodes = {c: n for n, c in self._known.items() if n in present}
        self._refused = {n: r for n, r in self._refused.items() if n in present}
        strangers = sorted(
            node
            for node in present - self._known.keys()
            if node not in self._refused or self._refused[node][1] <= server_round
        )
        if not strangers:
            return [], {}
        names = {info.node_id: info.name for info in grid.get_nodes() if info.name}
        question = encode_task(self._task)
        requests = [Message(question, node, MessageType.QUERY) for node in strangers]
        answers = replies_by_request(requests, grid.send_and_receive(requests, timeout=timeout))
        new, refused = [], dict[str, str]()
        for node in strangers:
            try:
                info = decode_info(content_of(answers.get(node)), self._task.num_classes)
                if names and names.get(node, "") != info.client_id:
                    raise BadReplyError(
                        f"client-id {info.client_id!r} is not the name under which its key is "
                        f"registered, {names.get(node, '')!r}"
                    )
                if info.client_id in self.nodes:
                    raise BadReplyError(f"client-id {info.client_id!r} is taken by another node")
            except BadReplyError as error:
                tries = self._refused.get(node, (0, 0, ""))[0]
                self._refused[node] = (tries + 1, server_round + 2 ** min(tries, 6), str(error))
                refused[names.get(node) or str(node)] = str(error)
                continue
            self._refused.pop(node, None)
            self._known[node] = info.client_id
            self.nodes[info.client_id] = node
            self.infos[info.client_id] = info
            new.append(info)
        for reason, count in Counter(refused.values()).items():
            nodes = "1 connected node is" if count == 1 else f"{count} connected nodes are"
            log.warning("%s not used: %s", nodes, reason)
        return new, refused

    def client_at(self, node: int) -> str:
        """The client that was found at a node."""
        return self._known[node]

    def updates(
        self, requests: list[Message], replies: Iterable[Message], size: int, max_examples: int
    ) -> tuple[list[ClientUpdate], dict[str, str]]:
        """The usable updates (size,) among replies, and why the other clients' are not, by id."""
        answers = replies_by_request(requests, replies)
        updates, failures = list[ClientUpdate](), dict[str, str]()
        for node in (request.metadata.dst_node_id for request in requests):
            client_id = self.client_at(node)
            try:
                content = content_of(answers.get(node))
                updates.append(decode_update(content, client_id, size, max_examples))
            except BadReplyError as error:
                failures[client_id] = str(error)
        return updates, failures

    def local_losses(
        self, grid: Grid, clients: list[str], content: RecordDict, timeout: float
    ) -> list[float]:
        """The loss of a model at each connected client, in nats; −inf where there is no answer."""
        places = [self.nodes[client] for client in clients]
        requests = [Message(content, node, MessageType.EVALUATE, ttl=timeout) for node in places]
        answers = replies_by_request(requests, grid.send_and_receive(requests, timeout=timeout))
        losses = dict.fromkeys(places, float("-inf"))
        for node in places:
            with suppress(BadReplyError):  # not chosen, hence no failure of the round
                losses[node] = decode_loss(content_of(answers.get(node)))
        return list(losses.values())

    @property
    def why_not(self) -> str:
        """The first reason for which a connected node is not used, in parentheses, or nothing."""
        return next((f" ({why})" for _, _, why in self._refused.values()), "")
