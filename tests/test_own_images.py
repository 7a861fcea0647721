"""Class folders as people have them: forms and depths of images, and files that are none."""

import io
import shutil
import struct
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from common.config import DataConfig
from common.datasets import DataError, load_splits
from common.own_data import load_own_data
from tests.own_files import COLOUR, GREY, film, fresh_process, image

DEEP = (np.arange(64, dtype=np.uint16) * 1040 + 7).reshape(8, 8)


@pytest.fixture(autouse=True)
def _every_process_reads_anew(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    fresh_process()


def tree(root, **files):
    """Write files by their path."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def pets(root, files):
    """Images of two classes, and these files."""
    return tree(root, **{"cat/0.png": image(COLOUR), "dog/0.png": image(COLOUR)} | files)


def saved(picture, form, **keys):
    stream = io.BytesIO()
    (Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture).save(
        stream, form, **keys
    )
    return stream.getvalue()


def seen(content, tmp_path, name="a.png"):
    """One image as it is read, (3, height, width) in 0 to 1, and the notes."""
    own = load_own_data(str(tree(tmp_path / "one", **{f"cat/{name}": content})))
    pixels = own.data.take(np.arange(1)).x
    assert pixels.dtype == torch.float32
    return pixels[0].numpy(), own.notes


def png16(picture, colour):
    """A PNG file of 16 bits a channel, which Pillow cannot write in colour."""

    def chunk(kind, data):
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    height, width = picture.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in picture)
    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


FORMS = {
    "a.PNG": "PNG",
    "a.bmp": "BMP",
    "a.tif": "TIFF",
    "a.TIFF": "TIFF",
    "a.ppm": "PPM",
    "a.png": "TIFF",  # the content counts, not the suffix
}


@pytest.mark.parametrize("name", FORMS)
def test_lossless_forms(name, tmp_path):
    x, notes = seen(saved(COLOUR, FORMS[name]), tmp_path, name)
    np.testing.assert_array_equal(x, COLOUR.transpose(2, 0, 1) / np.float32(255))
    assert notes == ()


LOSSY = [("a.jpg", "JPEG"), ("a.jpeg", "JPEG"), ("a.jfif", "JPEG"), ("a.webp", "WEBP")]


@pytest.mark.parametrize(("name", "form"), [*LOSSY, ("a.gif", "GIF"), ("a.jp2", "JPEG2000")])
def test_other_forms(name, form, tmp_path):
    flat = np.full((8, 8, 3), (200, 100, 40), np.uint8)
    x, notes = seen(saved(flat, form), tmp_path, name)
    np.testing.assert_allclose(x, flat.transpose(2, 0, 1) / 255, atol=0.03)
    assert notes == ()


@pytest.mark.parametrize(
    ("name", "form"), [("a.png", "PNG"), ("a.tif", "TIFF"), ("a.pgm", "PPM"), ("a.jp2", "JPEG2000")]
)
def test_grey_of_16_bits(name, form, tmp_path):
    x, notes = seen(saved(DEEP, form), tmp_path, name)
    np.testing.assert_allclose(x, np.stack([DEEP / 65535] * 3), atol=2e-7)
    assert notes == ()


def test_grey_of_16_bits_whose_zero_is_white(tmp_path):
    x, _ = seen(saved(DEEP, "TIFF", tiffinfo={262: 0}), tmp_path, "a.tif")
    np.testing.assert_allclose(x[0], 1 - DEEP / 65535, atol=2e-7)


def test_grey_of_16_bits_among_images_of_8(tmp_path):
    root = pets(tmp_path, {"cat/1.png": saved(DEEP, "PNG"), "dog/1.png": image(GREY)})
    own = load_own_data(str(root))
    right = [COLOUR.transpose(2, 0, 1) / 255, np.stack([DEEP / 65535] * 3)]
    right += [right[0], np.stack([GREY / 255] * 3)]
    np.testing.assert_allclose(own.data.x.numpy(), np.stack(right), atol=2e-7)
    assert own.inputs == "pixels"


@pytest.mark.parametrize(("colour", "channels"), [(2, 3), (4, 2), (6, 4)])
def test_colours_of_16_bits_are_read_with_8_and_this_is_said(colour, channels, tmp_path):
    picture = np.repeat(DEEP[..., None], channels, axis=2)
    picture[..., -1] = 65535 if channels != 3 else picture[..., -1]
    x, notes = seen(png16(picture, colour), tmp_path)
    np.testing.assert_allclose(x[0], DEEP / 65535, atol=1 / 255)
    assert notes == ("1 image with colours of 16 bits, read with 8",)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_photo_is_read_as_it_is_shown(orientation, tmp_path):
    picture = Image.fromarray(COLOUR[:, :6])
    exif = Image.Exif()
    exif[274] = orientation
    right = {
        1: COLOUR[:, :6],
        2: COLOUR[:, 5::-1],
        3: COLOUR[::-1, 5::-1],
        4: COLOUR[::-1, :6],
        5: COLOUR[:, :6].swapaxes(0, 1),
        6: COLOUR[::-1, :6].swapaxes(0, 1),
        7: COLOUR[::-1, 5::-1].swapaxes(0, 1),
        8: COLOUR[:, 5::-1].swapaxes(0, 1),
    }[orientation]
    x, _ = seen(saved(picture, "PNG", exif=exif), tmp_path)
    np.testing.assert_array_equal(x, right.transpose(2, 0, 1) / np.float32(255))


def test_a_turned_scan_of_16_bits(tmp_path):
    exif = Image.Exif()
    exif[274] = 6
    x, _ = seen(saved(DEEP[:, :6], "PNG", exif=exif), tmp_path)
    np.testing.assert_allclose(x[0], DEEP[::-1, :6].T / 65535, atol=2e-7)


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "RGBA", "LA", "YCbCr"])
def test_modes_that_show_the_same_picture(mode, tmp_path):
    flat = Image.fromarray(np.full((8, 8), 255, np.uint8)).convert("RGB").convert(mode)
    form = {"CMYK": "TIFF", "YCbCr": "JPEG"}.get(mode, "PNG")
    x, notes = seen(saved(flat, form), tmp_path)
    np.testing.assert_allclose(x, np.ones((3, 8, 8)), atol=0.01)
    assert notes == ()  # an alpha channel that hides nothing is nothing lost


def test_transparency_is_left_out_and_said(tmp_path):
    alpha = np.dstack([COLOUR, np.full((8, 8), 255, np.uint8)])
    half = alpha.copy()
    half[0, 0, 3] = 0
    palette = Image.fromarray(GREY // 64).convert("P")
    root = pets(
        tmp_path,
        {
            "cat/1.png": saved(half, "PNG"),
            "cat/2.png": saved(alpha, "PNG"),
            "dog/1.png": saved(palette, "PNG", transparency=0),
        },
    )
    own = load_own_data(str(root))
    assert own.notes == ("2 images with transparency, which is left out",)
    np.testing.assert_array_equal(own.data.x[1].numpy(), COLOUR.transpose(2, 0, 1))
    fresh_process()
    assert load_own_data(str(root)).notes == own.notes  # also from the cache


LEFT_OUT = {
    "no images": (
        {"cat/a.db": b"", "dog/b.ini": b"", "dog/c.ini": b""},
        "3 files that are no images left out: .ini, .db",
    ),
    "beside": (
        {"labels.csv": b"", "0.png": image(GREY)},
        "2 files beside the class folders left out: .png, .csv",
    ),
    "hidden": (
        {
            "cat/._0.png": b"",
            ".DS_Store": b"",
            "dog/Thumbs.db": b"",
            ".git/x": b"",
            "__MACOSX/cat/._0.png": b"",
        },
        "5 hidden or system files left out: ",
    ),
    "an empty class": ({"eel/.keep": b""}, "1 class without images: 'eel'"),
    "a folder of no images": (
        {"cat/raw/a.txt": b""},
        "1 folder without images left out: 'cat/raw'",
    ),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_is_left_out_is_said(case, tmp_path):
    files, words = LEFT_OUT[case]
    own = load_own_data(str(pets(tmp_path, files)))
    assert len(own.data) == 2
    assert own.classes == (("cat", "dog", "eel") if "class" in case else ("cat", "dog"))
    assert any(words in note for note in own.notes), own.notes
    first = own.notes
    fresh_process()
    assert load_own_data(str(tmp_path)).notes == first


def test_notes_are_of_now_though_the_images_are_from_the_cache(tmp_path):
    root = pets(tmp_path, {})
    assert load_own_data(str(root)).notes == ()
    (root / "dog" / "notes.txt").write_text("")
    assert load_own_data(str(root)).notes == ("1 file that is no image left out: .txt",)


def bits32(kind):
    return saved(Image.fromarray(np.ones((8, 8), kind)), "TIFF")


REFUSED = {
    "a class of no known form": (
        {"eel/a.heic": b"", "eel/b.heic": b""},
        "folder 'eel' holds files, but no images of a known form (.heic); give images",
    ),
    "deeper": (
        {"dog/2021/0.png": image(GREY)},
        "folder 'dog/2021' holds images, whose class could be either folder; move them up",
    ),
    "much deeper": ({"dog/a/b/c/0.JPG": b""}, "folder 'dog/a' holds images, whose class"),
    "whole numbers of 32 bits": (
        {"cat/1.tif": bits32(np.int32)},
        "cat/1.tif has pixels of 32 bits",
    ),
    "floats": ({"cat/1.tif": bits32(np.float32)}, "cat/1.tif has pixels of 32 bits, whose black"),
    "a film": ({"cat/1.gif": film("GIF")}, "cat/1.gif holds 2 pictures; save each as an image"),
    "pages": ({"cat/1.tif": film("TIFF")}, "cat/1.tif holds 2 pictures"),
    "an animated png": ({"cat/1.png": film("PNG")}, "cat/1.png holds 2 pictures"),
    "a program for a printer": ({"cat/1.png": b"%!PS-Adobe-3.0 EPSF"}, "not a readable image"),
    "two names": ({"cat /1.png": image(GREY)}, "two folders are named 'cat' but for white space"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_images_without_a_clear_class_or_content_are_refused(case, tmp_path):
    files, words = REFUSED[case]
    with pytest.raises(DataError) as error:
        load_own_data(str(pets(tmp_path, files)))
    (line,) = str(error.value).splitlines()
    assert words in line
    assert "; " in line


def test_a_photo_with_a_preview_is_one_picture(tmp_path):
    x, notes = seen(film("MPO"), tmp_path, "a.jpg")
    assert notes == ("1 image with a second picture, which is left out",)
    np.testing.assert_allclose(x, COLOUR.transpose(2, 0, 1) / 255, atol=0.2)


def test_classes_txt_as_windows_saves_it(tmp_path):
    root = pets(tmp_path, {"classes.txt": "\ufeffdog\r\ncat\r\n".encode()})
    own = load_own_data(str(root))
    assert (own.classes, own.data.y.tolist()) == (("dog", "cat"), [1, 0])
    assert own.notes == ()


def archive(folder, files):
    parts = {
        f"{part}/{name}": image(COLOUR)
        for part in ("train", "test")
        for name in ("cat/0.png", "dog/0.png")
    }
    tree(folder / "set", **parts | files)
    with zipfile.ZipFile(folder / "cifar10.zip", "w") as file:
        for path in sorted((folder / "set").rglob("*")):
            file.write(path, path.relative_to(folder))
    shutil.rmtree(folder / "set")
    return DataConfig(dataset="cifar10", data_dir=str(folder))


def test_junk_in_an_archive_is_no_image_and_no_class(tmp_path):
    junk = {
        "__MACOSX/set/train/cat/._0.png": b"junk",
        "train/cat/._0.png": b"junk",
        "train/.DS_Store/0.png": b"junk",
        "train/__MACOSX/0.png": b"junk",
        "test/dog/Thumbs.db": b"junk",
        "test/dog/readme.txt": b"text",
    }
    splits = load_splits(archive(tmp_path, junk), 0)
    assert (len(splits.train), splits.num_classes) == (2, 2)
    assert splits.notes == ("1 file that is no image left out: '.txt'",)


def test_classes_of_no_known_form_in_an_archive_are_refused(tmp_path):
    with pytest.raises(DataError, match="folder 'set/train/eel' holds no images of a known form"):
        load_splits(archive(tmp_path, {"train/eel/0.heic": b""}), 0)


def test_classes_of_an_archive_that_are_numbers_keep_them(tmp_path):
    more = {f"{part}/{k}/0.png": image(COLOUR) for part in ("train", "test") for k in range(12)}
    config = archive(tmp_path, more)
    with zipfile.ZipFile(tmp_path / "cifar10.zip") as file:
        names = [n for n in file.namelist() if "cat" not in n and "dog" not in n]
        contents = {n: file.read(n) for n in names if n.endswith(".png")}
    with zipfile.ZipFile(tmp_path / "cifar10.zip", "w") as file:
        for name, content in contents.items():
            file.writestr(name, content)
    in_order = [int(n.split("/")[2]) for n in sorted(contents) if "/train/" in n]
    assert load_splits(config, 0).train.y.tolist() == in_order


@pytest.mark.parametrize("place", ["cat/9.png", "eel"])
def test_a_link_that_leads_nowhere_is_named(place, tmp_path):
    root = pets(tmp_path, {})
    (root / place).symlink_to(root / "nowhere")
    with pytest.raises(DataError, match=f"{place}' is a link to what is not there .*; mend or"):
        load_own_data(str(root))


def test_very_large_images(tmp_path, monkeypatch, recwarn):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)
    assert seen(image(COLOUR), tmp_path)[0].shape == (3, 8, 8)  # 64, of which Pillow warns
    assert not recwarn
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30)
    (tmp_path / "one" / "cat" / "a.png").touch()
    with pytest.raises(DataError, match="has more pixels than Pillow reads, 60; resize it"):
        load_own_data(str(tmp_path / "one"))
