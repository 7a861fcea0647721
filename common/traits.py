"""What the server announces of its network, so that every client's is the same."""

import hashlib
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from common.models import ModelError
from common.params import ParamSpec

#: Tensors by their names in a state_dict.
State = dict[str, Tensor]


@dataclass(frozen=True)
class Traits:
    """What a trial (`common.try_out`) found of a network.

    Attributes:
        constant: floating-point buffers that training leaves alone; they do not travel.
        positive: those that travel and must not be negative, such as variances.
        layout: a digest of the names, shapes and types of what travels.
        fixed: a checksum of what does not.
    """

    constant: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()
    layout: str = ""
    fixed: float = 0.0

    @classmethod
    def of(
        cls, new: State, spec: ParamSpec, constant: tuple[str, ...], positive: tuple[str, ...]
    ) -> Self:
        """Of the state of a new network, and what was found of it."""
        return cls(constant, positive, _layout(new, spec), _checksum(new, spec)[0])

    def check(self, model: nn.Module, spec: ParamSpec, name: str) -> None:
        """Compare a client's own new network with the server's; `name` is for messages.

        Raises:
            ModelError: other tensors, or other numbers in those that do not travel. These may
                differ in last digits, as torch draws them a little differently on other processors.
        """
        new = state_of(model)
        if _layout(new, spec) != self.layout:
            raise ModelError(
                f"model = {name!r}: the network here has other tensors than the server's; install "
                "the same version of its module here and there"
            )
        fixed, size = _checksum(new, spec)
        if not abs(fixed - self.fixed) <= 1e-3 * (1 + size):
            raise ModelError(
                f"model = {name!r}: frozen or constant tensors here have other numbers than the "
                "server's; give both the same file or the same seed"
            )

    def check_trained(self, trained: nn.Module, new: nn.Module, spec: ParamSpec) -> None:
        """Raises ModelError where training changed what does not travel, which would be lost."""
        now, before = trained.state_dict(), new.state_dict()
        moved = [name for name in self.constant if not torch.equal(now[name], before[name])]
        if moved or ParamSpec.of(trained, self.constant).entries != spec.entries:
            what = repr(moved[0]) if moved else "which parameters are trained"
            raise ModelError(
                f"training changes {what}, which it left alone when it was tried out; change it in "
                "each step of training, or in none"
            )


def state_of(model: nn.Module, copied: bool = True) -> State:
    """The tensors of the state_dict, or copies of them."""
    state = {n: t.detach() for n, t in model.state_dict().items() if isinstance(t, Tensor)}
    return {n: t.clone() for n, t in state.items()} if copied else state


def differing(before: State, after: State, rtol: float = 0.0, atol: float = 0.0) -> list[str]:
    """The names of tensors that are not equal, or in one of both only; NaN equals NaN."""
    both = before.keys() & after.keys()
    return sorted(before.keys() ^ after.keys()) + [
        name
        for name in before
        if name in both
        and not (
            before[name].shape == after[name].shape
            and torch.allclose(before[name], after[name], rtol=rtol, atol=atol, equal_nan=True)
        )
    ]


def _layout(state: State, spec: ParamSpec) -> str:
    told = [(n, tuple(state[n].shape), str(state[n].dtype)) for n, _, _ in spec.entries]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def _checksum(state: State, spec: ParamSpec) -> tuple[float, float]:
    """Of the tensors that do not travel: a sum with many weights, and the norm."""
    total = square = 0.0
    for name in sorted(state.keys() - {name for name, _, _ in spec.entries}):
        real = state[name].abs() if state[name].is_complex() else state[name]
        numbers = real.double().flatten().nan_to_num(0, 1e3, -1e3).cpu()
        total += float(numbers @ torch.arange(1, len(numbers) + 1, dtype=torch.float64).cos())
        square += float(numbers @ numbers)
    return total, float(square**0.5)
