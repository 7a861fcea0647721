"""CIFAR-10 from torchvision's layout, or from a folder or zip of class folders of images.

Class folders are `<anything>/train/<class>/<image>` and `<anything>/test/<class>/<image>`; they are
decoded once into a cache in the user's cache folder.
"""

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.datasets import DataError
from common.decode_cache import decoded_once
from common.errors import one_line

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png"}
Part = tuple[Tensor, Tensor]
#: What zipfile and Pillow raise for a broken image.
_UNREADABLE = (OSError, ValueError, SyntaxError, RuntimeError, zipfile.BadZipFile, zlib.error)


def load_cifar10(data_dir: str, download: bool) -> tuple[Part, Part]:
    """Training and held-out images (n, 3, 32, 32) uint8 with classes (n,) int64.

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
        return _torchvision(root, True, download), _torchvision(root, False, download)
    raise DataError(
        f"data-dir = {data_dir!r}: holds neither cifar-10-batches-py, nor cifar10.zip, nor class "
        "folders train/<class>/ and test/<class>/; give the right folder, or set download = true"
    )


def _torchvision(root: Path, train: bool, download: bool) -> Part:
    from torchvision import datasets

    try:
        raw = datasets.CIFAR10(root, train=train, download=download)
    except RuntimeError as error:
        raise DataError(
            f"data-dir = '{root}': cifar10 cannot be read: {one_line(error)}; give its folder, or "
            "remove what is there and set download = true"
        ) from error
    return torch.from_numpy(raw.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(raw.targets)


def _cached(source: Path) -> tuple[Part, Part]:
    stat = source.stat()
    key = hashlib.sha256(f"{source}:{stat.st_size}:{stat.st_mtime_ns}".encode()).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "greedyfed"
    data = decoded_once(home / f"images-{key}.safetensors", key, lambda: _decode_all(source))
    return (data["train_x"], data["train_y"]), (data["test_x"], data["test_y"])


def _decode_all(source: Path) -> dict[str, Tensor]:
    read: Callable[[str], bytes]
    try:
        if source.is_file():
            archive = zipfile.ZipFile(source)
            names, read = archive.namelist(), archive.read
        else:
            names = [p.relative_to(source).as_posix() for p in source.rglob("*")]
            read = lambda name: (source / name).read_bytes()  # noqa: E731
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(
            f"data-dir = '{source}': cannot be opened: {error}; give a zip file, or a folder"
        ) from error
    images: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for name in sorted(names):
        path = PurePosixPath(name)
        if (
            path.suffix.lower() in IMAGE_SUFFIXES
            and len(path.parts) >= 3
            and path.parts[-3] in images
        ):
            images[path.parts[-3]].append((path.parts[-2], name))
    classes = sorted({label for label, _ in images["train"]})
    if not classes or not images["test"]:
        raise DataError(
            f"data-dir = '{source}': no images in train/<class>/ and test/<class>/ "
            f"({', '.join(sorted(IMAGE_SUFFIXES))}); give the folder or zip that holds both"
        )
    if unknown := {label for label, _ in images["test"]} - set(classes):
        raise DataError(
            f"data-dir = '{source}': test class {sorted(unknown)[0]!r} has no training images; "
            "add some, or remove it"
        )
    data = {}
    for part, members in images.items():
        names = [name for _, name in members]
        data[f"{part}_x"] = decode_images(names, read, f"data-dir = '{source}'")
        data[f"{part}_y"] = torch.tensor([classes.index(label) for label, _ in members])
    return data


def decode_images(names: Sequence[str], read: Callable[[str], bytes], source: str) -> Tensor:
    """The images of these names as RGB pixels (n, 3, height, width) uint8.

    Args:
        read: the content of a named file.
        source: where the images come from, for messages: a key and its value.

    Raises:
        DataError: naming the source and the first image that cannot be read or has another size.
    """
    from PIL import Image

    pixels: list[NDArray[np.uint8]] = []
    for name in names:
        try:
            image = Image.open(io.BytesIO(read(name))).convert("RGB")
        except (*_UNREADABLE, Image.DecompressionBombError) as error:
            raise DataError(
                f"{source}: {name} is not a readable image; mend or remove it"
            ) from error
        pixels.append(np.asarray(image, dtype=np.uint8))
        if pixels[-1].shape != pixels[0].shape:
            raise DataError(f"{source}: images differ in size, {name} first; resize them to one")
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
