"""Many models of one architecture on the same examples, evaluated at once.

A network that is a chain of known layers (`nn.Sequential`, nested ones too) becomes one network of
C groups: its first layer is one layer with C times the outputs, since all models see the same
input; later convolutions are grouped, later linear layers are batched products. Any other network
is evaluated one model after the other, by itself. Which of the two it is depends on the network
alone, and not on a measurement when a run starts: they differ in the last digits, and a seed must
give the same run. What is grouped is compared with the network before it is trusted.
"""

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, linear

from common.chain import ELEMENTWISE, NOTHING, POOLING, Chain, chain_of
from common.evaluation import to_evaluation
from common.params import ParamSpec, Vector

#: A layer of C models: from examples (n, …), the same for all models, or from maps
#: (n, C·channels, height, width) or features (C, n, ·), to maps or features.
Layer = Callable[[Tensor], Tensor]
Weights = dict[str, Tensor]  # (C, *shape) by name in the state_dict


class ModelStack:
    """C models of the architecture of `model`, given by their vectors (C, D).

    Args:
        spec: what of the model is in a vector.
        examples: a few examples (n, *input_shape), on the model's device.
        positive: tensors that must not be negative.

    Attributes:
        why_not: why they are no network of C groups; empty where they are.
        mixable: whether that network's first layer is a linear one. Its output is linear in the
            parameters: that of an average of models is the average of theirs.
        first_size: how many numbers of a vector are that layer's; they are its first.
        width: the most activations that one example has in a layer with parameters of one model.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: ParamSpec,
        examples: Tensor,
        positive: tuple[str, ...] = (),
    ) -> None:
        self.model, self.spec = model.eval(), spec
        self._given = {2: "flat", 4: "images"}.get(examples.dim(), "examples")
        self._state = {n: t for n, t in model.state_dict().items() if isinstance(t, Tensor)}
        self.width = _width(model, examples[:1])
        chain, self.why_not = chain_of(model)
        if spec.tied:
            self.why_not = "it has tied weights"
        if not all(self._state[name].dtype == torch.float32 for name, _, _ in spec.entries):
            self.why_not = "its parameters are not all float32"
        self._chain = _pool_first([c for c in chain if not isinstance(c[1], NOTHING)])
        one = self._weights(torch.from_numpy(spec.flatten(model))[None].to(examples.device))
        if not self.why_not and _grouped(self._chain, one, self._given, 1) is None:
            self.why_not = "one of its layers has no grouped form, or not there"
        kinds = [type(layer) for _, layer in self._chain]
        first = kinds.index(nn.Linear) + 1 if self.grouped else 0
        self.mixable = kinds[:first] in ([nn.Linear], [nn.Flatten, nn.Linear])
        name = self._chain[first - 1][0] if self.mixable else "none of this name."
        own = [(n, e) for n, _, e in spec.entries if n.startswith(name)]
        frozen = sum(n.startswith(name) for n in self._state) > len(own)
        self.mixable = self.mixable and not frozen
        self.first_size = max((e for _, e in own), default=0) * self.mixable
        self._first = self._chain[: first * self.mixable]
        self._rest = self._chain[first * self.mixable :]
        if self.grouped and not self._agrees(examples, positive):
            self.why_not = "grouped, it scores otherwise"

    @property
    def grouped(self) -> bool:
        """Whether the models are one network of C groups."""
        return not self.why_not

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
        """Models (C, D), where `grouped`: examples -> scores (C, n, classes)."""
        return _in_turn(_grouped(self._chain, self._weights(params), self._given, len(params)))

    def _weights(self, params: Tensor, skipped: int = 0) -> Weights:
        """By name; `params` (C, ·) begins with number `skipped` of the vector."""
        count, travels = len(params), {name for name, _, _ in self.spec.entries}
        same = {n: t for n, t in self._state.items() if n not in travels}
        return {n: t.expand(count, *t.shape) for n, t in same.items()} | {
            name: params[:, start - skipped : end - skipped].view(count, *self._state[name].shape)
            for name, start, end in self.spec.entries
            if start >= skipped and not self._state[name].is_complex()
        }

    def _agrees(self, examples: Tensor, positive: tuple[str, ...]) -> bool:
        """Whether perturbed models score examples as the network itself does with each of them."""
        vectors = _perturbed(self.spec, self.spec.flatten(self.model), positive)
        params = torch.from_numpy(vectors).to(examples.device)
        before = self.spec.flatten(self.model)
        with torch.no_grad():
            found = [self.whole(params)(examples)]
            if self.mixable:
                found.append(self.rest(params[:, self.first_size :])(self.first(params)(examples)))
            plain = []
            for vector in vectors:
                self.spec.load(self.model, vector)
                to_evaluation(self.model)
                plain.append(self.model(examples))
            self.spec.load(self.model, before)
            expected = torch.stack(plain)
        # A GPU's convolutions may round to 10 bits.
        tolerance = (1e-2 if examples.is_cuda else 1e-4) * (1 + expected.abs().max())
        return all(
            each.shape == expected.shape and bool((each - expected).abs().max() <= tolerance)
            for each in found
        )


def _perturbed(spec: ParamSpec, vector: Vector, positive: tuple[str, ...]) -> Vector:
    """Three models (3, D) near the one of a vector."""
    rng = np.random.default_rng(0)
    near = np.empty((3, spec.size), np.float32)
    for name, start, end in spec.entries:
        part, noise = vector[start:end], rng.standard_normal((3, end - start), np.float32)
        scale = 0.1 * part.std() + 0.01
        near[:, start:end] = (
            np.abs(part + 0.1 * noise) if name in positive else part + scale * noise
        )
    return near


def _same(x: Tensor) -> Tensor:
    return x


def _in_turn(layers: list[Layer] | None) -> Layer:
    def run(x: Tensor) -> Tensor:
        for layer in layers or ():
            x = layer(x)
        return x

    return run


def _pool_first(chain: Chain) -> Chain:
    """ReLU after the max-pooling that follows it: the same numbers, from a quarter of the input."""
    chain = list(chain)
    for i in range(len(chain) - 1):
        if type(chain[i][1]) is nn.ReLU and type(chain[i + 1][1]) is nn.MaxPool2d:
            chain[i], chain[i + 1] = chain[i + 1], chain[i]
    return chain


def _width(model: nn.Module, example: Tensor) -> int:
    sizes = list[int]()

    def note(layer: nn.Module, given: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel())

    layers = (m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule))
    parametric = (layer for layer in layers if list(layer.parameters(recurse=False)))
    hooks = [layer.register_forward_hook(note) for layer in parametric]
    try:
        with torch.no_grad():
            model(example)
    finally:
        for hook in hooks:
            hook.remove()
    return max(sizes, default=prod(example.shape))


def _grouped(chain: Chain, weights: Weights, given: str, count: int) -> list[Layer] | None:
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
    pools = kind in POOLING and given == "maps" and not getattr(layer, "return_indices", False)
    return (layer, given) if pools or (kind in ELEMENTWISE and of_models) else None


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
