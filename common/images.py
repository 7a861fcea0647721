"""Images as pixels, as a person sees them; Pillow is loaded only when used."""

import io
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.datasets import DataError
from common.names import counted

#: Suffixes of images, and the forms by which Pillow may read them, whatever their suffix.
IMAGE_SUFFIXES = {
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    *(".jp2", ".ppm", ".pgm", ".pbm", ".pnm"),
}
_FORMS = "PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "JPEG2000", "PPM"
_PHOTOMETRIC = 262  # TIFF's tag that says 0 where white is zero, which Pillow minds up to 8 bits
_SYSTEM_FILES = {"__macosx", "thumbs.db", "desktop.ini", "@eadir", "$recycle.bin"}
#: What zipfile and Pillow raise for a broken image.
_UNREADABLE = (OSError, ValueError, SyntaxError, RuntimeError, zipfile.BadZipFile, zlib.error)


def is_junk(name: str) -> bool:
    """Whether a file or folder of this name is hidden, or left there by an operating system."""
    return name.startswith(".") or name.lower() in _SYSTEM_FILES


def decode_images(
    names: Sequence[str], read: Callable[[str], bytes], source: str
) -> tuple[Tensor, list[str]]:
    """The images of these names as RGB (n, 3, height, width), as a person sees them, and notes.

    uint8 pixels, or where one of them is grey of 16 bits all as float32 in [0, 1].

    Args:
        read: the content of a named file.
        source: where the images come from, for messages: a key and its value.

    Raises:
        DataError: naming the source and the first image that cannot be read or has another size.
    """
    pixels: list[NDArray[Any]] = []
    lost: Counter[str] = Counter()
    for name in names:
        pixels.append(_decode(read(name), f"{source}: {name}", lost))
        if pixels[-1].shape != pixels[0].shape:
            raise DataError(f"{source}: images differ in size, {name} first; resize them to one")
    notes = [f"{counted(count, 'image')} {what}" for what, count in lost.items()]
    if any(p.dtype == np.float32 for p in pixels):
        whole = np.float32(255)
        pixels = [p if p.dtype == np.float32 else p.astype(np.float32) / whole for p in pixels]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous(), notes


def _decode(content: bytes, what: str, lost: Counter[str]) -> NDArray[Any]:
    """An image (height, width, 3), uint8 or float32; what is not kept of it is counted in `lost`.

    Raises:
        DataError: beginning with `what`.
    """
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():  # that an image is large; too large ones are refused
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image: Any = Image.open(io.BytesIO(content), formats=_FORMS)
        if (frames := getattr(image, "n_frames", 1)) > 1:
            if image.format != "MPO":
                raise DataError(
                    f"{what} holds {frames} pictures; save each as an image of its own, or remove "
                    "it"
                )
            # Of a photo, mostly a preview of the first one, or what the other eye sees.
            lost["with a second picture, which is left out"] += 1
        mode, raw = image.mode, str(image.tile[0].args) if image.tile else ""
        grey16 = mode.startswith("I;16") or (mode == "I" and image.format == "PPM")
        if mode in ("I", "F") and not grey16:
            raise DataError(
                f"{what} has pixels of 32 bits, whose black and white nobody knows; save it with "
                "8 or 16 bits"
            )
        inverted = grey16 and getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == 0
        image = ImageOps.exif_transpose(image)
        if grey16:
            grey = np.asarray(image).astype(np.float32) / np.float32(4095 if "12" in raw else 65535)
            grey = 1 - grey if inverted else grey
            return np.repeat(grey[..., None], 3, axis=-1)
        if image.has_transparency_data:
            image = image.convert("RGBA")
            if image.getchannel("A").getextrema()[0] != 255:
                lost["with transparency, which is left out"] += 1
        if ";16" in raw:
            lost["with colours of 16 bits, read with 8"] += 1
        return np.asarray(image.convert("RGB"))
    except Image.DecompressionBombError as error:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise DataError(f"{what} has more pixels than Pillow reads, {most:,}; resize it") from error
    except _UNREADABLE as error:
        raise DataError(f"{what} is not a readable image; mend or remove it") from error
