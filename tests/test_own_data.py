"""A client's own data: every format, what it says of itself, and the cache of decoded data."""

import os
import stat

import numpy as np
import pyarrow as pa
import pytest
import torch

from common import decode_cache, own_data
from common.datasets import DataError
from common.own_data import load_own_data
from common.task import Task
from tests.own_files import (
    FOLDERS,
    LABELS,
    PIXELS,
    TABLES,
    class_folders,
    fresh_process,
    image,
    mine,
    npz,
    table,
)

CACHE = ".greedyfed-cache.safetensors"


@pytest.fixture(autouse=True)
def _every_process_reads_anew():
    fresh_process()


def test_npz_pixels_become_fractions(tmp_path):
    me = mine(npz(tmp_path))
    assert me.data.x.dtype == torch.float32
    np.testing.assert_array_equal(me.data.x.numpy(), PIXELS.astype(np.float32) / 255)
    assert me.data.y.tolist() == LABELS.tolist()
    assert me.data.y.dtype == torch.int64


@pytest.mark.parametrize("dtype", ["float64", "float16", ">f4", "int32", "bool"])
def test_npz_numbers_that_are_no_pixels_stay_as_they_are(dtype, tmp_path):
    x = PIXELS.astype(dtype)
    me = load_own_data(str(npz(tmp_path, x=x[::-1], y=LABELS[::-1].astype(np.float32))))
    np.testing.assert_array_equal(me.data.x.numpy(), x[::-1].astype(np.float32))
    assert me.data.x.dtype == (torch.int64 if dtype == "int32" else torch.float32)
    assert me.data.y.tolist() == [2, 2, 1, 1, 0, 0]


def test_class_folders(tmp_path):
    root = class_folders(tmp_path)
    (root / "bee" / "notes.txt").write_text("no image")
    (root / ".hidden").mkdir()
    me = mine(root, FOLDERS)
    np.testing.assert_array_equal(me.data.x.numpy(), PIXELS.astype(np.float32) / 255)
    assert me.data.y.tolist() == LABELS.tolist()


def test_classes_txt_orders_the_classes_and_names_those_without_images(tmp_path):
    own = load_own_data(str(class_folders(tmp_path, names=["cow", "", "dodo", "bee", "ant"])))
    assert own.data.y.tolist() == [3, 3, 2, 2, 0, 0]
    assert own.classes == ("cow", "dodo", "bee", "ant")
    assert own.num_classes == 4


def test_grey_images_and_jpegs_are_read_as_rgb(tmp_path):
    root = class_folders(tmp_path)
    (root / "ant" / "0.png").write_bytes(image(np.full((4, 4), 51, np.uint8)))
    (root / "cow" / "9.JPEG").write_bytes(image(np.full((4, 4), 51, np.uint8), "JPEG"))
    me = mine(root, FOLDERS)
    for k in (0, 6):
        torch.testing.assert_close(me.data.x[k], torch.full((3, 4, 4), 0.2), atol=0.01, rtol=0)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables(form, tmp_path):
    me = mine(table(tmp_path, form), TABLES)
    assert me.data.x.tolist() == [[1.5, 255], [2, 0], [-3, 7], [4, 1]]
    assert me.data.y.tolist() == [0, 1, 2, 1]
    other = table(tmp_path, form, label=None, sick=[True, False, True, True])
    assert mine(other, TABLES, label_column="sick").data.y.tolist() == [1, 0, 1, 1]


def test_small_numbers_in_a_table_are_no_pixels(tmp_path):
    narrow = pa.array([255, 0, 7, 1], pa.uint8())
    path = table(tmp_path, "parquet", a=narrow, b=None)
    assert mine(path, Task((1,), 3, features=("a",))).data.x.flatten().tolist() == [255, 0, 7, 1]


def as_arrays():
    return PIXELS, LABELS


def as_tensors():
    return torch.tensor(PIXELS).float().requires_grad_(), torch.tensor(LABELS)


def test_functions():
    pixels = mine(f"{__name__}:as_arrays").data.x
    np.testing.assert_array_equal(pixels.numpy(), PIXELS.astype(np.float32) / 255)
    floats = mine(f"{__name__}:as_tensors", Task((3, 4, 4), 3)).data.x
    np.testing.assert_array_equal(floats.numpy(), PIXELS.astype(np.float32))
    assert not floats.requires_grad


