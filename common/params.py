"""A model's state as one flat vector, which is what travels, is averaged and is valued."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class ParamSpec:
    """Where each tensor of a state_dict that travels lies in the vector (D,) float32.

    Parameters that are trained and floating-point buffers (BatchNorm's running statistics) travel;
    a complex number is two floats, its real and its imaginary part. These do not, and stay as the
    factory made them: frozen parameters, buffers of whole numbers (an average of BatchNorm's batch
    counters means nothing), buffers that training leaves alone (a mask). A tensor that stands under
    two names (tied weights) travels once, under its first.

    Attributes:
        entries: name, start and end of each.
        tied: whether a tensor stands under two names.
        complete: whether the vector is the whole state.
    """

    entries: tuple[tuple[str, int, int], ...]
    tied: bool
    complete: bool

    @classmethod
    def of(cls, model: nn.Module, constant: Collection[str] = ()) -> Self:
        """`constant` names buffers that do not travel, beside those with infinite numbers."""
        entries, start, seen = list[tuple[str, int, int]](), 0, set[tuple[object, ...]]()
        state = dict(_tensors(model))
        for name, tensor in state.items():
            if _place(tensor) in seen:
                continue
            seen.add(_place(tensor))
            if _is_trained(tensor) or (_is_statistic(tensor) and name not in constant):
                size = tensor.numel() * (2 if tensor.is_complex() else 1)
                entries.append((name, start, start + size))
                start += size
        tied = len(seen) < len(state)
        return cls(tuple(entries), tied, len(entries) == len(seen) == len(model.state_dict()))

    @property
    def size(self) -> int:
        """D, the number of floats."""
        return self.entries[-1][2] if self.entries else 0

    def flatten(self, model: nn.Module) -> Vector:
        """The model's state as a new vector (D,)."""
        state = model.state_dict()
        vector = torch.empty(self.size)
        for name, start, end in self.entries:
            vector[start:end] = as_floats(state[name]).reshape(-1)
        return vector.numpy()

    def load(self, model: nn.Module, vector: Vector) -> None:
        """Copy a vector (D,) into the model, in place."""
        state, values = model.state_dict(), torch.from_numpy(np.ascontiguousarray(vector))
        with torch.no_grad():
            for name, start, end in self.entries:
                floats = as_floats(state[name])
                floats.copy_(values[start:end].view_as(floats))

    def mirror(self, vector: Vector, names: Collection[str]) -> bool:
        """Make what noise turned negative positive, in place; returns whether there was any.

        A variance must not be negative. |v| keeps it at the noise's size, where 0 would make what
        is divided by its root huge. It needs nothing but the noisy number, so that an (ε, δ) holds.
        """
        parts = [vector[start:end] for name, start, end in self.entries if name in names]
        negative = any((part < 0).any() for part in parts)
        for part in parts:
            np.abs(part, out=part)
        return negative


def as_floats(tensor: Tensor) -> Tensor:
    """A view of it, a complex tensor (…) as real and imaginary parts (…, 2)."""
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()


def model_bytes(model: nn.Module) -> bytes:
    """The whole state_dict as safetensors, that `load_state_dict` takes; tied tensors twice."""
    from safetensors.torch import save

    return save(
        {
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in model.state_dict().items()
        }
    )


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The state_dict without extra state, which is whatever a module's author likes."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and name.rpartition(".")[2] != "_extra_state":
            yield name, tensor


def _place(tensor: Tensor) -> tuple[object, ...]:
    """Equal for two names of one tensor."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.numel() or id(tensor)


def _is_trained(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.requires_grad


def _is_statistic(tensor: Tensor) -> bool:
    """A buffer that may change in training and can be averaged."""
    return (
        not isinstance(tensor, nn.Parameter)
        and (tensor.is_floating_point() or tensor.is_complex())
        and bool(tensor.isfinite().all())
    )
