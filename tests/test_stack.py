"""Coalitions evaluated together, against one model after the other."""

import numpy as np
import pytest
import torch
from torch import nn

from common.datasets import Dataset
from common.evaluation import evaluate
from common.models import build_model
from common.params import ParamSpec
from server_app.server_model import ServerModel
from server_app.utility import ModelAverageUtility, weighted_average
from server_app.valuation import CachedUtility, UtilityError

IMAGE = (3, 12, 12)


class Residual(nn.Module):
    """No chain of layers."""

    def __init__(self):
        super().__init__()
        self.convolution, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(432, 10)

    def forward(self, x):
        return self.head((x + self.convolution(x).relu()).flatten(1))


class TwiceReLU(nn.ReLU):
    """A known layer's subclass that does something else."""

    def forward(self, x):
        return 2 * super().forward(x)


def convolutional(*between):
    return nn.Sequential(nn.Conv2d(3, 8, 3), *between, nn.Flatten(), nn.LazyLinear(10))


NETWORKS = {
    "mlp": lambda: build_model("mlp", IMAGE, 10, 0),
    "logistic": lambda: build_model("logistic", IMAGE, 10, 0),
    "cnn": lambda: build_model("cnn", IMAGE, 10, 0),
    "batch norm": lambda: convolutional(nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
    "dropout": lambda: convolutional(nn.ReLU(), nn.Dropout2d(0.5), nn.AvgPool2d(2), nn.Dropout()),
    "depthwise": lambda: convolutional(nn.Conv2d(8, 16, 3, groups=8, bias=False), nn.SiLU()),
    "nested": lambda: nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(432, 7, bias=False)),
        nn.Sequential(nn.BatchNorm1d(7), nn.Tanh(), nn.Sequential(nn.Linear(7, 10))),
    ),
}
LOOPED = {
    "residual": Residual,
    "subclass": lambda: convolutional(TwiceReLU()),
    "grouped first": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3, groups=3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
    ),
    "circular": lambda: convolutional(nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")),
}


def examples(n, shape=IMAGE, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.random((n, *shape), dtype=np.float32))
    return Dataset(x, torch.from_numpy(rng.integers(0, 10, n)))


def made(factory):
    network = factory()
    network(torch.zeros(2, *IMAGE))  # lazy layers get their shape, running statistics move
    with torch.no_grad():
        for tensor in network.state_dict().values():
            if tensor.is_floating_point() and tensor.dim() == 1:
                tensor.add_(torch.rand(len(tensor)))
    return network


def updates_of(network, m, seed=0):
    rng, before = np.random.default_rng(seed), ParamSpec.of(network).flatten(network)
    spread = rng.normal(scale=0.05, size=(m, len(before))).astype(np.float32)
    return before, np.abs(before + spread)  # variances stay positive


@pytest.mark.parametrize("memory", [256, 1])
@pytest.mark.parametrize("name", [*NETWORKS, *LOOPED])
def test_a_coalition_s_utility_is_its_average_s(name, memory):
    """To 1e-5 of the loss, whatever else is evaluated with it."""
    factory, val, m = (NETWORKS | LOOPED)[name], examples(500), 5
    network, plain = made(factory), factory()
    before, updates = updates_of(network, m)
    server = ServerModel(network, val, val, 10, memory=memory)
    assert server.stack.grouped == (name in NETWORKS)
    weights = np.array([31.0, 50.0, 400.0, 77.0, 120.0])
    coalitions = (np.arange(32)[:, None] >> np.arange(m) & 1).astype(bool)
    utility = ModelAverageUtility(server, before, updates, weights)
    found = utility(coalitions)
    plain(torch.zeros(2, *IMAGE))
    spec, models = ParamSpec.of(plain), weighted_average(coalitions[1:], updates, weights)
    for loss, params in zip(-found, [before, *models], strict=True):
        spec.load(plain, params)
        expected = evaluate(plain, val)
        assert loss == pytest.approx(expected.loss, rel=1e-5)
    assert utility.accuracy == pytest.approx(expected.accuracy, abs=1.5 / len(val))  # the last


def test_one_coalition_alone_has_the_same_utility():
    network, val = made(NETWORKS["mlp"]), examples(700)
    before, updates = updates_of(network, 4)
    utility = ModelAverageUtility(ServerModel(network, val, val, 10), before, updates, np.ones(4))
    coalitions = np.random.default_rng(1).random((12, 4)) < 0.5
    together = utility(coalitions)
    alone = [utility(row[None])[0] for row in coalitions]
    np.testing.assert_allclose(together, alone, rtol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "cnn", "residual"])
