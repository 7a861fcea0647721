"""Data of one's own: a .npz file, a folder of class folders, a table, or a Python function.

    .npz               arrays x (n, *shape) and y (n,); a server's may also hold num_classes
    folder             <class>/<image>.png, .jpg or .jpeg, read as RGB (3, height, width)
    .csv, .parquet     a column of labels; all others are numeric features
    package.module:f   f() returns (x, y), numpy arrays or torch tensors

Whoever trains or validates on them relies on what is checked here.
"""

import hashlib
import importlib
import re
import zipfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.datasets import DataError, Dataset
from common.decode_cache import decoded_once
from common.errors import one_line
from common.images import IMAGE_SUFFIXES, decode_images
from common.tables import read_table

CLASSES, CACHE = "classes.txt", ".greedyfed-cache.safetensors"
FORMS = ".npz, .csv or .parquet file, a folder of class folders, or package.module:function"
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


@dataclass(frozen=True)
class ClassFolder:
    """What a folder of class folders holds: names of classes, and images `<class>/<image>`."""

    classes: tuple[str, ...]
    images: tuple[str, ...]
    listed: bool  # the classes come from classes.txt, not from the folders


@dataclass(frozen=True)
class OwnData:
    """Checked examples, finite float32 with labels from 0; pixels are in [0, 1].

    `source` is the key and the value that name the data in messages.
    """

    source: str
    data: Dataset
    num_classes: int
    folder: ClassFolder | None = None

    def check_task(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        """Raises DataError unless the examples are of this shape and of classes 0..K−1."""
        shape, most = tuple(self.data.x.shape[1:]), int(self.data.y.max())
        if shape != input_shape:
            raise DataError(
                f"{self.source}: an example has shape {shape}, the server's have {input_shape}; "
                "convert the examples (images are channels, height, width)"
            )
        if self.folder and len(self.folder.classes) != num_classes:
            told = f"{CLASSES} names" if self.folder.listed else "the class folders make"
            raise DataError(
                f"{self.source}: {told} {len(self.folder.classes)} classes, the server has "
                f"{num_classes}; name those in {CLASSES}, one a line, in the server's order"
            )
        if most >= num_classes:
            raise DataError(
                f"{self.source}: holds label {most}, the server has the classes 0 to "
                f"{num_classes - 1}; renumber the labels, or leave those examples out"
            )


def load_own_data(path: str, key: str = "data-path", label_column: str = "label") -> OwnData:
    """Read and check data; read once by a process, until the files change.

    A decoded folder or CSV file is kept beside it, in `.greedyfed-cache.safetensors`.

    Args:
        key: the configuration key that gave the path, for messages.

    Raises:
        DataError: one line with the key, the path, what is wrong with it and the remedy.
    """
    source = f"{key} = {path!r}"
    try:
        place = Path(path).expanduser()
    except RuntimeError as error:
        raise DataError(f"{source}: names no known user; give the whole path") from error
    if re.fullmatch(r"[\w.]+:\w+", path) and not place.exists():
        return _from_function(path, source)
    try:
        if place.is_dir():
            folder = _class_folder(place, source)
            files = [place / name for name in folder.images]
        elif place.is_file() and place.suffix.lower() in (".npz", ".csv", ".parquet"):
            folder, files = None, [place]
        else:
            why = "is of no known form" if place.exists() else f"not found (from {Path.cwd()})"
            raise DataError(f"{source}: {why}; give a {FORMS}")
        stats = [(s.st_size, s.st_mtime_ns) for s in (file.stat() for file in files)]
        stamp = hashlib.sha256(repr((stats, folder, label_column)).encode()).hexdigest()
        return _from_files(place, source, label_column, folder, stamp)
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error}; mend its permissions") from error


