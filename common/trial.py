"""A network tried out on real examples before the first round.

A network is more than its list of layers. What of it cannot be averaged, saved or valued rightly is
refused here, in one line, by the server before a run begins, and by each client before it is asked
to train.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from common.config import TrainingConfig
from common.datasets import Dataset
from common.errors import one_line
from common.models import ModelError
from common.params import ParamSpec, model_bytes
from common.training import local_sgd, scores_of
from common.traits import State, Traits, state_of

#: Examples that a network is tried on, and steps of SGD for which it is trained.
ROWS, STEPS = 16, 3
_TRAINING = TrainingConfig(batches_per_epoch=STEPS, learning_rate=0.01, momentum=0.0)
Build = Callable[[], nn.Module]


def try_out(build: Build, data: Dataset, num_classes: int, name: str) -> tuple[Traits, list[str]]:
    """Build, evaluate, train some steps, flatten, load, save and load again: all must agree.

    Args:
        build: makes the network anew, with the same numbers each time, where the data are.
        data: examples of the kind that it is for; the first few are used.
        name: the network's, for messages.

    Returns:
        What of it travels, and what a user should know of it, a line each.

    Raises:
        ModelError: what is wrong with it, and what to do.
    """
    some, notes = Dataset(data.x[:ROWS], data.y[:ROWS]), list[str]()
    trial = _Trial(some, num_classes, name)
    with torch.random.fork_rng(devices=[]):
        trained, other = build(), build()
        trial.are_two(trained, other)
        new = state_of(trained)
        if trial.evaluates(trained):
            notes.append(
                f"model = {name!r}: gives probabilities; the loss is that of scores, so leave its "
                "last softmax out"
            )
        trial.is_seeded(new, other)
        if trial.trains(trained) > 1:
            notes.append(
                f"model = {name!r}: gives several outputs in training; clients train on the first"
            )
        constant = trial.constant(trained, new)
        spec = ParamSpec.of(trained, constant)
        trial.travels(trained, other, spec)
        trial.is_saved(other, build())
        return Traits.of(new, spec, constant, trial.positive(other, spec)), notes


@dataclass(frozen=True)
class _Trial:
    """Examples, and what a network must do with them; each method raises ModelError."""

    data: Dataset
    num_classes: int
    name: str

    def wrong(self, why: Exception | str, remedy: str) -> ModelError:
        if isinstance(why, Exception):
            why = f"{type(why).__name__}: {one_line(why):.300}"
        return ModelError(f"model = {self.name!r}: {why}; {remedy}")

    def scores(self, model: nn.Module, rows: slice = slice(None)) -> Tensor:
        """Scores of the examples in evaluation, (n, classes) float64, perhaps not finite."""
        x = self.data.x[rows]
        given = f"(n, {', '.join(map(str, x.shape[1:]))}) of {str(x.dtype).removeprefix('torch.')}"
        remedy = f"in evaluation it must map {given} to class scores (n, {self.num_classes})"
        try:
            with torch.no_grad():
                found = model.eval()(x)
        except Exception as error:  # the user's code may raise anything
            raise self.wrong(error, remedy) from error
        if not isinstance(found, Tensor):
            raise self.wrong(f"gives {type(found).__name__} in evaluation", remedy)
        if not found.is_floating_point():
            raise self.wrong(f"gives {found.dtype} in evaluation", remedy)
        if found.shape != (len(x), self.num_classes):
            raise self.wrong(f"gives {tuple(found.shape)} for {len(x)} examples", remedy)
        return found.double()

    def are_two(self, first: nn.Module, second: nn.Module) -> None:
        """Each network that is built has tensors of its own."""
        places = {t.data_ptr(): n for n, t in state_of(first, copied=False).items() if t.numel()}
        for name, tensor in state_of(second, copied=False).items():
            if tensor.data_ptr() in places:
                raise self.wrong(
                    f"the factory returns {name!r} again that it returned before",
                    "make a new network at each call",
                )

    def evaluates(self, model: nn.Module) -> bool:
        """Scores are finite, always the same, and of each example by itself.

        Returns whether they are probabilities, whose rows sum to 1.
        """
        before, scores = state_of(model), self.scores(model)
        if not scores.isfinite().all():
            raise self.wrong(
                "gives scores that are NaN or infinite for examples of the data",
                "correct its initial parameters, or bring the inputs to a smaller range",
            )
        if not _close(self.scores(model), scores, model):
            raise self.wrong(
                "gives other scores each time in evaluation",
                "switch off there what is random, as by dropout(x, training=self.training)",
            )
        for size in (2, 1):  # a norm over the batch says nothing of one
            cut = [self.scores(model, slice(i, i + size)) for i in range(0, len(scores), size)]
            if not _close(torch.cat(cut), scores, model):
                raise self.wrong(
                    "scores an example otherwise beside other examples, in evaluation",
                    "let no layer mix examples there (sequences need batch_first=True, norms "
                    "running statistics)",
                )
        for name in _differing(before, state_of(model)):
            if before[name].is_floating_point():
                raise self.wrong(
                    f"evaluation changes {name!r}", "change it only where self.training is true"
                )
        ones = torch.ones(len(scores), dtype=scores.dtype, device=scores.device)
        return bool((scores >= 0).all()) and torch.allclose(scores.sum(1), ones, atol=1e-4)

    def is_seeded(self, new: State, other: nn.Module) -> None:
        """A second network is the same, and its tensors share nothing or are tied whole."""
        if differing := _differing(new, state_of(other)):
            raise self.wrong(
                f"{differing[0]!r} has other numbers each time that the factory is called",
                "draw them from the global generator of torch, numpy or random, which the run "
                "seeds",
            )
        state, places = other.state_dict(), list[tuple[int, int, str, Tensor]]()
        for name, tensor in state.items():
            if not isinstance(tensor, Tensor):
                raise self.wrong(
                    f"its state_dict holds {name!r}, which is no tensor and cannot be saved",
                    "keep it in tensors, or out of get_extra_state",
                )
            if tensor.numel():
                last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
                start = tensor.data_ptr()
                places.append((start, start + (last + 1) * tensor.element_size(), name, tensor))
        places.sort(key=lambda place: place[:3])
        for (_, end, name, first), (start, _, second, tensor) in pairwise(places):
            same = first.data_ptr() == start and (first.shape, first.stride()) == (
                (tensor.shape, tensor.stride())
            )
            if start < end and not same:
                raise self.wrong(
                    f"{name!r} and {second!r} share memory in part", "share whole tensors, or none"
                )

    def trains(self, model: nn.Module) -> int:
        """Some steps of SGD; returns how many outputs it gives in training."""
        remedy = "in training it must give class scores that can be differentiated"
        if len(self.data) == 1:
            remedy = "one example may be too few for it (BatchNorm needs two); add some"
        try:
            with torch.no_grad():
                output = model.train()(self.data.x)
            shape, right = tuple(scores_of(output).shape), (len(self.data), self.num_classes)
            if shape != right:
                raise ValueError(f"gives {shape} in training, not {right}")
            loss = local_sgd(model, self.data, _TRAINING, 1, np.random.default_rng(0))
        except Exception as error:  # the user's code may raise anything
            raise self.wrong(error, remedy) from error
        if not np.isfinite(loss):
            raise self.wrong(f"its loss in training is {loss}", "bring inputs to a smaller range")
        return 1 if isinstance(output, Tensor) else len(output)

    def constant(self, trained: nn.Module, new: State) -> tuple[str, ...]:
        """The floating-point buffers that training left alone."""
        now = state_of(trained)
        changed = set(_differing(new, now))
        parameters = dict(trained.named_parameters(remove_duplicate=False))
        if not any(name in changed for name, p in parameters.items() if p.requires_grad):
            raise self.wrong("training changes no parameter", "let its scores depend on some")
        for name in sorted(changed):
            if name not in new or name not in now:
                raise self.wrong(
                    f"training adds or removes {name!r}", "make all tensors in the constructor"
                )
            if name in parameters and not parameters[name].requires_grad:
                raise self.wrong(
                    f"training changes {name!r}, which is frozen",
                    "register it as a buffer, or train it",
                )
            if not (new[name].isfinite().all() and now[name].isfinite().all()):
                raise self.wrong(
                    f"training changes {name!r}, which holds NaN or infinite numbers",
                    "let it hold finite ones, which can be averaged",
                )
        return tuple(
            name
            for name, tensor in now.items()
            if name not in parameters
            and name not in changed
            and (tensor.is_floating_point() or tensor.is_complex())
        )

    def travels(self, trained: nn.Module, other: nn.Module, spec: ParamSpec) -> None:
        """What travels makes the trained network of a new one."""
        vector, scores = spec.flatten(trained), self.scores(trained)
        if not np.isfinite(vector).all():
            raise self.wrong(
                "training makes numbers beyond those of float32", "bring them to a smaller range"
            )
        spec.load(other, vector)
        if not np.array_equal(spec.flatten(other), vector):
            raise self.wrong(
                "its state_dict gives copies, which cannot be written to",
                "let it give the tensors themselves",
            )
        if _close(self.scores(other), scores, trained):
            return
        state, whole = other.state_dict(), list[str]()
        for name, tensor in trained.state_dict().items():
            if not (tensor.is_floating_point() or tensor.is_complex()):
                state[name].copy_(tensor)
                whole.append(name)
        where = "outside of its parameters and the buffers in its state_dict"
        if _close(self.scores(other), scores, trained):
            where = f"in buffers of whole numbers or flags ({', '.join(whole):.100})"
        raise self.wrong(
            f"its scores depend on what training changes {where}",
            "keep that in parameters or floating-point buffers, which can be averaged",
        )

    def is_saved(self, model: nn.Module, new: nn.Module) -> None:
        """A new network that loads what is saved of the model is the model."""
        from safetensors.torch import load

        try:
            new.load_state_dict(load(model_bytes(model)))
        except Exception as error:  # of the user's modules, or safetensors for a strange type
            raise self.wrong(error, "its state_dict must be one that safetensors keeps") from error
        if not _close(self.scores(new), self.scores(model), model):
            raise self.wrong(
                "scores otherwise once it is saved and loaded", "keep all of it in its state_dict"
            )

    def positive(self, model: nn.Module, spec: ParamSpec) -> tuple[str, ...]:
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
                valid = bool(self.scores(model).isfinite().all())
            except ModelError:
                valid = False
            with torch.no_grad():
                tensor.copy_(kept)
            if not valid:
                found.append(name)
        return tuple(found)


def _differing(before: State, after: State) -> list[str]:
    """The names of tensors that are not equal; NaN equals NaN."""
    both = before.keys() & after.keys()
    return sorted(before.keys() ^ after.keys()) + [
        name
        for name in before
        if name in both
        and not (
            before[name].shape == after[name].shape
            and torch.allclose(before[name], after[name], rtol=0, atol=0, equal_nan=True)
        )
    ]


def _close(found: Tensor, expected: Tensor, model: nn.Module) -> bool:
    """Whether scores are the same but for rounding, which is coarser in half precision."""
    if not found.isfinite().all():
        return False
    half = any(t.dtype in (torch.float16, torch.bfloat16) for t in state_of(model).values())
    tolerance = (0.05 if half else 1e-4) * (1 + expected.abs().max())
    return bool((found - expected).abs().max() <= tolerance)
