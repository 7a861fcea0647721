"""A model's state as one flat vector, which is what travels, is averaged and is valued."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class ParamSpec:
    """Where each floating-point tensor of a state_dict lies in the vector (D,) float32.

    Parameters and floating-point buffers (BatchNorm's running statistics) are in the vector.
    Integer buffers (BatchNorm's batch counter) are not: each side keeps its own, since an average
    of counters means nothing.
    """

    entries: tuple[tuple[str, int, int], ...]  # name, start, end
    complete: bool  # the vector is the whole state: there are no integer buffers

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        entries, start = [], 0
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                entries.append((name, start, start + tensor.numel()))
                start += tensor.numel()
        return cls(tuple(entries), len(entries) == len(model.state_dict()))

    @property
    def size(self) -> int:
        """D, the number of floats."""
        return self.entries[-1][2] if self.entries else 0

    def flatten(self, model: nn.Module) -> Vector:
        """The model's state as a new vector (D,)."""
        state = model.state_dict()
        vector = torch.empty(self.size)
        for name, start, end in self.entries:
            vector[start:end] = state[name].reshape(-1)
        return vector.numpy()

    def load(self, model: nn.Module, vector: Vector) -> None:
        """Copy a vector (D,) into the model, in place."""
        state, values = model.state_dict(), torch.from_numpy(np.ascontiguousarray(vector))
        with torch.no_grad():
            for name, start, end in self.entries:
                state[name].copy_(values[start:end].view_as(state[name]))
