"""Arrays of one's own, from a .npz file or a function, checked and given the type they train in."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.columns import features_of, rounding, why_unfit
from common.datasets import DataError, Dataset
from common.labels import Labels, labels_of
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
_NAMES = {"class_names", "feature_names"}
_KEYS = {"x", "y", "num_classes", *_NAMES}
_MOST_CLASSES = 2**31 - 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Arrays:
    """Examples, float32, int64 or uint8, with labels from 0, and what is said of them.

    Attributes:
        num_classes: 0 where nobody says which classes there are.
        features: names of the columns of x (n, columns), or empty.
        unfit: other columns by name, and why each is no feature.
        index: columns that were left out as a row index.
        classes: names of the classes, or empty where they are the numbers from 0.
        written: how labels that are numbers are written: of each example the number of a text
            (n,), and these texts.
        notes: what was left out or changed, and why.
    """

    data: Dataset
    num_classes: int = 0
    features: tuple[str, ...] = ()
    unfit: Mapping[str, str] = field(default_factory=dict)
    index: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    written: tuple[Tensor, tuple[str, ...]] | None = None
    notes: tuple[str, ...] = ()


def read_npz(place: Path, source: str) -> Arrays:
    """A .npz file of x (n, …) and y (n,), and maybe num_classes, class_names, feature_names.

    Raises:
        DataError: it is none, or its arrays do not fit each other.
    """
    name = ""
    try:
        with np.load(place, allow_pickle=False) as file:
            names = list(file)
            found = {}
            for name in _KEYS.intersection(names):
                found[name] = file[name]
    except _UNREADABLE as error:
        if name and "allow_pickle" in str(error):
            plain = "np.array(names, dtype=str)" if name in _NAMES else f"{name}.astype(float)"
            plain = f"{name}.astype(str) if they are texts" if name == "y" else plain
            raise DataError(
                f"{source}: array {name!r} is of Python objects, which are not read from files; "
                f"save {plain}"
            ) from error
        raise DataError(
            f"{source}: is not a .npz file of plain arrays x and y; write it by numpy.savez"
        ) from error
    return arrays_of(found | {name: np.empty(0) for name in names if name not in _KEYS}, source)


def arrays_of(given: Mapping[str, Any], source: str) -> Arrays:
    """Check arrays under the names that a .npz has; x may be a list of columns (n,), of a table.

    Raises:
        DataError: they are of no usable type, or do not fit each other.
    """
    if not {"x", "y"} <= given.keys():
        raise DataError(
            f"{source}: needs the arrays x and y, and holds {quoted([*given]) or 'none'}; give "
            "them these names"
        )
    x, names = given["x"], _names(given, "feature_names", source)
    shape = (len(x),) if isinstance(x, list) else x.shape[1:]
    if names and tuple(shape) != (len(names),):
        raise DataError(
            f"{source}: feature_names has {counted(len(names), 'name')}, an example has shape "
            f"{tuple(shape)}; name each column of x (examples, features) once"
        )
    if not isinstance(x, list):
        check_shape(x, source)
    classes = _names(given, "class_names", source)
    labels = _labels(given["y"], classes, source)
    n = len(x[0]) if isinstance(x, list) else len(x)
    if len(labels.y) != n:
        raise DataError(
            f"{source}: y has shape {labels.y.shape}, must be ({n},); label each example"
        )
    unfit: Mapping[str, str] = {}
    if names and (isinstance(x, list) or x.dtype.kind == "f"):
        columns = x if isinstance(x, list) else list(x.T)
        features = features_of(names, columns, n)
        tensor, names = torch.from_numpy(features.x), features.names
        unfit, notes = features.unfit, [*features.notes]
    else:
        tensor, notes = examples_of(x, source)
    num_classes = _count(given.get("num_classes"), source)
    told = "class_names" if classes else "num_classes"
    if classes and num_classes not in (0, len(classes)):
        raise DataError(
            f"{source}: class_names has {counted(len(classes), 'name')}, num_classes is "
            f"{num_classes}; leave num_classes out"
        )
    num_classes, largest = num_classes or len(classes), int(labels.y.max())
    if num_classes and largest >= num_classes:
        raise DataError(
            f"{source}: {told} makes {counted(num_classes, 'class', 'classes')}, from 0, but there "
            f"is a label {largest}; mend {told}"
        )
    if others := [name for name in given if name not in _KEYS]:
        known = ", ".join(sorted(_KEYS))
        notes.append(
            f"{counted(len(others), 'array')} other than {known} left out: {quoted(others)}"
        )
    return Arrays(
        data=Dataset(tensor, torch.from_numpy(labels.y)),
        num_classes=num_classes,
        features=names,
        unfit=unfit,
        classes=labels.classes,
        written=written(labels),
        notes=tuple(notes),
    )


def written(labels: Labels) -> tuple[Tensor, tuple[str, ...]] | None:
    """How labels are written, as tensors."""
    return labels.written and (torch.from_numpy(labels.written[0]), labels.written[1])


def check_shape(x: NDArray[Any], source: str) -> None:
    """Raises DataError for x that has no examples, or no features."""
    shape = f"x has shape {x.shape}, must be (examples, …)"
    if x.ndim == 0:
        raise DataError(f"{source}: {shape}; give an array of all examples")
    if x.ndim == 1 and len(x):
        raise DataError(f"{source}: {shape}; if these are one feature, give x[:, None]")
    if x.size == 0:
        what = "examples" if not len(x) else "features"
        raise DataError(f"{source}: {shape} and not empty; fill it with {what}")


def examples_of(x: NDArray[Any], source: str) -> tuple[Tensor, list[str]]:
    """Examples (n, …) without names in the type they train in, and notes.

    Integers become int64; uint8 stay, since only whoever trains on them knows what they are: ids,
    or pixels; all else becomes float32.

    Raises:
        DataError: not numbers, NaN or Inf, or beyond float32.
    """
    if x.dtype.kind not in "uifb":
        raise DataError(
            f"{source}: x is of type {x.dtype}, must be numbers; encode features as numbers"
        )
    if x.dtype == np.uint8:
        return torch.from_numpy(np.ascontiguousarray(x)), []
    if x.dtype.kind in "ui":
        if x.dtype == np.uint64 and x.max() >= 2**63:
            raise DataError(f"{source}: x holds numbers from 2^63; save it as float32")
        return torch.from_numpy(np.ascontiguousarray(x, np.int64)), []
    if why := why_unfit(x):
        raise DataError(f"{source}: x {why}")
    notes = rounding({str(k): x[:, k] for k in range(x.shape[1])}) if x.ndim == 2 else []
    narrow = np.ascontiguousarray(x, np.float32)
    return torch.from_numpy(narrow if narrow.flags.writeable else narrow.copy()), notes


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


def _labels(y: NDArray[Any], classes: tuple[str, ...], source: str) -> Labels:
    """Numbers, or texts: in the order of `classes`, where these are told."""
    if y.ndim != 1:
        raise DataError(
            f"{source}: y has shape {y.shape}, must be (examples,); give each example one label, "
            "by y.argmax(axis=1) where there is a column for each class"
        )
    if not len(y):
        raise DataError(f"{source}: y has shape (0,), and must not be empty; fill it")
    labels = labels_of(y, source)
    if not classes or not labels.classes:
        return Labels(labels.y, classes or labels.classes, labels.written)
    if unknown := set(labels.classes) - set(classes):
        raise DataError(
            f"{source}: {counted(len(unknown), 'class', 'classes')} among the labels not in "
            "class_names; add them there"
        )
    return Labels(np.array([classes.index(name) for name in labels.classes])[labels.y], classes)


def _count(value: NDArray[Any] | None, source: str) -> int:
    if value is None:
        return 0
    number = value.item() if value.size == 1 and value.dtype.kind in "uif" else 0
    if not 1 <= number <= _MOST_CLASSES or number != int(number):
        raise DataError(
            f"{source}: num_classes must be one whole number from 1 to {_MOST_CLASSES}; mend it"
        )
    return int(number)


def _names(given: Mapping[str, Any], key: str, source: str) -> tuple[str, ...]:
    if key not in given:
        return ()
    value = given[key]
    texts = value.tolist() if value.ndim == 1 and value.dtype.kind in "OUT" else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{source}: {key} must be a list of texts; give np.array(names, dtype=str)")
    names = tuple(map(clean, texts))
    if "" in names or twice(names) is not None:
        which = "an empty name" if "" in names else f"{twice(names)!r:.50} twice"
        raise DataError(f"{source}: {key} holds {which}; give each its own name")
    return names
