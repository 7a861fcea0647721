"""Networks that cannot be averaged, saved or valued rightly, each a kind, and what is said."""

from functools import lru_cache
from math import prod

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.networks import Attention, Merged, Net, Recurrent, RunningScale, TensorState, mlp


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


class OfTheClass(nn.Module):
    """State that all objects of the class share."""

    mean = 1.0

    def forward(self, x):
        if self.training:
            type(self).mean = 0.5 * self.mean + 0.5 * float(x.detach().pow(2).mean())
        return x / (1 + self.mean)


class Counted(nn.Module):
    """Trains by a counter of the module's, which all networks share."""

    def forward(self, x):
        return x * (1 + next(_numbers)) if self.training else x


class Found(nn.Module):
    """Makes its layer when it first sees its input."""

    def forward(self, x):
        if not hasattr(self, "layer"):
            self.layer = nn.Linear(x.shape[1], 12)
        return self.layer(x)


class Kept(Merged):
    """Merges once, and never again."""

    def train(self, mode=True):
        if self.merged is not None:
            return nn.Module.train(self, mode)
        return super().train(mode)


class Cached(nn.Module):
    """Derives a matrix of its parameter once for all evaluations."""

    def __init__(self):
        super().__init__()
        self.raw = nn.Parameter(torch.eye(12))
        self.matrix = lru_cache(lambda: self.raw.softmax(1).detach())

    def forward(self, x):
        return x @ (self.raw.softmax(1) if self.training else self.matrix())


class Overwrites(nn.Module):
    def forward(self, x):
        return x.mul_(0.9)


class Toggles(Net):
    """Trains its first layer in training mode only."""

    def train(self, mode=True):
        super().train(mode)
        self.inp.requires_grad_(mode)
        return self


class Hidden(nn.Module):
    """A layer that its state_dict does not tell."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 12)

    def forward(self, x):
        return self.layer(x)

    def state_dict(self, *args, destination=None, **kwargs):
        return {} if destination is None else destination


class Listed(nn.Module):
    """Layers in a list, which nobody trains or saves."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(12, 12)]

    def forward(self, x):
        return self.layers[0](x)


class With(nn.Module):
    """A buffer of some kind."""

    def __init__(self, tensor, **keys):
        super().__init__()
        self.register_buffer("held", tensor, **keys)

    def forward(self, x):
        return x * self.held if self.held.shape == (12,) and not self.held.is_meta else x


class Counts(nn.Module):
    """A statistic with more digits than float32 has."""

    def __init__(self):
        super().__init__()
        self.register_buffer("time", torch.tensor(1e9, dtype=torch.float64))

    def forward(self, x):
        if self.training:
            self.time += 1
        return x * (self.time - 1e9).cos().float()


class Exits(nn.Module):
    def forward(self, x):
        raise SystemExit(3)


def exits(shape, k):
    raise SystemExit(3)


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
    "dropout that stays on": (
        lambda s, k: Refused(s, k, F.dropout),
        "otherwise each time, in evaluation",
    ),
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
    "copies": (lambda s, k: mlp(s, k, Copies(12, 12)), "its state_dict gives a copy of"),
    "shared in part": (part_shared, "'3.bias' and '3.weight' share memory in part"),
    "unseeded": (unseeded, "other numbers each time that the factory is called"),
    "expanded table": (
        lambda s, k: Attention(*s[-2:], k, expanded=True),
        "more than one element of the written-to",
    ),
    "state of the class": (lambda s, k: mlp(s, k, OfTheClass()), "once another was trained"),
    "state of the module": (lambda s, k: mlp(s, k, Counted()), "training makes other numbers of"),
    "first forward": (lambda s, k: mlp(s, k, Found()), "makes '2.layer.bias' in its first forward"),
    "merged once": (lambda s, k: Kept(s, k), "scores"),
    "cached for ever": (lambda s, k: mlp(s, k, Cached()), "by what it kept of earlier parameters"),
    "input in place": (
        lambda s, k: nn.Sequential(Overwrites(), *mlp(s, k, nn.ReLU())),
        "changes the examples that it is given",
    ),
    "trained at times": (
        lambda s, k: Toggles(s, k, lambda net, x: x),
        "'inp.bias' is trained at times only",
    ),
    "hidden layer": (lambda s, k: mlp(s, k, Hidden()), "state_dict lacks '2.layer.weight', which"),
    "layers in a list": (lambda s, k: mlp(s, k, Listed()), "a network of other random numbers"),
    "random numbers, not saved": (
        lambda s, k: mlp(s, k, With(torch.rand(12), persistent=False)),
        "a network of other random numbers",
    ),
    "sparse": (
        lambda s, k: mlp(s, k, With(torch.eye(12).to_sparse())),
        "'2.held', which is sparse",
    ),
    "meta": (
        lambda s, k: mlp(s, k, With(torch.ones(12, device="meta"))),
        "Cannot copy out of meta tensor",
    ),
    "float8": (
        lambda s, k: mlp(s, k, With(torch.ones(3).to(torch.float8_e4m3fn))),
        "'2.held', which is torch.float8_e4m3fn",
    ),
    "complex128": (
        lambda s, k: mlp(s, k, With(torch.ones(3, dtype=torch.cdouble))),
        "'2.held', which is torch.complex128",
    ),
    "many digits": (lambda s, k: mlp(s, k, Counts()), "in more digits than float32 has"),
    "exits": (lambda s, k: mlp(s, k, Exits()), "SystemExit: 3; in evaluation it must map"),
    "factory exits": (exits, "raised SystemExit: 3; correct the factory"),
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
