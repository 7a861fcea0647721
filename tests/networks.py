"""Networks as people write them, each a kind; and what plain PyTorch says of a run with one."""

import importlib
import logging
import random
from itertools import pairwise
from math import prod

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

from client_app.app import app as client_app
from common.config import RunConfig
from common.datasets import load_splits
from common.models import build_model
from experiments.local_grid import LocalGrid
from server_app.app import app as server_app
from server_app.app import server_model
from tests.federation import directory_of, history_of


def mlp(shape, k, *between, width=12, first=nn.Linear):
    return nn.Sequential(nn.Flatten(), first(prod(shape), width), *between, nn.Linear(width, k))


class Net(nn.Module):
    """A trunk, and a forward that uses it in a way of its own."""

    def __init__(self, shape, k, use, **parts):
        super().__init__()
        self.inp, self.out, self.use = nn.Linear(prod(shape), 12), nn.Linear(12, k), use
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.out(self.use(self, self.inp(x.flatten(1))))


class Half(nn.Module):
    def __init__(self, d, k, dtype):
        super().__init__()
        self.net, self.dtype = nn.Linear(d, k, dtype=dtype), dtype

    def forward(self, x):
        return self.net(x.flatten(1).to(self.dtype))


class Spectral(nn.Module):
    """Complex weights in frequency space, and complex ones without a name for their parts."""

    def __init__(self, shape, k):
        super().__init__()
        h, w = shape[-2:]
        self.filter = nn.Parameter(torch.randn(h, w // 2 + 1, dtype=torch.cfloat))
        self.register_buffer("phase", torch.exp(1j * torch.rand(h, w // 2 + 1)))
        self.out = nn.Linear(h * w, k)

    def forward(self, x):
        spectrum = torch.fft.rfft2(x.squeeze(1)) * self.filter * self.phase
        return self.out(torch.fft.irfft2(spectrum, s=x.shape[-2:]).flatten(1))


class Attention(nn.Module):
    """Rows as a sequence; a mask of −inf and a table of positions as buffers."""

    def __init__(self, t, d, k, expanded=False):
        super().__init__()
        self.inp, self.attend = nn.Linear(d, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, k)
        self.register_buffer("mask", torch.triu(torch.full((t, t), float("-inf")), 1))
        places = torch.arange(t, dtype=torch.float32)[:, None].expand(t, 8)
        self.register_buffer("positions", places if expanded else places.clone())

    def forward(self, x):
        x = self.inp(x.squeeze(1)) + self.positions / 100
        return self.out(self.attend(x, x, x, attn_mask=self.mask, need_weights=False)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self, d, k, kind):
        super().__init__()
        self.cell, self.out = kind(d, 8, num_layers=2, batch_first=True), nn.Linear(8, k)

    def forward(self, x):
        return self.out(self.cell(x.squeeze(1))[0][:, -1])


class Viewing(nn.Module):
    """view() after a convolution, which does not take every order of memory."""

    def __init__(self, shape, k):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(shape[0], 4, 3, padding=1), nn.BatchNorm2d(4)
        self.out = nn.Linear(4 * shape[1] * shape[2], k)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.out(x.view(x.size(0), -1))


class RunningScale(nn.Module):
    """A statistic of its own, which must stay positive, and a counter."""

    def __init__(self):
        super().__init__()
        self.register_buffer("second_moment", torch.ones(()))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.second_moment.mul_(0.9).add_(0.1 * x.pow(2).mean())
                self.seen.add_(len(x))
        return x / self.second_moment.sqrt()


class Doubled(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


class TensorState(nn.Module):
    """Extra state that is a tensor, as safetensors can keep."""

    def get_extra_state(self):
        return torch.tensor([3])

    def set_extra_state(self, state):
        assert state.tolist() == [3]

    def forward(self, x):
        return x


class StaysInEvaluation(nn.BatchNorm1d):
    """BatchNorm whose statistics are frozen, as in fine-tuning."""

    def train(self, mode=True):
        return super().train(False)


def shared(shape, k):
    act = nn.Tanh()
    return mlp(shape, k, act, nn.Linear(12, 12), act)


def hooked(shape, k):
    net = mlp(shape, k, nn.ReLU())
    net[2].register_forward_hook(lambda layer, given, output: output * 3)
    return net


def pruned(shape, k):
    net = mlp(shape, k, nn.ReLU())
    prune.l1_unstructured(net[1], "weight", amount=0.7)
    return net


def tied(shape, k):
    net = mlp(shape, k, nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12))
    net[4].weight = net[2].weight
    return net


def twice(shape, k):
    layer = nn.Linear(12, 12)
    return mlp(shape, k, layer, nn.ReLU(), layer)


def own_forward(shape, k):
    net = mlp(shape, k, nn.ReLU())
    net[2].forward = lambda x: x.abs()
    return net


def frozen_first(shape, k):
    net = mlp(shape, k, nn.ReLU(), nn.BatchNorm1d(12))
    net[1].requires_grad_(False)
    return net


def frozen_bias(shape, k):
    net = mlp(shape, k, nn.ReLU())
    net[1].bias.requires_grad_(False)
    return net


def masked_gradient(shape, k):
    net = mlp(shape, k, nn.ReLU())
    net[1].weight.register_hook(lambda gradient: gradient * (gradient > 0))
    return net


def numpy_drawn(shape, k):
    net = mlp(shape, k, nn.ReLU())
    net[1].weight.data = torch.from_numpy(
        np.random.normal(size=(12, prod(shape)), scale=0.1)
    ).float()
    return net


def residual(net, x):
    return x + net.inner(x.relu())


def normed(d, h):
    return weight_norm(nn.Linear(d, h))


def parametrized(d, h):
    return parametrizations.weight_norm(nn.Linear(d, h))


class Outputs(Net):
    def __init__(self, shape, k):
        super().__init__(shape, k, lambda net, x: x.relu(), aux=nn.Linear(12, k))

    def forward(self, x):
        scores = super().forward(x)
        return (scores, self.aux(self.inp(x.flatten(1)))) if self.training else scores


class Merged(nn.Module):
    """Two layers that become one where training ends (as RepVGG and LoRA do)."""

    def __init__(self, shape, k):
        super().__init__()
        self.a, self.b, self.merged = nn.Linear(prod(shape), 12), nn.Linear(12, k), None

    def train(self, mode=True):
        if self.training and not mode:
            bias = self.b.weight @ self.a.bias + self.b.bias
            self.merged = (self.b.weight @ self.a.weight).detach(), bias.detach()
        return super().train(mode)

    def forward(self, x):
        x = x.flatten(1)
        if self.training or self.merged is None:
            return self.b(self.a(x))
        return F.linear(x, *self.merged)


class Energy(nn.Module):
    """Differentiates for itself, also in evaluation."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(12, 12), nn.Softplus(), nn.Linear(12, 1))

    def forward(self, x):
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            return torch.autograd.grad(self.inner(x).sum(), x, create_graph=self.training)[0]


class Noisy(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return x * (0.5 + self.draw()) if self.training else x


class Renamed(Net):
    """A state_dict without the prefix that a wrapper adds, and loading that knows it."""

    def __init__(self, *args):
        super().__init__(*args)
        self.register_state_dict_post_hook(self._short)
        self.register_load_state_dict_pre_hook(self._long)

    @staticmethod
    def _short(module, state, prefix, local):
        for name in list(state):
            state[f"net.{name}"] = state.pop(name)

    @staticmethod
    def _long(module, state, *_):
        for name in list(state):
            state[name.removeprefix("net.")] = state.pop(name)


class Silent(Net):
    def to(self, *args, **kwargs):
        super().to(*args, **kwargs)

    def train(self, mode=True):
        super().train(mode)

    def eval(self):
        super().eval()


def of_doubles(shape, k):
    torch.set_default_dtype(torch.float64)
    return Half(prod(shape), k, torch.float64)


#: Each must record what plain PyTorch says.
WORK = {
    "mlp": lambda s, k: mlp(s, k, nn.ReLU()),
    "shared activation": shared,
    "layer used twice": twice,
    "tied weights": tied,
    "forward of a Sequential": lambda s, k: mlp(s, k, Doubled(nn.Linear(12, 12), nn.ReLU())),
    "Sequential of that at the top": lambda s, k: Doubled(*mlp(s, k, nn.ReLU())),
    "hook": hooked,
    "forward of an object": own_forward,
    "pruned": pruned,
    "old weight norm": lambda s, k: mlp(s, k, nn.ReLU(), nn.BatchNorm1d(12), first=normed),
    "new weight norm": lambda s, k: mlp(s, k, nn.ReLU(), first=parametrized),
    "spectral norm": lambda s, k: mlp(s, k, nn.ReLU(), spectral_norm(nn.Linear(12, 12))),
    "spectral parametrization": lambda s, k: mlp(
        s, k, nn.ReLU(), parametrizations.spectral_norm(nn.Linear(12, 12))
    ),
    "residual": lambda s, k: Net(s, k, residual, inner=nn.Linear(12, 12)),
    "layers in a dict": lambda s, k: Net(
        s, k, lambda n, x: n.parts["a"](x).relu(), parts=nn.ModuleDict({"a": nn.Linear(12, 12)})
    ),
    "batch norm": lambda s, k: mlp(s, k, nn.BatchNorm1d(12), nn.ReLU()),
    "batch norm, frozen statistics": lambda s, k: mlp(s, k, StaysInEvaluation(12), nn.ReLU()),
    "batch norm without momentum": lambda s, k: mlp(s, k, nn.BatchNorm1d(12, momentum=None)),
    "layer norm": lambda s, k: mlp(s, k, nn.LayerNorm(12), nn.GELU()),
    "statistic of its own": lambda s, k: Net(s, k, lambda n, x: n.scale(x), scale=RunningScale()),
    "dropout": lambda s, k: mlp(s, k, nn.ReLU(), nn.Dropout(0.3)),
    "in place": lambda s, k: mlp(
        s, k, nn.ELU(inplace=True), nn.Linear(12, 12), nn.ReLU(inplace=True)
    ),
    "view after convolution": Viewing,
    "lazy": lambda s, k: nn.Sequential(
        nn.Flatten(), nn.LazyLinear(9), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(k)
    ),
    "float64": lambda s, k: Half(prod(s), k, torch.float64),
    "bfloat16": lambda s, k: Half(prod(s), k, torch.bfloat16),
    "complex": Spectral,
    "mask of -inf": lambda s, k: Attention(*s[-2:], k),
    "LSTM": lambda s, k: Recurrent(s[-1], k, nn.LSTM),
    "GRU": lambda s, k: Recurrent(s[-1], k, nn.GRU),
    "outputs for training": lambda s, k: Outputs(s, k),
    "frozen first layer": frozen_first,
    "frozen bias": frozen_bias,
    "extra state of tensors": lambda s, k: mlp(s, k, TensorState(), nn.ReLU()),
    "numbers of numpy": numpy_drawn,
    "merged in evaluation": lambda s, k: Merged(s, k),
    "energy": lambda s, k: mlp(s, k, Energy()),
    "noise of numpy in training": lambda s, k: mlp(s, k, Noisy(np.random.rand)),
    "noise of random in training": lambda s, k: mlp(s, k, Noisy(random.random)),
    "default of float64": of_doubles,
    "other names in state_dict": lambda s, k: Renamed(s, k, lambda net, x: x.relu()),
    "to, eval and train that return nothing": lambda s, k: Silent(s, k, lambda net, x: x.relu()),
    "probabilities": lambda s, k: nn.Sequential(*mlp(s, k, nn.ReLU()), nn.Softmax(1)),
    "scripted": lambda s, k: torch.jit.script(mlp(s, k, nn.ReLU())),
    "sequence of parameters": lambda s, k: Net(
        s,
        k,
        lambda net, x: x @ net.weights[0] + net.weights[1],
        weights=nn.ParameterList([torch.eye(12), torch.zeros(12)]),
    ),
    "hook on a gradient": masked_gradient,
    "float16": lambda s, k: Half(prod(s), k, torch.float16),
    "one linear layer": lambda s, k: nn.Sequential(nn.Flatten(), nn.Sequential(), nn.Linear(64, k)),
}

#: The network that the factory below makes: a function of shape and classes.
chosen = WORK["mlp"]


def factory(shape, k):
    return importlib.import_module(__name__).chosen(shape, k)


def config_for(folder, **keys):
    """Three rounds of two of four clients, all valued exactly."""
    return RunConfig.from_flat(
        {
            "model": "tests.networks:factory",
            "num-clients": 4,
            "clients-per-round": 2,
            "num-rounds": 3,
            "learning-rate": 0.1,
            "output-dir": str(folder),
        }
        | {key.replace("_", "-"): value for key, value in keys.items()}
    )


class Recorder(LocalGrid):
    """Keeps the model of each round, and the updates, in their order."""

    def __init__(self, *args):
        super().__init__(*args)
        self.rounds = []

    def push_messages(self, messages):
        messages = list(messages)
        ids = super().push_messages(messages)
        if messages and messages[0].metadata.message_type == "train":
            sent = messages[0].content["params"]["params"].numpy()
            replies = [self._replies[i].content for i in ids]
            updates = [
                (r["params"]["params"].numpy().copy(), r["result"]["num-examples"]) for r in replies
            ]
            self.rounds.append((sent.copy(), updates))
        return ids


def recorded(config):
    """Run a configuration; its directory, and of each round the model sent and the updates."""
    from flwr.app import Context, RecordDict

    flat = config.to_flat()
    grid = Recorder(client_app, flat, [{} for _ in range(config.data.num_clients)])
    server_app(grid=grid, context=Context(1, 1, {}, RecordDict(), flat))
    return directory_of(config), grid.rounds


def plain_loss(network, data):
    """What plain PyTorch says: one pass over all examples, loss and accuracy."""
    network.eval()
    with torch.no_grad():
        scores = network(data.x)
    scores = scores if scores.dtype == torch.float64 else scores.float()
    hits = (scores.argmax(1) == data.y).double().mean()
    return float(F.cross_entropy(scores.double(), data.y)), float(hits)


def check_against_plain(config):
    """All that a run recorded, by plain PyTorch and a plain loop over coalitions."""
    directory, rounds = recorded(config)
    history, splits = history_of(directory), load_splits(config.data, config.seed)
    keys = config.training.model, splits.input_shape, splits.num_classes, config.seed
    saved = build_model(*keys)
    saved.load_state_dict(load_file(directory / "model.safetensors"))
    for part, name in ((splits.val, "val"), (splits.test, "test")):
        loss, accuracy = plain_loss(saved, part)
        assert abs(history[-1][f"{name}_loss"] - loss) < 1e-5 * (1 + loss)
        assert abs(history[-1][f"{name}_accuracy"] - accuracy) < 1.5 / len(part)
    logging.disable(logging.INFO)
    spec = server_model(config).spec
    logging.disable(logging.NOTSET)

    def loss_of(vector):
        network = build_model(*keys)
        spec.load(network, vector)
        return plain_loss(network, splits.val)[0]

    assert len(rounds) == len(history) == config.num_rounds
    for (before, updates), record in zip(rounds, history, strict=True):
        (a, n), (b, m) = updates
        both = ((n * a.astype(np.float64) + m * b) / (n + m)).astype(np.float32)
        v0, va, vb, v = (-loss_of(vector) for vector in (before, a, b, both))
        values = [(va - v0 + v - vb) / 2, (vb - v0 + v - va) / 2]
        found = [record["shapley"][client] for client in record["cohort"]]
        np.testing.assert_allclose(found, values, atol=1e-5 * (1 + abs(v)))
        assert abs(record["val_loss"] + v) < 1e-5 * (1 + abs(v))
    for (_, updates), (sent, _) in pairwise(rounds):
        (a, n), (b, m) = updates
        np.testing.assert_allclose(sent, (n * a + m * b) / (n + m), rtol=1e-4, atol=1e-6)
    return directory, rounds, spec


def new_network(config):
    splits = load_splits(config.data, config.seed)
    return build_model(config.training.model, splits.input_shape, splits.num_classes, config.seed)
