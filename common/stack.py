"""Many models of one architecture on the same examples, evaluated at once.

A network that is a chain of known layers (`nn.Sequential`, nested ones too) becomes one network of
C groups: its first layer is one layer with C times the outputs, since all models see the same
input; later convolutions are grouped, later linear layers are batched products. Any other network
is called once for each model. Which of the two it is depends on the network alone, and not on a
measurement when a run starts: they differ in the last digits, and a seed must give the same run.
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import batch_norm, conv2d, linear

from common.params import ParamSpec

#: A layer of C models: from examples (n, …), the same for all models, or from maps
#: (n, C·channels, height, width) or features (C, n, ·), to maps or features.
Layer = Callable[[Tensor], Tensor]
Weights = dict[str, Tensor]  # (C, *shape) by name in the state_dict

_NOTHING = nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout  # in evaluation
_ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish),
)
_POOLING = nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d


class ModelStack:
    """C models of the architecture of `model`, given by their vectors (C, D).

    Attributes:
        grouped: whether they are one network of C groups.
        mixable: whether that network's first layer is a linear one. Its output is linear in the
            parameters: that of an average of models is the average of theirs.
        first_size: how many numbers of a vector are that layer's; they are its first.
        width: the most activations that one example has in a layer with parameters of one model.
    """

    def __init__(self, model: nn.Module, input_shape: tuple[int, ...]) -> None:
        self.model, self.spec = model.eval(), ParamSpec.of(model)
        self._given = {1: "flat", 3: "images"}.get(len(input_shape), "examples")
        self._shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        chain = list(_flat(model)) if isinstance(model, nn.Sequential) else []
        self._chain = _pool_first([c for c in chain if not isinstance(c[1], _NOTHING)])
        self.width = _width(model, input_shape)
        one = self._weights(torch.from_numpy(self.spec.flatten(model))[None])
        self.grouped = _grouped(self._chain, one, self._given, 1) is not None
        kinds = [type(layer) for _, layer in self._chain]
        first = kinds.index(nn.Linear) + 1 if self.grouped else 0
        self.mixable = kinds[:first] in ([nn.Linear], [nn.Flatten, nn.Linear])
        self._first = self._chain[: first * self.mixable]
        self._rest = self._chain[first * self.mixable :]
        name = self._first[-1][0] if self.mixable else "none of this name."
        self.first_size = max((e for n, _, e in self.spec.entries if n.startswith(name)), default=0)

    def first(self, params: Tensor) -> Layer:
        """The first layer of models (C, D), where `mixable`: examples -> (C, n, features).

        Parameters and examples must be on the model's device, here and in the others.
        """
        return _in_turn(_grouped(self._first, self._weights(params), self._given, len(params)))

    def rest(self, params: Tensor) -> Layer:
        """What follows it: -> scores (C, n, classes), of models (C, D − `first_size`)."""
        weights = self._weights(params, self.first_size)
        return _in_turn(_grouped(self._rest, weights, "features", len(params)))

    def whole(self, params: Tensor) -> Layer:
        """Models (C, D): examples -> scores (C, n, classes)."""
        weights = self._weights(params)
        layers = _grouped(self._chain, weights, self._given, len(params)) if self.grouped else None
        return _in_turn(layers or [partial(_one_by_one, self.model, weights)])

    def _weights(self, params: Tensor, skipped: int = 0) -> Weights:
        """By name; `params` (C, ·) begins with number `skipped` of the vector."""
        return {
            name: params[:, start - skipped : end - skipped].view(len(params), *self._shapes[name])
            for name, start, end in self.spec.entries
            if start >= skipped
        }


def _same(x: Tensor) -> Tensor:
    return x


def _in_turn(layers: list[Layer] | None) -> Layer:
    def run(x: Tensor) -> Tensor:
        for layer in layers or ():
            x = layer(x)
        return x

    return run


def _one_by_one(model: nn.Module, weights: Weights, x: Tensor) -> Tensor:
    count = len(next(iter(weights.values())))
    each = ({name: tensor[c] for name, tensor in weights.items()} for c in range(count))
    return torch.stack([functional_call(model, one, (x,)) for one in each])


def _flat(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested Sequentials, with the prefix of their parameters' names."""
    for name, layer in model.named_children():
        if isinstance(layer, nn.Sequential):
            yield from _flat(layer, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}.", layer