def test_what_a_client_says_of_itself(tmp_path):
    """Nothing about private data but its amount; epochs are the run's, noise is none."""
    me = mine(npz(tmp_path))
    assert (me.info.client_id, me.info.num_examples) == ("node-42", 6)
    assert (me.info.label_histogram, me.info.local_epochs, me.info.noise_sigma) == (None,) * 3
    assert (me.local_epochs, me.noise_sigma, me.secret_noise) == (4, 0, False)
    me = mine(npz(tmp_path), client_id="hospital", local_epochs=9, noise_sigma=0.1)
    assert (me.info.client_id, me.local_epochs) == ("hospital", 9)
    assert (me.noise_sigma, me.secret_noise) == (0.1, True)
    assert (me.info.local_epochs, me.info.noise_sigma) == (None, None)


def test_own_data_wins_over_a_partition(tmp_path):
    me = mine(npz(tmp_path), partition_id=0, num_partitions=2)
    assert len(me.data) == 6


def test_mended_data_are_read_again(tmp_path):
    with pytest.raises(DataError):
        mine(npz(tmp_path, y=LABELS - 1))
    assert len(mine(npz(tmp_path)).data) == 6
    assert len(mine(npz(tmp_path, x=PIXELS[:4], y=LABELS[:4])).data) == 4


def csv_cache(path):
    return path.with_name(f".{path.name}{CACHE}")


def no_decoding(*_, **__):
    pytest.fail("decoded again")


def test_a_folder_is_decoded_once(tmp_path, monkeypatch):
    root = class_folders(tmp_path)
    first = mine(root, FOLDERS).data
    assert stat.S_IMODE((root / CACHE).stat().st_mode) == 0o600
    assert [p.name for p in root.iterdir() if p.is_file()] == [CACHE]  # nothing left beside it
    fresh_process()
    monkeypatch.setattr(own_data, "decode_images", no_decoding)
    moved = root.rename(tmp_path / "elsewhere")
    second = mine(moved, FOLDERS).data
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.y, second.y)


def test_a_csv_file_is_decoded_once(tmp_path, monkeypatch):
    path = table(tmp_path)
    first = mine(path, TABLES).data
    assert csv_cache(path).exists()
    fresh_process()
    with monkeypatch.context() as patch:
        patch.setattr(own_data, "read_table", no_decoding)
        assert torch.equal(mine(path, TABLES).data.x, first.x)
    with pytest.raises(DataError, match="needs one column 'a b'"):
        mine(path, TABLES, label_column="a b")
    other = Task((2,), 256, features=("b", "label"))
    assert mine(path, other, label_column="a").data.y.tolist() == [255, 0, 7, 1]


def replaced(root):
    (root / "ant" / "0.png").write_bytes(image(np.zeros((4, 4, 3), np.uint8)))


def touched(root):
    os.utime(root / "ant" / "0.png", ns=(0, 0))


def added(root):
    (root / "ant" / "00.png").write_bytes(image(np.zeros((4, 4, 3), np.uint8)))


def renamed(root):
    (root / "ant").rename(root / "dog")


def listed(root):
    (root / "classes.txt").write_text("cow\nbee\nant\n")


def spoiled(root):
    (root / CACHE).write_bytes(b"junk")


@pytest.mark.parametrize("change", [replaced, touched, added, renamed, listed, spoiled])
def test_changed_files_are_decoded_anew(change, tmp_path, monkeypatch):
    root = class_folders(tmp_path)
    load_own_data(str(root))
    change(root)
    fresh_process()
    calls = []
    decode = own_data.decode_images
    monkeypatch.setattr(own_data, "decode_images", lambda *a: calls.append(1) or decode(*a))
    cached = load_own_data(str(root))
    assert calls
    (root / CACHE).unlink()
    fresh_process()
    again = load_own_data(str(root))
    assert torch.equal(cached.data.y, again.data.y)
    assert cached.classes == again.classes


def test_a_read_only_folder_costs_nothing_but_time(tmp_path, monkeypatch):
    root = class_folders(tmp_path)

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(decode_cache.tempfile, "mkstemp", denied)  # root may write everywhere
    assert len(mine(root, FOLDERS).data) == 6
    assert not (root / CACHE).exists()


@pytest.mark.parametrize("how", ["in place", "another file"])
def test_a_change_that_keeps_size_and_time_is_seen(how, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("b,a,label\n1,2,0\n3,4,1\n")
    state = path.stat()
    assert mine(path, TABLES).data.x[0].tolist() == [1, 2]
    new = path if how == "in place" else tmp_path / "new.csv"
    new.write_text("b,a,label\n9,2,0\n3,4,1\n")
    os.utime(new, ns=(state.st_atime_ns, state.st_mtime_ns))
    new.rename(path)
    fresh_process()
    assert mine(path, TABLES).data.x[0].tolist() == [9, 2]
