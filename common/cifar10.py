"""CIFAR-10 from torchvision's layout, or from a folder or zip of class folders of images.

Class folders are `<anything>/train/<class>/<image>` and `<anything>/test/<class>/<image>`; they are
decoded once into a cache in the user's cache folder.
"""

import hashlib
import os
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from common.datasets import DataError
from common.decode_cache import Decoded, decoded_once
from common.errors import one_line
from common.images import IMAGE_SUFFIXES, decode_images, is_junk
from common.names import counted, ordered, quoted
from common.public_data import downloaded

Part = tuple[Tensor, Tensor]


def load_cifar10(data_dir: str, download: bool) -> tuple[Part, Part, tuple[str, ...]]:
    """Training and held-out images (n, 3, 32, 32) with classes (n,) int64, and what was left out.

    Looks in `data_dir` for torchvision's `cifar-10-batches-py`, then for `cifar10.zip`, then for
    class folders; `data_dir` may also be the zip file itself. Where none is there, `download`
    fetches torchvision's.

    Raises:
        DataError: when none of these is there or an image cannot be read.
    """
    root = Path(data_dir)
    batches = (root / "cifar-10-batches-py").is_dir()
    for candidate in () if batches else (root, root / "cifar10.zip", root / "cifar10"):
        if candidate.is_file() or (candidate / "train").is_dir():
            return _cached(candidate.resolve())
    if batches or download:
        return _torchvision(root, True, download), _torchvision(root, False, download), ()
    raise DataError(
        f"data-dir = {data_dir!r}: holds neither cifar-10-batches-py, nor cifar10.zip, nor class "
        "folders train/<class>/ and test/<class>/; give the right folder, or set download = true"
    )


def _torchvision(root: Path, train: bool, download: bool) -> Part:
    from torchvision import datasets

    fetched = partial(datasets.CIFAR10, root, train=train, download=True)
    try:
        raw = downloaded(fetched, str(root), "cifar10") if download else fetched(download=False)
    except RuntimeError as error:
        raise DataError(
            f"data-dir = '{root}': cifar10 cannot be read: {one_line(error)}; give its folder, or "
            "remove what is there and set download = true"
        ) from error
    return torch.from_numpy(raw.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(raw.targets)


def _cached(source: Path) -> tuple[Part, Part, tuple[str, ...]]:
    stat = source.stat()
    key = hashlib.sha256(f"{source}:{stat.st_size}:{stat.st_mtime_ns}".encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "greedyfed"
    cache = home / f"images-{key}.safetensors"
    data, about = decoded_once(cache, key, lambda: _decode_all(source))
    train, test = (data["train_x"], data["train_y"]), (data["test_x"], data["test_y"])
    return train, test, tuple(about["notes"])


def _decode_all(source: Path) -> Decoded:
    read: Callable[[str], bytes]
    try:
        if source.is_file():
            archive = zipfile.ZipFile(source)
            names, read = archive.namelist(), archive.read
        else:
            names = [p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file()]
            read = lambda name: (source / name).read_bytes()  # noqa: E731
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(
            f"data-dir = '{source}': cannot be opened: {error}; give a zip file, or a folder"
        ) from error
    key = f"data-dir = '{source}'"
    images: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    others = dict[str, str]()  # files in class folders that are no images, with their folders
    for name in sorted(names):
        path = PurePosixPath(name)
        folder, parts = str(path.parent), path.parts
        if len(parts) < 3 or parts[-3] not in images or any(map(is_junk, parts)):
            continue
        if path.suffix.lower() in IMAGE_SUFFIXES:
            images[parts[-3]].append((parts[-2], name))
        elif not name.endswith("/"):
            others[name] = folder
    classes = ordered(label for label, _ in images["train"])
    if not classes or not images["test"]:
        raise DataError(
            f"{key}: no images in train/<class>/ and test/<class>/ "
            f"({', '.join(sorted(IMAGE_SUFFIXES))}); give the folder or zip that holds both"
        )
    read_from = {str(PurePosixPath(name).parent) for part in images.values() for _, name in part}
    if lost := sorted(set(others.values()) - read_from):
        raise DataError(
            f"{key}: folder {lost[0]!r} holds no images of a known form; convert them to .png, or "
            "remove the folder"
        )
    if unknown := {label for label, _ in images["test"]} - set(classes):
        raise DataError(
            f"{key}: test class {sorted(unknown)[0]!r} has no training images; add some, or "
            "remove it"
        )
    data, notes = dict[str, Tensor](), list[str]()
    if others:
        kinds = ordered(PurePosixPath(name).suffix.lower() for name in others)
        what = counted(len(others), "file that is no image", "files that are no images")
        notes.append(f"{what} left out: {quoted(kinds)}")
    for part, members in images.items():
        names = [name for _, name in members]
        data[f"{part}_x"], more = decode_images(names, read, key)
        data[f"{part}_y"] = torch.tensor([classes.index(label) for label, _ in members])
        notes += [f"{part}: {note}" for note in more]
    return data, {"notes": notes}
