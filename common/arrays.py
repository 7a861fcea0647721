"""Arrays of one's own, from a .npz file or a function, checked and given the type they train in."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.datasets import DataError, Dataset, is_image
from common.names import clean, counted, quoted, twice

#: What numpy raises for a file that is no archive of plain arrays.
_UNREADABLE = (
    TypeError,
    ValueError,
    KeyError,
    EOFError,
    MemoryError,  # a damaged header may announce terabytes
    RuntimeError,  # an encrypted archive
    zipfile.BadZipFile,
    zlib.error,
)
_KEYS = {"x", "y", "num_classes", "class_names", "feature_names"}
#: From here on float32 skips whole numbers.
EXACT = 2**24
#: Rows of a column that are looked at for differences which float32 loses.
_SAMPLE = 10_000


@dataclass(frozen=True, eq=False)
class Arrays:
    """Examples with what is said of them.

    `classes` and `features` are names, or empty. `num_classes` is 0 where nobody says it.
    """

    data: Dataset
    num_classes: int = 0
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_npz(place: Path, source: str) -> Arrays:
    """A .npz file of x (n, …) and y (n,), and maybe num_classes, class_names, feature_names.

    Raises:
        DataError: it is none, or its arrays do not fit each other.
    """
    try:
        with np.load(place, allow_pickle=False) as file:
            names = list(file)
            found = {name: file[name] for name in names if name in _KEYS}
    except _UNREADABLE as error:
        raise DataError(
            f"{source}: is not a .npz file of plain arrays x and y; write it by numpy.savez"
        ) from error
    return arrays_of(found | {name: () for name in names if name not in _KEYS}, source)


def arrays_of(given: Mapping[str, Any], source: str) -> Arrays:
    """Check arrays under the names that a .npz has; tensors are arrays, too.

    Raises:
        DataError: they are of no usable type, or do not fit each other.
    """
    if not {"x", "y"} <= given.keys():
        raise DataError(
            f"{source}: needs the arrays x and y, and holds {quoted([*given]) or 'none'}; give "
            "them these names"
        )
    arrays = {name: _array(value) for name, value in given.items() if name in _KEYS}
    data, lost = checked(arrays["x"], arrays["y"], source)
    features = _names(arrays, "feature_names", source)
    if features and tuple(data.x.shape[1:]) != (len(features),):
        raise DataError(
            f"{source}: feature_names has {counted(len(features), 'name')}, an example has shape "
            f"{tuple(data.x.shape[1:])}; name each column of x (examples, features) once"
        )
    classes, largest = _names(arrays, "class_names", source), int(data.y.max())
    num_classes = _count(arrays.get("num_classes"), source)
    told = "class_names" if classes else "num_classes"
    if classes and num_classes not in (0, len(classes)):
        raise DataError(
            f"{source}: class_names has {counted(len(classes), 'name')}, num_classes is "
            f"{num_classes}; leave num_classes out"
        )
    num_classes = num_classes or len(classes)
    if num_classes and largest >= num_classes:
        raise DataError(
            f"{source}: {told} makes {counted(num_classes, 'class', 'classes')}, from 0, but there "
            f"is a label {largest}; mend {told}"
        )
    notes = lossy(lost, features)
    if others := [name for name in given if name not in _KEYS]:
        known = ", ".join(sorted(_KEYS))
        notes.append(
            f"{counted(len(others), 'array')} other than {known} left out: {quoted(others)}"
        )
    return Arrays(data, num_classes, features, classes, tuple(notes))


def checked(x: NDArray[Any], y: NDArray[Any], source: str) -> tuple[Dataset, list[int]]:
    """Examples in the type they train in, and the columns in which float32 loses what they tell.

    Integers become int64; uint8 of image shape, pixels, become float32 in [0, 1]; uint8 of any
    other shape stay, since only their owner knows what they are; all else becomes float32.

    Raises:
        DataError: not numbers, NaN or Inf, no labels from 0, or other lengths.
    """
    if x.dtype.kind not in "uifb" or y.dtype.kind not in "uifb":
        raise DataError(
            f"{source}: x is of type {x.dtype} and y of {y.dtype}, must be numbers; encode "
            "features as numbers, and classes as 0, 1, … with their names in class_names"
        )
    if x.ndim < 2 or x.size == 0:
        raise DataError(
            f"{source}: x has shape {x.shape}, must be (examples, …) and not empty; fill it"
        )
    if y.shape != (len(x),):
        raise DataError(f"{source}: y has shape {y.shape}, must be ({len(x)},); label each example")
    wrong = ~((y >= 0) & (y == np.floor(y)) & (y < 2**31))
    if wrong.any():
        raise DataError(
            f"{source}: label {wrong.argmax()} of {len(y)} is not a whole number from 0; "
            "number the classes 0, 1, …"
        )
    labels, lost = torch.from_numpy(y.astype(np.int64)), list[int]()
    if x.dtype == np.uint8:
        pixels = torch.from_numpy(np.ascontiguousarray(x))
        image = is_image(x.shape[1:])
        return Dataset(pixels.float().div_(255) if image else pixels, labels), lost
    if x.dtype.kind in "ui":
        if x.dtype == np.uint64 and x.max() >= 2**63:
            raise DataError(f"{source}: x holds numbers from 2^63; save it as float32")
        return Dataset(torch.from_numpy(np.ascontiguousarray(x, np.int64)), labels), lost
    if x.ndim == 2 and x.dtype.itemsize > 4:
        lost = [k for k in range(x.shape[1]) if loses(x[:, k])]
    return Dataset(as_float32(x, source), labels), lost


def as_float32(x: NDArray[Any], source: str) -> Tensor:
    """Raises DataError where there is NaN or Inf, also by an overflow."""
    with np.errstate(over="ignore"):  # an overflow is told as Inf
        x = np.ascontiguousarray(x, np.float32)
    broken = ~np.isfinite(x.reshape(len(x), -1)).all(axis=1)
    if broken.any():
        raise DataError(
            f"{source}: {broken.sum()} of {len(x)} examples hold NaN or Inf; remove them"
        )
    return torch.from_numpy(x if x.flags.writeable else x.copy())


def loses(column: NDArray[Any]) -> bool:
    """Whether float32 makes whole numbers of a column (n,) others, or most different ones equal."""
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = column.astype(np.float32)
        finite = np.isfinite(narrow)
        column, narrow = column[finite], narrow[finite]
        changed = column != narrow.astype(column.dtype)
        whole = (np.abs(column) >= EXACT) & (column == np.floor(column))
    if (changed & whole).any():
        return True
    some = np.linspace(0, len(column) - 1, min(len(column), _SAMPLE)).astype(int)
    return len(np.unique(narrow[some])) < len(np.unique(column[some])) / 2


def lossy(columns: Sequence[int], features: Sequence[str]) -> list[str]:
    """The note on such columns, if there are any."""
    if not columns:
        return []
    names = quoted([features[k] if features else str(k) for k in columns])
    return [
        f"{counted(len(columns), 'column')} with numbers of more digits than float32 holds, read "
        f"rounded: {names}; subtract the smallest first, or scale"
    ]


def ambiguous(shape: Sequence[int]) -> str:
    """What is said of uint8 examples of another shape: the rule and the remedy."""
    if len(shape) == 3 and shape[-1] in (1, 3, 4):
        return (
            f"an example is uint8 of shape {tuple(shape)}, pixels must be (channels, height, "
            "width); transpose x, by x.transpose(0, 3, 1, 2)"
        )
    return (
        f"an example is uint8 of shape {tuple(shape)}, pixels must be (channels, height, width); "
        "give pixels that shape, save ids as int64, and other numbers as float32"
    )


def _array(value: Any) -> NDArray[Any]:
    return np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)


def _count(value: NDArray[Any] | None, source: str) -> int:
    if value is None:
        return 0
    number = value.item() if value.size == 1 and value.dtype.kind in "uif" else 0
    if not 1 <= number < 2**31 or number != int(number):
        raise DataError(f"{source}: num_classes must be one whole number from 1; mend it")
    return int(number)


def _names(arrays: Mapping[str, NDArray[Any]], key: str, source: str) -> tuple[str, ...]:
    if key not in arrays:
        return ()
    value = arrays[key]
    if value.dtype.kind != "U" or value.ndim != 1 or not value.size:
        raise DataError(f"{source}: {key} must be a list of texts; save it as numpy.array of them")
    names = tuple(map(clean, value.tolist()))
    if "" in names or twice(names) is not None:
        which = "an empty name" if "" in names else f"{twice(names)!r:.50} twice"
        raise DataError(f"{source}: {key} holds {which}; give each its own name")
    return names
