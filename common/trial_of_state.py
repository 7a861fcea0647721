"""The part of a trial that is about a network's state: what travels, and what is saved."""

from itertools import pairwise

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor, nn

from common.models import ModelError
from common.params import ParamSpec, model_bytes
from common.traits import State, differing, state_of
from common.trial import Trial, is_half

#: Types of numbers that safetensors keeps, and that can be averaged or left alone.
_TYPES = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
}


def holds_tensors(trial: Trial, model: nn.Module) -> None:
    """Its state_dict holds plain tensors, which share no memory in part."""
    places = list[tuple[int, int, str, Tensor]]()
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise trial.wrong(
                f"its state_dict holds {name!r}, which is no tensor and cannot be saved",
                "keep it in tensors, or out of get_extra_state",
            )
        sparse = tensor.layout != torch.strided
        if sparse or tensor.dtype not in _TYPES:
            raise trial.wrong(
                f"its state_dict holds {name!r}, which is {'sparse' if sparse else tensor.dtype}",
                "hold plain tensors of float16 to float64, complex64, whole numbers or flags",
            )
        if tensor.numel():
            last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.data_ptr()
            places.append((start, start + (last + 1) * tensor.element_size(), name, tensor))
    places.sort(key=lambda place: place[:3])
    for (first, end, name, one), (start, _, second, tensor) in pairwise(places):
        same = (first, one.shape, one.stride()) == (start, tensor.shape, tensor.stride())
        if start < end and not same:
            raise trial.wrong(
                f"{name!r} and {second!r} share memory in part", "share whole tensors, or none"
            )
    kept = {id(tensor) for tensor in state.values()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in kept:
            raise trial.wrong(
                f"its state_dict {'gives a copy of' if name in state else 'lacks'} {name!r}, "
                "which is trained",
                "let it hold all parameters themselves",
            )


def are_two(trial: Trial, first: nn.Module, second: nn.Module) -> None:
    """Each network that is built has tensors of its own."""
    one, two = state_of(first, copied=False), state_of(second, copied=False)
    places = {tensor.data_ptr() for tensor in one.values() if tensor.numel()}
    for name, tensor in two.items():
        if tensor.data_ptr() in places:
            raise trial.wrong(
                f"the factory returns {name!r} again that it returned before",
                "make a new network at each call",
            )


def is_seeded(trial: Trial, new: State, other: nn.Module) -> None:
    """A second network is the same."""
    if different := differing(new, state_of(other)):
        raise trial.wrong(
            f"{different[0]!r} has other numbers each time that the factory is called",
            "draw them from the global generator of torch, numpy or random, which the run seeds",
        )


def constant(trial: Trial, trained: nn.Module, new: State) -> tuple[str, ...]:
    """The floating-point buffers that training left alone."""
    now, state = state_of(trained), trained.state_dict(keep_vars=True)
    changed = set(differing(new, now))
    parameters = {n: t for n, t in state.items() if isinstance(t, nn.Parameter)}
    for name in sorted(changed):
        if name not in new or name not in now:
            raise trial.wrong(
                f"training adds or removes {name!r}", "make all tensors in the constructor"
            )
        if name in parameters and not parameters[name].requires_grad:
            raise trial.wrong(
                f"training changes {name!r}, which is frozen",
                "register it as a buffer, or train it",
            )
        if not (new[name].isfinite().all() and now[name].isfinite().all()):
            raise trial.wrong(
                f"training changes {name!r}, which holds NaN or infinite numbers",
                "let it hold finite ones, which can be averaged",
            )
    if not any(name in changed for name, p in parameters.items() if p.requires_grad):
        raise trial.wrong("training changes no parameter", "let its scores depend on some")
    return tuple(
        name
        for name, tensor in now.items()
        if name not in parameters
        and name not in changed
        and (tensor.is_floating_point() or tensor.is_complex())
    )


def travels(
    trial: Trial, trained: nn.Module, other: nn.Module, fresh: nn.Module, spec: ParamSpec
) -> None:
    """What travels makes the trained network of another one, which has scored before.

    With parameters far from those it must score as a fresh one, which has not: something that is
    derived from parameters and kept would show.
    """
    half = is_half(trained)
    vector, scores = spec.flatten(trained), trial.scores(trained)
    if not np.isfinite(vector).all():
        raise trial.wrong(
            "training makes numbers beyond those of float32", "bring them to a smaller range"
        )
    spec.load(other, vector)
    if not np.array_equal(spec.flatten(other), vector):
        raise trial.wrong(
            "its state_dict gives copies, which cannot be written to",
            "let it give the tensors themselves",
        )
    if not trial.close(trial.scores(other), scores, half):
        raise trial.wrong(
            f"its scores depend on what training changes {_where(trial, trained, other, scores)}",
            "keep that in parameters or floating-point buffers, which can be averaged",
        )
    state, rng, far = trained.state_dict(keep_vars=True), np.random.default_rng(0), vector.copy()
    for name, start, end in spec.entries:
        if isinstance(state[name], nn.Parameter):
            scale = 0.1 * vector[start:end].std() + 0.1
            far[start:end] += scale * rng.standard_normal(end - start, np.float32)
    for network in (other, fresh):
        spec.load(network, far)
    expected = trial.scores(fresh)
    if expected.isfinite().all() and not trial.close(trial.scores(other), expected, half):
        raise trial.wrong(
            "scores by what it kept of earlier parameters when others are loaded",
            "derive what you keep of them anew in train() or eval(), which are called then",
        )
    spec.load(other, vector)


def _where(trial: Trial, trained: nn.Module, other: nn.Module, scores: Tensor) -> str:
    """In what, other than what travels, the trained network differs."""
    state, half, whole = other.state_dict(), is_half(trained), list[str]()
    for name, tensor in trained.state_dict().items():
        if not (tensor.is_floating_point() or tensor.is_complex()):
            state[name].copy_(tensor)
            whole.append(name)
    if whole and trial.close(trial.scores(other), scores, half):
        return f"in buffers of whole numbers or flags ({', '.join(whole):.100})"
    for name, tensor in trained.state_dict().items():
        state[name].copy_(tensor)
    if trial.close(trial.scores(other), scores, half):
        return "in more digits than float32 has, as which numbers travel"
    return "outside of its parameters and the buffers in its state_dict"


def is_saved(trial: Trial, model: nn.Module, new: nn.Module, otherwise: str) -> None:
    """A new network that loads what is saved of the model is the model."""
    try:
        new.load_state_dict(load(model_bytes(model)))
    except Exception as error:  # of the user's modules, or safetensors for a strange type
        raise trial.wrong(error, "its state_dict must be one that safetensors keeps") from error
    if not trial.close(trial.scores(new), trial.scores(model), is_half(model)):
        raise trial.wrong(otherwise, "keep all of it in its state_dict")


def positive(trial: Trial, model: nn.Module, spec: ParamSpec) -> tuple[str, ...]:
    """Buffers that travel, are not negative, and without which being so it gives no scores."""
    state, found = model.state_dict(keep_vars=True), list[str]()
    for name, _, _ in spec.entries:
        tensor = state[name]
        if isinstance(tensor, nn.Parameter) or tensor.is_complex() or (tensor < 0).any():
            continue
        kept = tensor.clone()
        with torch.no_grad():
            tensor.copy_(-1 - kept)
        try:
            valid = bool(trial.scores(model).isfinite().all())
        except ModelError:
            valid = False
        with torch.no_grad():
            tensor.copy_(kept)
        if not valid:
            found.append(name)
    return tuple(found)
