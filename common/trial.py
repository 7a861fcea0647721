"""What a network must do with examples in evaluation and in training (see `common.try_out`)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from common.config import TrainingConfig
from common.datasets import Dataset
from common.errors import one_line
from common.evaluation import to_evaluation
from common.models import ModelError
from common.seeding import global_generators
from common.training import local_sgd, scores_of
from common.traits import differing, state_of

#: Examples that a network is tried on, and steps of SGD for which it is trained.
ROWS, STEPS = 16, 3
_TRAINING = TrainingConfig(batches_per_epoch=STEPS, learning_rate=0.01, momentum=0.0)
Build = Callable[[], nn.Module]


@dataclass(frozen=True)
class Trial:
    """Examples, and what a network must do with them; the methods raise ModelError."""

    data: Dataset
    num_classes: int
    name: str

    def wrong(self, why: BaseException | str, remedy: str) -> ModelError:
        if isinstance(why, BaseException):
            why = f"{type(why).__name__}: {one_line(why):.300}"
        return ModelError(f"model = {self.name!r}: {why}; {remedy}")

    def scores(self, model: nn.Module, rows: slice = slice(None)) -> Tensor:
        """Scores of the examples in evaluation, (n, classes) float64, perhaps not finite."""
        x = self.data.x[rows]
        given = f"(n, {', '.join(map(str, x.shape[1:]))}) of {str(x.dtype).removeprefix('torch.')}"
        remedy = f"in evaluation it must map {given} to class scores (n, {self.num_classes})"
        try:
            to_evaluation(model)
            with torch.no_grad():
                found = model(x)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise self.wrong(error, remedy) from error
        if not isinstance(found, Tensor):
            raise self.wrong(f"gives {type(found).__name__} in evaluation", remedy)
        if not found.is_floating_point():
            raise self.wrong(f"gives {found.dtype} in evaluation", remedy)
        if found.shape != (len(x), self.num_classes):
            raise self.wrong(f"gives {tuple(found.shape)} for {len(x)} examples", remedy)
        return found.as_subclass(Tensor).double()

    def close(self, found: Tensor, expected: Tensor, half: bool = False) -> bool:
        """Whether scores are the same but for rounding, which is coarser in half precision."""
        tolerance = (0.05 if half else 1e-4) * (1 + expected.abs().max())
        finite = bool(found.isfinite().all())
        return finite and bool((found - expected).abs().max() <= tolerance)

    def are_probabilities(self, scores: Tensor) -> bool:
        """Whether rows of scores sum to 1."""
        ones = torch.ones(len(scores), dtype=scores.dtype, device=scores.device)
        return bool((scores >= 0).all()) and torch.allclose(scores.sum(1), ones, atol=1e-4)

    def evaluates(self, model: nn.Module) -> Tensor:
        """Scores are finite, always the same, and of each example by itself; returns them."""
        before, x = state_of(model), self.data.x.clone()
        scores, half = self.scores(model), is_half(model)
        if not torch.equal(self.data.x, x):
            raise self.wrong("changes the examples that it is given", "work on a copy of them")
        for name in differing(before, state_of(model)):
            if name not in before:
                raise self.wrong(
                    f"makes {name!r} in its first forward", "make it in the constructor, or lazy"
                )
            if before[name].is_floating_point():
                raise self.wrong(
                    f"evaluation changes {name!r}", "change it only where self.training is true"
                )
        if not scores.isfinite().all():
            raise self.wrong(
                "gives scores that are NaN or infinite for examples of the data",
                "correct its initial parameters, or bring the inputs to a smaller range",
            )
        if not self.close(self.scores(model), scores, half):
            raise self.wrong(
                "scores the same examples otherwise each time, in evaluation",
                "switch off there what is random, as by dropout(x, training=self.training), and "
                "keep nothing between calls",
            )
        for size in (2, 1):  # a norm over the batch says nothing of one
            cut = [self.scores(model, slice(i, i + size)) for i in range(0, len(scores), size)]
            if not self.close(torch.cat(cut), scores, half):
                raise self.wrong(
                    "scores an example otherwise beside other examples, in evaluation",
                    "let no layer mix examples there (sequences need batch_first=True, norms "
                    "running statistics)",
                )
        return scores

    def trains(self, model: nn.Module) -> int:
        """Some steps of SGD; returns how many outputs it gives in training."""
        remedy = "in training it must give class scores that can be differentiated"
        if len(self.data) == 1:
            remedy = "one example may be too few for it (BatchNorm needs two); add some"
        torch.default_generator.manual_seed(0)
        at_first = _trained(model)
        try:
            model.train()
            with torch.no_grad(), global_generators(0):
                output = model(self.data.x.clone())
            shape, right = tuple(scores_of(output).shape), (len(self.data), self.num_classes)
            if shape != right:
                raise ValueError(f"gives {shape} in training, not {right}")
            loss = local_sgd(model, self.data, _TRAINING, 1, np.random.default_rng(0))
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise self.wrong(error, remedy) from error
        if not np.isfinite(loss):
            raise self.wrong(f"its loss in training is {loss}", "bring inputs to a smaller range")
        in_training = _trained(model)
        to_evaluation(model)
        if changed := (at_first ^ in_training) | (at_first ^ _trained(model)):
            raise self.wrong(
                f"{min(changed)!r} is trained at times only",
                "set requires_grad in the factory, and leave it",
            )
        return 1 if isinstance(output, Tensor) else len(output)


def is_half(model: nn.Module) -> bool:
    """Whether it has tensors of half precision."""
    half, state = (torch.float16, torch.bfloat16), state_of(model, copied=False)
    return any(tensor.dtype in half for tensor in state.values())


def _trained(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}
