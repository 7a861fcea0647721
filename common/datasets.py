"""Data sets as tensors: training examples, and the server's validation and test splits."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.config import DataConfig
from common.errors import GreedyfedError
from common.seeding import Stream, rng_for


class DataError(GreedyfedError):
    """A data set cannot be read, or does not fit the configuration."""


@dataclass(frozen=True)
class Dataset:
    """Examples x (n, *input_shape) and their classes y (n,) int64.

    x is float32, int64 (whole numbers, such as ids of an embedding) or uint8 pixels.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: NDArray[np.int64]) -> "Dataset":
        """A copy of some examples; uint8 pixels become [0, 1], float32, all else stays as it is."""
        x = self.x[torch.from_numpy(indices)]
        return Dataset(x.float().div_(255) if x.dtype == torch.uint8 else x, self.y[indices])

    def stratum(self, n: int) -> NDArray[np.int64]:
        """Which are the first examples of each class, n in all, in the classes' proportions."""
        y = self.y.numpy()
        rank = np.empty(len(y))  # of an example within its class, as a share of the class
        for c in np.unique(y):
            mine = np.flatnonzero(y == c)
            rank[mine] = (np.arange(len(mine)) + 0.5) / len(mine)
        return np.sort(np.argsort(rank, kind="stable")[:n])

    def stratified(self, n: int) -> "Dataset":
        """The examples of `stratum`."""
        chosen = self.stratum(n)
        return Dataset(self.x[chosen], self.y[chosen])

    def to(self, device: str, order: torch.memory_format = torch.preserve_format) -> "Dataset":
        if order is torch.preserve_format and self.x.device == torch.device(device):
            return self
        return Dataset(self.x.to(device, memory_format=order), self.y.to(device))


@dataclass(frozen=True)
class Splits:
    """A data set: `train` is split over the clients, `val` and `test` are the server's.

    `owner` (n,) names the client of each training example where the data set itself says so.
    `inputs`, `features`, `classes` and `unseen` are those of the task that the server announces;
    `notes` tell what was left out of files.
    """

    train: Dataset
    val: Dataset
    test: Dataset
    num_classes: int
    owner: NDArray[np.int64] | None = None
    inputs: str = "numbers"
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    unseen: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train.x.shape[1:])


@dataclass(frozen=True)
class Examples:
    """A data set as it is read: pixels may be uint8, and the held-out examples are in one piece."""

    train: Dataset
    held_out: Dataset
    num_classes: int
    owner: NDArray[np.int64] | None = None
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    unseen: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


@lru_cache(maxsize=2)
def load_splits(config: DataConfig, seed: int) -> Splits:
    """Load a data set; the held-out examples are split at random into validation and test.

    `config.num_clients` matters to `synthetic` only. Cached, as every round asks again.

    Raises:
        DataError: naming the path or key at fault.
    """
    examples = load_examples(config, seed)
    held_out = examples.held_out
    source = f"data-dir = {config.data_dir!r}" if config.dataset == "own" else ""
    cut = config.validation_size or len(held_out) // 2
    if cut >= len(held_out):
        raise DataError(
            f"validation-size = {cut}: {config.dataset} holds out {len(held_out)} examples, "
            f"of which some must remain for the test; set validation-size below {len(held_out)}"
        )
    first, second = halves(held_out, seed, cut, source)
    val, test = held_out.take(first), held_out.take(second)
    return Splits(
        examples.train,
        val,
        test,
        examples.num_classes,
        examples.owner,
        inputs_of(held_out.x),
        examples.features,
        examples.classes,
        examples.unseen,
        examples.notes,
    )


def halves(
    held_out: Dataset, seed: int, cut: int, source: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which held-out examples validate, `cut` of them, and which test.

    Raises:
        DataError: those that validate are of one class, in data of `source`, one's own.
    """
    order = rng_for(seed, Stream.SPLIT).permutation(len(held_out))
    classes = held_out.y[torch.from_numpy(order[:cut])]
    if source and bool((classes == classes[0]).all()):
        raise DataError(
            f"{source}: the validation part, {cut} of {len(held_out)} examples, has one class "
            "only; give more examples, or a larger validation-size"
        )
    return order[:cut], order[cut:]


def inputs_of(x: Tensor) -> str:
    """What examples (n, …) are: "whole" (int64), "pixels" (images in [0, 1]), "numbers", "bytes".

    Bytes are uint8 that are not of image shape: pixels, ids or counts, nobody knows.
    """
    if x.dtype == torch.uint8:
        return "pixels" if is_image(x.shape[1:]) else "bytes"
    if not x.is_floating_point():
        return "whole"
    inside = is_image(x.shape[1:]) and len(x) > 0 and float(x.min()) >= 0 and float(x.max()) <= 1
    return "pixels" if inside else "numbers"


def is_image(shape: Sequence[int]) -> bool:
    """Whether an example of this shape is (1, 3 or 4 channels, height, width)."""
    return len(shape) == 3 and shape[0] in (1, 3, 4)


def load_examples(config: DataConfig, seed: int) -> Examples:
    """Load a data set without splitting what is held out.

    Raises:
        DataError: naming the path or key at fault.
    """
    try:
        return _load(config, seed)
    except OSError as error:
        raise DataError(
            f"data-dir = {config.data_dir!r}: cannot be used: {error}; give a folder that can"
        ) from error


def _load(config: DataConfig, seed: int) -> Examples:
    owner, notes = None, tuple[str, ...]()
    if config.dataset == "own":
        return _own(config)
    from common.public_data import load_digits, load_mnist, make_synthetic

    if config.dataset == "digits":
        train, held_out = load_digits()
    elif config.dataset == "cifar10":
        from common.cifar10 import load_cifar10

        *parts, notes = load_cifar10(config.data_dir, config.download)
        train, held_out = (Dataset(*part) for part in parts)
    elif config.dataset == "synthetic":
        train, owner, held_out = make_synthetic(config, seed)
    else:
        train, held_out = (load_mnist(config, train) for train in (True, False))
    num_classes = int(max(train.y.max(), held_out.y.max())) + 1
    return Examples(train, held_out, num_classes, owner, notes=notes)


def _own(config: DataConfig) -> Examples:
    """The server's own data, all of it held out; the clients have theirs."""
    from common.own_data import load_own_data

    own = load_own_data(config.data_dir, key="data-dir")
    own.check_server()
    notes = [*own.notes, *own.server_notes()]
    none = Dataset(own.data.x[:0], own.data.y[:0])
    return Examples(
        none,
        own.data,
        own.num_classes,
        features=own.features,
        classes=own.classes,
        unseen=own.unseen,
        notes=tuple(f"{own.source}: {note}" for note in notes),
    )