def test_more_cores_change_no_digit(name, monkeypatch):
    network, val = made((NETWORKS | LOOPED)[name]), examples(2500)
    before, updates = updates_of(network, 4)
    coalitions, found = np.array([[1, 0, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1]], dtype=bool), []
    for cores in "1", "3":
        monkeypatch.setenv("OMP_NUM_THREADS", cores)
        server = ServerModel(network, val, val, 10, memory=1)
        found.append(ModelAverageUtility(server, before, updates, np.ones(4))(coalitions))
    assert found[0].tolist() == found[1].tolist()


def test_vectors_without_images():
    network, val = build_model("logistic", (6,), 10, 0), examples(300, (6,))
    before, updates = updates_of(network, 3)
    utility = ModelAverageUtility(ServerModel(network, val, val, 10), before, updates, np.ones(3))
    plain = build_model("logistic", (6,), 10, 1)
    for k, loss in enumerate(-utility(np.eye(3, dtype=bool))):
        ParamSpec.of(plain).load(plain, updates[k])
        assert loss == pytest.approx(evaluate(plain, val).loss, rel=1e-5)


@pytest.mark.parametrize("name", ["mlp", "cnn", "residual"])
def test_an_update_that_overflows_spoils_its_coalitions_only(name):
    network, val = made((NETWORKS | LOOPED)[name]), examples(200)
    before, updates = updates_of(network, 3)
    updates[1] = 3e38
    average = ModelAverageUtility(ServerModel(network, val, val, 10), before, updates, np.ones(3))
    good = np.array([[True, False, False], [True, False, True]])
    assert np.isfinite(average(good)).all()
    bad = np.array([[False, False, True], [True, True, False]])
    with pytest.raises(UtilityError, match=r"coalition \[0, 1\] is (nan|-inf)"):
        CachedUtility(average)(bad)


def test_dropout_does_not_drop():
    network, val = made(NETWORKS["dropout"]), examples(200)
    before, updates = updates_of(network, 3)
    network.train()
    utility = ModelAverageUtility(ServerModel(network, val, val, 10), before, updates, np.ones(3))
    everyone = np.ones((2, 3), dtype=bool)
    first, second = utility(everyone)
    assert first == second == utility(everyone)[0]


def test_coalitions_are_evaluated_on_a_part_of_the_validation_split():
    network, val = made(NETWORKS["cnn"]), examples(500)
    before, updates = updates_of(network, 3)
    server = ServerModel(network, val, val, 10, valuation_examples=120)
    utility = ModelAverageUtility(server, before, updates, np.ones(3))
    found = -utility(np.array([[False] * 3, [True, False, False], [False, False, True]]))
    plain = NETWORKS["cnn"]()
    for loss, params in zip(found, (before, updates[0], updates[2]), strict=True):
        server.spec.load(plain, params)
        assert loss == pytest.approx(evaluate(plain, val.stratified(120)).loss, rel=1e-5)
        assert server.val_loss(params) == pytest.approx(evaluate(plain, val).loss, rel=1e-5)


def test_a_large_validation_split_has_a_part():
    network, val = made(NETWORKS["mlp"]), examples(2000)
    before, updates = updates_of(network, 3)
    server = ServerModel(network, val, val, 10)
    assert len(server.part) == 500
    whole = ModelAverageUtility(server, before, updates, np.ones(3)).cached()
    row = np.array([[1, 0, 1]], dtype=bool)
    few = ServerModel(network, val, val, 10, valuation_examples=500)
    assert few.part is None  # it would be too large a part
    same = ModelAverageUtility(few, before, updates, np.ones(3))
    assert whole.part(row).tolist() == same(row).tolist()
    assert whole.num_evaluations == 1  # a quarter, rounded up
    assert whole(row) != whole.part(row)


@pytest.mark.parametrize("n", [7, 50, 333, 500])
def test_a_stratified_part_has_the_shares_of_the_classes(n):
    rng = np.random.default_rng(3)
    y = torch.from_numpy(rng.choice(4, size=500, p=[0.5, 0.3, 0.15, 0.05]))
    part = Dataset(torch.arange(500.0), y).stratified(n)
    assert len(part) == n
    assert len(set(part.x.tolist())) == n
    assert torch.equal(y[part.x.long()], part.y)
    exact = np.bincount(y, minlength=4) * n / 500
    assert (abs(np.bincount(part.y, minlength=4) - exact) < 1).all()