@lru_cache(maxsize=4096)
def _from_files(
    place: Path, source: str, label_column: str, folder: ClassFolder | None, stamp: str
) -> OwnData:
    """Cached by `stamp`, which changes with the files."""

    def decode() -> dict[str, Tensor]:
        if folder is None:
            x, y = read_table(place, label_column, source)
            data = _checked(x, y, source)
            return {"x": data.x, "y": data.y}
        number = {name: k for k, name in enumerate(folder.classes)}
        return {
            "x": decode_images(folder.images, lambda name: (place / name).read_bytes(), source),
            "y": torch.tensor([number[name.split("/")[0]] for name in folder.images]),
        }

    if place.suffix.lower() == ".npz":
        x, y, num_classes = _read_npz(place, source)
        return _own(_checked(x, y, source), source, num_classes)
    if folder is not None:
        parts = decoded_once(place / CACHE, stamp, decode)
    elif place.suffix.lower() == ".csv":
        parts = decoded_once(place.with_name(f".{place.name}{CACHE}"), stamp, decode)
    else:
        parts = decode()
    data = _checked(parts["x"].numpy(), parts["y"].numpy(), source)
    return _own(data, source, len(folder.classes) if folder else 0, folder)


@lru_cache(maxsize=4096)
def _from_function(path: str, source: str) -> OwnData:
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise DataError(
            f"{source}: cannot be imported: {one_line(error)}; mend PYTHONPATH"
        ) from error
    except Exception as error:  # whatever the user's own code raises; its text may quote data
        raise DataError(
            f"{source}: importing it raised {type(error).__name__}; import it in Python"
        ) from error
    try:
        x, y = (v.detach().cpu() if isinstance(v, Tensor) else v for v in function())
        arrays = np.asarray(x), np.asarray(y)
    except Exception as error:  # whatever the user's own code raises; its text may quote data
        raise DataError(
            f"{source}: must return arrays (x, y), but raised {type(error).__name__}; "
            "call it in Python to see where"
        ) from error
    return _own(_checked(*arrays, source), source)


def _own(
    data: Dataset, source: str, num_classes: int = 0, folder: ClassFolder | None = None
) -> OwnData:
    """With at least `num_classes` classes, more if there are higher labels."""
    num_classes = max(num_classes, int(data.y.max()) + 1)
    return OwnData(source, data.take(np.arange(len(data))), num_classes, folder)


def _checked(x: NDArray[Any], y: NDArray[Any], source: str) -> Dataset:
    """x as float32, or uint8 as it is, and y as int64; raises DataError."""
    if x.dtype.kind not in "uifb" or y.dtype.kind not in "uifb":
        raise DataError(
            f"{source}: x is of type {x.dtype} and y of {y.dtype}, must be numbers; "
            "encode features as numbers and classes as 0, 1, …"
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
    if x.dtype != np.uint8:
        with np.errstate(over="ignore"):  # an overflow is told as Inf
            x = x.astype(np.float32)
        broken = ~np.isfinite(x.reshape(len(x), -1)).all(axis=1)
        if broken.any():
            raise DataError(
                f"{source}: {broken.sum()} of {len(x)} examples hold NaN or Inf; remove them"
            )
    return Dataset(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y.astype(np.int64)))


def _read_npz(place: Path, source: str) -> tuple[NDArray[Any], NDArray[Any], int]:
    try:
        with np.load(place, allow_pickle=False) as arrays:
            return arrays["x"], arrays["y"], int(arrays.get("num_classes", 0))
    except _UNREADABLE as error:
        raise DataError(
            f"{source}: is not a .npz file of plain arrays x and y; write it by numpy.savez"
        ) from error


def _class_folder(place: Path, source: str) -> ClassFolder:
    folders = sorted(p.name for p in place.iterdir() if p.is_dir() and not p.name.startswith("."))
    images = tuple(
        f"{name}/{path.name}"
        for name in folders
        for path in sorted((place / name).iterdir())
        if path.suffix.lower() in IMAGE_SUFFIXES
    )
    if not images:
        raise DataError(f"{source}: holds no images <class>/<image>; give the folder above them")
    if not (place / CLASSES).is_file():
        return ClassFolder(tuple(folders), images, listed=False)
    try:
        lines = (place / CLASSES).read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: {CLASSES} is not UTF-8 text; save it as such") from error
    classes = [line.strip() for line in lines if line.strip()]
    if len(set(classes)) < len(classes):
        raise DataError(f"{source}: {CLASSES} names a class twice; remove one of the lines")
    if unknown := set(folders) - set(classes):
        raise DataError(
            f"{source}: folder {min(unknown)!r} is not in {CLASSES}; add or rename the class"
        )
    return ClassFolder(tuple(classes), images, listed=True)
