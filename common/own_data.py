"""Data of one's own: a .npz file, a folder of class folders, a table, or a Python function.

    .npz               arrays x (n, *shape) and y (n,), and maybe num_classes, class_names (K,),
                       feature_names (columns,)
    folder             <class>/<image>, read as RGB (3, height, width)
    .csv, .parquet     a column of labels, numbers or texts; all others are numeric features
    package.module:f   f() returns (x, y), or a mapping with the names that a .npz has; numpy
                       arrays or torch tensors

Whoever trains or validates on them relies on what is checked here.
"""

import hashlib
import importlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from common.arrays import Arrays, ambiguous, arrays_of, read_npz
from common.class_folders import CACHE, ClassFolder, class_folder
from common.datasets import DataError, Dataset, inputs_of
from common.decode_cache import Decoded, decoded_once
from common.errors import one_line
from common.functions import plain
from common.images import decode_images
from common.names import quoted
from common.tables import read_table

FORMS = ".npz, .csv or .parquet file, a folder of class folders, or package.module:function"
#: Labels of so many classes, with so few examples of each, are measured numbers.
_FEW_CLASSES, _FEW_EXAMPLES, _MOST_ABSENT = 20, 3, 0.25


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnData(Arrays):
    """Checked examples; uint8 stay as they are until a task says what they are.

    Attributes:
        source: the key and the value that name the data in messages.
        form: what it is, in words.
        declared: somebody says which classes there are; else they are those of the labels, and
            `num_classes` is that.
    """

    source: str
    form: str
    declared: bool

    @property
    def inputs(self) -> str:
        """What the examples are: "whole", "pixels" or "numbers"; "bytes" where nobody knows."""
        return inputs_of(self.data.x)

    def class_name(self, label: int) -> str:
        return self.classes[label] if self.classes else str(label)

    @property
    def unseen(self) -> tuple[int, ...]:
        """Numbers of classes without a name or an example, of which nobody says that they exist."""
        if self.declared or self.classes:
            return ()
        present = set(self.data.y.tolist())
        return tuple(k for k in range(self.num_classes) if k not in present)

    def server_notes(self) -> list[str]:
        """What a server that has passed `check_server` should know."""
        names = [self.class_name(k) for k in self.unseen]
        if not names:
            return []
        return [
            f"no example of {'class' if len(names) == 1 else 'classes'} {quoted(names)}, so that "
            "clients who have one stay out; if it is a class, say num_classes in a .npz"
        ]

    def check_server(self) -> None:
        """Raises DataError where a server cannot validate on these data."""
        x, y = self.data.x, self.data.y.numpy()
        for why in self.unfit.values():
            raise DataError(f"{self.source}: {why}")
        if len(y) < 2:
            raise DataError(
                f"{self.source}: holds 1 example; the server needs 2 or more, to validate and to "
                "test"
            )
        if self.inputs == "bytes":
            raise DataError(f"{self.source}: {ambiguous(x.shape[1:])}")
        present = len(np.unique(y))
        absent = self.num_classes - present
        if present < 2:
            raise DataError(
                f"{self.source}: all {len(y)} examples are of class "
                f"{self.class_name(int(y[0]))!r:.50}, which every model gets right; give examples "
                "of the other classes, too"
            )
        few = absent > _MOST_ABSENT * self.num_classes or len(y) < _FEW_EXAMPLES * self.num_classes
        if not self.declared and self.num_classes > _FEW_CLASSES and few:
            raise DataError(
                f"{self.source}: the labels of {len(y)} examples make {self.num_classes} "
                f"classes, {absent} of them empty, as measured numbers or free texts do; give "
                "classes, or if these are classes, num_classes or class_names in a .npz"
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
    try:
        if re.fullmatch(r"[\w.]+:\w+", path) and not place.exists():
            return _from_function(path, source)
        if place.is_dir():
            folder = class_folder(place, source)
            files = [place / name for name in folder.images]
        elif place.is_file() and place.suffix.lower() in (".npz", ".csv", ".parquet"):
            folder, files = None, [place]
        else:
            why = "is of no known form" if place.exists() else f"not found (from {Path.cwd()})"
            raise DataError(f"{source}: {why}; give a {FORMS}")
        stats = [
            (s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino)  # some write without a new mtime
            for s in (file.stat() for file in files)
        ]
        stamp = hashlib.sha256(repr((stats, folder, label_column)).encode()).hexdigest()
        return _from_files(place, source, label_column, folder, stamp)
    except OSError as error:
        raise DataError(f"{source}: cannot be read: {error}; mend its permissions") from error


@lru_cache(maxsize=4096)
def _from_files(
    place: Path, source: str, label_column: str, folder: ClassFolder | None, stamp: str
) -> OwnData:
    """Cached by `stamp`, which changes with the files."""
    suffix = place.suffix.lower()
    if folder is None and suffix == ".npz":
        return _own(source, ".npz file", read_npz(place, source))

    def decode_folder() -> Decoded:
        assert folder
        x, notes = decode_images(folder.images, lambda name: (place / name).read_bytes(), source)
        y = torch.tensor(folder.labels)
        return {"x": x, "y": y}, {"classes": [*folder.classes], "notes": [*folder.notes, *notes]}

    def decode_table() -> Decoded:
        return _packed(read_table(place, label_column, source))

    if folder is not None:
        decoded = decoded_once(place / CACHE, stamp, decode_folder)
        return _own(source, "folder of class folders", _unpacked(decoded, declared=True))
    if suffix == ".csv":
        cache = place.with_name(f".{place.name}{CACHE}")
        return _own(source, ".csv file", _unpacked(decoded_once(cache, stamp, decode_table)))
    return _own(source, ".parquet file", read_table(place, label_column, source))


def _packed(table: Arrays) -> Decoded:
    tensors = {"x": table.data.x, "y": table.data.y}
    about = {
        "features": [*table.features],
        "classes": [*table.classes],
        "notes": [*table.notes],
        "index": [*table.index],
        "unfit": [*table.unfit],
        "why": [*table.unfit.values()],
    }
    if table.written:
        tensors["written"], about["written"] = table.written[0], [*table.written[1]]
    return tensors, about


def _unpacked(decoded: Decoded, declared: bool = False) -> Arrays:
    tensors, about = decoded
    return Arrays(
        data=Dataset(tensors["x"], tensors["y"]),
        num_classes=len(about["classes"]) if declared else 0,
        features=tuple(about.get("features", ())),
        unfit=dict(zip(about.get("unfit", ()), about.get("why", ()), strict=True)),
        index=tuple(about.get("index", ())),
        classes=tuple(about["classes"]),
        written=(tensors["written"], tuple(about["written"])) if "written" in tensors else None,
        notes=tuple(about["notes"]),
    )


@lru_cache(maxsize=4096)
def _from_function(path: str, source: str) -> OwnData:
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except AttributeError as error:
        raise DataError(
            f"{source}: cannot be imported: {one_line(error)}; mend the name of the function"
        ) from error
    except ImportError as error:
        raise DataError(
            f"{source}: cannot be imported: {one_line(error)}; mend PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:  # of the user's own code; its text may quote data
        raise DataError(
            f"{source}: importing it raised {type(error).__name__}; import it in Python"
        ) from error
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        raise DataError(
            f"{source}: must return arrays (x, y), but raised {type(error).__name__}; "
            "call it in Python to see where"
        ) from error
    return _own(source, "function", arrays_of(plain(returned, source), source))


def _own(source: str, form: str, arrays: Arrays) -> OwnData:
    """With the classes that are told, or those of the labels."""
    told = arrays.num_classes
    given = vars(arrays) | {"num_classes": told or int(arrays.data.y.max()) + 1}
    return OwnData(source=source, form=form, declared=bool(told), **given)