def _pool_first(chain: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """ReLU after the max-pooling that follows it: the same numbers, from a quarter of the input."""
    chain = list(chain)
    for i in range(len(chain) - 1):
        if type(chain[i][1]) is nn.ReLU and type(chain[i + 1][1]) is nn.MaxPool2d:
            chain[i], chain[i + 1] = chain[i + 1], chain[i]
    return chain


def _width(model: nn.Module, input_shape: tuple[int, ...]) -> int:
    sizes = list[int]()

    def note(layer: nn.Module, given: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel())

    parametric = (m for m in model.modules() if list(m.parameters(recurse=False)))
    hooks = [layer.register_forward_hook(note) for layer in parametric]
    try:
        with torch.inference_mode():
            model(torch.zeros(1, *input_shape, device=next(model.parameters()).device))
    finally:
        for hook in hooks:
            hook.remove()
    return max(sizes, default=prod(input_shape))


def _grouped(
    chain: list[tuple[str, nn.Module]], weights: Weights, given: str, count: int
) -> list[Layer] | None:
    """A layer of C groups for each of the chain; None if one is not known, or not in its place."""
    layers = list[Layer]()
    for prefix, layer in chain:
        own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
        found = _layer(layer, own, given, count)
        if found is None:
            return None
        layers.append(found[0])
        given = found[1]
    return layers if given == "features" else None


def _layer(layer: nn.Module, own: Weights, given: str, count: int) -> tuple[Layer, str] | None:
    """A layer of C groups and what it gives: maps or features.

    It is given examples, which may be flat ones or images, or the maps or features of C models.
    """
    kind, of_models = type(layer), given in ("maps", "features")
    if kind.forward is not getattr(nn, kind.__name__, kind).forward:
        return None  # a subclass that does something else
    if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
        if given == "maps":
            return partial(_features_of_maps, count), "features"
        return (_same, given) if given == "features" else (layer, "flat")
    if isinstance(layer, nn.Linear) and given in ("flat", "features"):
        return partial(_linear if given == "features" else _shared_linear, own), "features"
    if isinstance(layer, nn.Conv2d) and _can_convolve(layer, given):
        return _convolution(layer, own, count if given == "maps" else 1), "maps"
    if isinstance(layer, nn.BatchNorm2d) and given == "maps" and layer.track_running_stats:
        return partial(_batch_norm, layer.eps, {k: v.flatten() for k, v in own.items()}), given
    if isinstance(layer, nn.BatchNorm1d) and given == "features" and layer.track_running_stats:
        return partial(_batch_norm_of_features, layer.eps, own), given
    if kind is nn.ReLU and of_models:
        return torch.relu_, given  # nobody else has what a layer gave
    pools = kind in _POOLING and given == "maps" and not getattr(layer, "return_indices", False)
    return (layer, given) if pools or (kind in _ELEMENTWISE and of_models) else None


def _features_of_maps(count: int, x: Tensor) -> Tensor:
    return x.reshape(len(x), count, -1).transpose(0, 1)


def _shared_linear(own: Weights, x: Tensor) -> Tensor:
    count, outputs = own["weight"].shape[:2]
    bias = own["bias"].flatten() if "bias" in own else None
    return linear(x, own["weight"].flatten(0, 1), bias).view(-1, count, outputs).transpose(0, 1)


def _linear(own: Weights, x: Tensor) -> Tensor:
    weight = own["weight"].transpose(1, 2)
    return torch.baddbmm(own["bias"][:, None], x, weight) if "bias" in own else x @ weight


def _can_convolve(layer: nn.Conv2d, given: str) -> bool:
    place = given == "maps" or (given == "images" and layer.groups == 1)
    return place and layer.padding_mode == "zeros"


def _convolution(layer: nn.Conv2d, own: Weights, count: int) -> Layer:
    """Of C groups of maps, or with `count` = 1 of images that all models see."""
    weight = own["weight"].flatten(0, 1).contiguous(memory_format=torch.channels_last)
    bias = own["bias"].flatten() if "bias" in own else None
    groups = layer.groups * count

    def convolve(x: Tensor) -> Tensor:
        return conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, groups)

    return convolve


def _batch_norm(eps: float, own: Weights, x: Tensor) -> Tensor:
    known = own["running_mean"], own["running_var"], own.get("weight"), own.get("bias")
    return batch_norm(x, *known, training=False, eps=eps)


def _batch_norm_of_features(eps: float, own: Weights, x: Tensor) -> Tensor:
    own = {name: tensor[:, None] for name, tensor in own.items()}
    x = (x - own["running_mean"]) * (own["running_var"] + eps).rsqrt()
    return x * own["weight"] + own["bias"] if "weight" in own else x
