"""Networks as people write them, each a kind; and what plain PyTorch says of a run with one."""

import importlib
import logging
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


# ---- what cannot be right --------------------------------------------------------------------


class FirstBatch(nn.Module):
    """Learns a scale from the first batch that it sees, and remembers so in a flag."""

    def __init__(self):
        super().__init__()
        self.register_buffer("known", torch.tensor(False))
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, x):
        if self.training and not self.known:
            self.scale.data.copy_(x.detach().std(0))
            self.known.fill_(True)
        return x * self.scale if self.known else x


class NotSaved(RunningScale):
    def __init__(self):
        super().__init__()
        self._buffers["second_moment"] = None
        self.register_buffer("second_moment", torch.ones(()), persistent=False)


class Remembers(nn.Module):
    """An average that is an attribute of Python's."""

    mean = 1.0

    def forward(self, x):
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * float(x.detach().pow(2).mean())
        return x / (1 + self.mean)


class MovesInEvaluation(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(12))

    def forward(self, x):
        self.last.copy_(x.detach().mean(0))
        return x


class Teacher(nn.Module):
    """A frozen copy that follows the trained layer."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(12, 12), nn.Linear(12, 12).requires_grad_(False)

    def forward(self, x):
        if self.training:
            self.teacher.weight.lerp_(self.student.weight.detach(), 0.5)
        return self.student(x) + self.teacher(x)


class NoTensor(TensorState):
    def get_extra_state(self):
        return {"note": "text"}


class Copies(nn.Linear):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        for name, parameter in self._parameters.items():
            destination[prefix + name] = parameter.detach().clone()


class Sequence(Recurrent):
    """The batch taken for time: batch_first is forgotten."""

    def forward(self, x):
        self.cell.batch_first = False
        return super().forward(x)


def part_shared(shape, k):
    net = mlp(shape, k, nn.ReLU(), nn.Linear(12, 12))
    net[3].bias = nn.Parameter(net[1].bias.detach()[:6].repeat(2))
    net[3].weight = nn.Parameter(net[3].weight.detach())
    net[3].bias.data = net[3].weight.detach()[0]
    return net


def unseeded(shape, k):
    net = mlp(shape, k, nn.ReLU())
    net[1].weight.data.normal_(generator=torch.Generator().manual_seed(next(_numbers)))
    return net


def numbers():
    yield from range(1000)


_numbers = numbers()


def started(shape, k, value):
    net = mlp(shape, k, nn.ReLU())
    net[1].weight.data.fill_(value)
    return net


ONE = nn.Linear(12, 12)
WHOLE = mlp((1, 8, 8), 10, nn.ReLU())

#: Each is refused before a run begins; some words of the line.
REFUSED = {
    "the same network again": (lambda s, k: WHOLE, "returns '1.weight' again that it returned"),
    "a layer of the module's": (lambda s, k: mlp(s, k, ONE), "returns '2.weight' again that it"),
    "dict": (lambda s, k: Refused(s, k, lambda o: {"logits": o}), "gives dict in evaluation"),
    "tuple": (lambda s, k: Refused(s, k, lambda o: (o, o)), "gives tuple in evaluation"),
    "complex scores": (lambda s, k: Refused(s, k, lambda o: o * 1j), "gives torch.complex64"),
    "classes": (lambda s, k: mlp(s, k + 1, nn.ReLU()), "gives (16, 11) for 16 examples"),
    "squeezed": (lambda s, k: Refused(s, k, torch.squeeze), "gives (10,) for 1 examples"),
    "no gradient": (lambda s, k: Refused(s, k, torch.detach), "does not require grad"),
    "dict in training": (
        lambda s, k: Refused(s, k, lambda o: o, lambda o: {"logits": o}),
        "gives dict in training",
    ),
    "one score in training": (
        lambda s, k: Refused(s, k, lambda o: o, lambda o: o[:, :1]),
        "gives (16, 1) in training",
    ),
    "dropout that stays on": (lambda s, k: Refused(s, k, F.dropout), "other scores each time"),
    "batch taken for time": (
        lambda s, k: Sequence(s[-1], k, nn.GRU),
        "scores an example otherwise beside other examples",
    ),
    "norm without statistics": (
        lambda s, k: mlp(s, k, nn.BatchNorm1d(12, track_running_stats=False)),
        "scores an example otherwise beside other examples",
    ),
    "mean of the batch": (
        lambda s, k: Net(s, k, lambda net, x: x - x.mean(0)),
        "scores an example otherwise beside other examples",
    ),
    "flag": (lambda s, k: mlp(s, k, FirstBatch()), "in buffers of whole numbers or flags"),
    "not saved": (
        lambda s, k: Net(s, k, lambda net, x: net.scale(x), scale=NotSaved()),
        "outside of its parameters",
    ),
    "attribute": (lambda s, k: mlp(s, k, Remembers()), "outside of its parameters"),
    "moves in evaluation": (lambda s, k: mlp(s, k, MovesInEvaluation()), "evaluation changes '2.l"),
    "teacher": (lambda s, k: mlp(s, k, Teacher()), "changes '2.teacher.weight', which is frozen"),
    "extra state": (lambda s, k: mlp(s, k, NoTensor()), "'2._extra_state', which is no tensor"),
    "unflattened": (lambda s, k: nn.Linear(prod(s), k), "mat1 and mat2 shapes"),
    "copies": (lambda s, k: mlp(s, k, Copies(12, 12)), "its state_dict gives copies"),
    "shared in part": (part_shared, "'3.bias' and '3.weight' share memory in part"),
    "unseeded": (unseeded, "other numbers each time that the factory is called"),
    "expanded table": (
        lambda s, k: Attention(*s[-2:], k, expanded=True),
        "more than one element of the written-to",
    ),
    "NaN": (lambda s, k: started(s, k, float("nan")), "scores that are NaN or infinite"),
    "huge": (lambda s, k: started(s, k, 1e38), "scores that are NaN or infinite"),
    "nothing to train": (lambda s, k: mlp(s, k).requires_grad_(False), "has no parameter to train"),
    "trains what it does not use": (
        lambda s, k: (
            Net(s, k, lambda net, x: x, spare=nn.Linear(3, 3))
            .requires_grad_(False)
            .apply(
                lambda m: m.requires_grad_(m.weight.shape == (3, 3)) if hasattr(m, "weight") else 0
            )
        ),
        "does not require grad",
    ),
    "double inputs": (lambda s, k: mlp(s, k, nn.ReLU()).double(), "must have the same dtype"),
}


class Refused(nn.Module):
    """An MLP with something done to its output, in training perhaps something else."""

    def __init__(self, shape, k, change, in_training=None):
        super().__init__()
        self.net, self.change = mlp(shape, k, nn.ReLU()), change
        self.in_training = in_training or change

    def forward(self, x):
        return (self.in_training if self.training else self.change)(self.net(x))


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
