"""Who is connected: late joiners, drop-outs, returns under new node ids, impostors."""

from typing import ClassVar

import pytest
from flwr.proto.node_pb2 import NodeInfo

from client_app.app import app as client_app
from common.config import RunConfig
from common.task import Task
from experiments.local_grid import FIRST_CLIENT_NODE, LocalGrid
from server_app.registry import ClientRegistry

TASK = Task((1, 8, 8), 10)
FLAT = RunConfig.from_flat({"num-clients": 4}).to_flat()


class ChangingGrid(LocalGrid):
    """A grid whose nodes come and go."""

    present: set[int] | None = None
    asked = 0

    def get_node_ids(self):
        return [n for n in super().get_node_ids() if self.present is None or n in self.present]

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.asked += len(messages)
        return super().send_and_receive(messages, timeout=timeout)


@pytest.fixture
def grid():
    return ChangingGrid(client_app, FLAT, [{} for _ in range(4)])


def node(index):
    return FIRST_CLIENT_NODE + index


def test_asks_each_node_once(grid):
    registry = ClientRegistry(TASK)
    first, _ = registry.refresh(grid, 1, 10)
    assert {i.client_id for i in first} == {f"partition-{k}" for k in range(4)}
    assert all(sum(i.label_histogram) == i.num_examples for i in first)
    assert registry.refresh(grid, 2, 10) == ([], {})
    assert grid.asked == 4


def test_clients_join_and_leave(grid):
    registry = ClientRegistry(TASK)
    grid.present = {node(0), node(1)}
    registry.refresh(grid, 1, 10)
    grid.present = {node(1), node(3)}
    assert [i.client_id for i in registry.refresh(grid, 2, 10)[0]] == ["partition-3"]
    assert registry.nodes == {"partition-1": node(1), "partition-3": node(3)}
    assert "partition-0" in registry.infos


def test_a_client_that_returns_under_a_new_node_id_is_the_same_client():
    claims = [{"partition-id": 2, "num-partitions": 4} for _ in range(2)]
    grid = ChangingGrid(client_app, FLAT, claims)
    registry = ClientRegistry(TASK)
    grid.present = {node(0)}
    registry.refresh(grid, 1, 10)
    grid.present = {node(1)}
    registry.refresh(grid, 2, 10)
    assert registry.nodes == {"partition-2": node(1)}


def test_a_second_node_with_a_known_id_is_refused():
    claims = [{"partition-id": 2, "num-partitions": 4} for _ in range(2)]
    grid = ChangingGrid(client_app, FLAT, claims)
    registry = ClientRegistry(TASK)
    registry.refresh(grid, 1, 10)
    assert registry.nodes == {"partition-2": node(0)}
    assert "is taken by another node" in registry.why_not


def test_a_node_that_cannot_say_who_it_is_is_asked_less_and_less():
    grid = ChangingGrid(client_app, FLAT, [{"partition-id": 99, "num-partitions": 4}])
    registry, rounds = ClientRegistry(TASK), []
    for t in range(1, 33):
        before = grid.asked
        registry.refresh(grid, t, 10)
        if grid.asked > before:
            rounds.append(t)
    assert rounds == [1, 2, 4, 8, 16, 32]
    assert "ClientError: partition-id = 99" in registry.why_not


class NamedGrid(ChangingGrid):
    """A grid whose operator registered nodes' keys under names."""

    names: ClassVar[dict[int, str]] = {}

    def get_nodes(self):
        return [NodeInfo(node_id=n, name=self.names.get(n, "")) for n in self.get_node_ids()]


def test_a_clients_id_is_the_name_of_its_key():
    grid = NamedGrid(client_app, FLAT, [{} for _ in range(4)])
    grid.names = {node(0): "partition-0", node(1): "partition-3", node(3): "partition-1"}
    registry = ClientRegistry(TASK)
    registry.refresh(grid, 1, 10)
    assert registry.nodes == {"partition-0": node(0)}  # 1 and 3 claim each other's, 2 has no name
    assert "is not the name" in registry.why_not
