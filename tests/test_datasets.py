"""Every data set: sizes, ranges, splits, and what is said when it cannot be read."""

import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from common.config import DataConfig
from common.datasets import DataError, load_splits


def config(**keys):
    return DataConfig(**keys)


def test_digits_ship_with_a_dependency():
    splits = load_splits(config(), seed=0)
    assert splits.input_shape == (1, 8, 8)
    assert splits.num_classes == 10
    assert (len(splits.train), len(splits.val), len(splits.test)) == (1198, 299, 300)
    assert splits.train.x.dtype == torch.float32
    assert float(splits.train.x.max()) == 1


def test_the_seed_splits_validation_and_test():
    a, b, c = (load_splits(config(), seed=s) for s in (0, 1, 0))
    assert not torch.equal(a.val.y, b.val.y)
    assert torch.equal(a.val.y, c.val.y)
    pooled = [torch.cat([s.val.x, s.test.x]).sum() for s in (a, b)]
    torch.testing.assert_close(*pooled)


def test_validation_size():
    splits = load_splits(config(validation_size=100), seed=0)
    assert (len(splits.val), len(splits.test)) == (100, 499)
    with pytest.raises(DataError, match="validation-size = 599: digits holds out 599 examples"):
        load_splits(config(validation_size=599), seed=0)


@pytest.mark.parametrize("name", ["mnist", "fmnist"])
def test_mnist_and_fashion_mnist(name, data_dir):
    splits = load_splits(config(dataset=name, data_dir=data_dir), seed=0)
    assert splits.input_shape == (1, 28, 28)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (60_000, 5_000, 5_000)
    part = splits.train.take(np.arange(50))
    assert part.x.dtype == torch.float32
    assert 0 <= float(part.x.min()) < float(part.x.max()) <= 1
    assert splits.val.x.dtype == torch.float32


def test_cifar10_from_a_zip_of_class_folders(data_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    splits = load_splits(config(dataset="cifar10", data_dir=data_dir), seed=0)
    assert splits.input_shape == (3, 32, 32)
    assert (len(splits.train), len(splits.val), len(splits.test)) == (50_000, 5_000, 5_000)
    assert torch.bincount(splits.train.y).tolist() == [5_000] * 10
    assert len(list((tmp_path / "greedyfed").iterdir())) == 1


def jpeg(colour, size=(8, 8)):
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "PNG")
    return stream.getvalue()


def images(**changes):
    members = {
        "set/train/cat/1.png": jpeg("red"),
        "set/train/dog/1.png": jpeg("blue"),
        "set/train/dog/2.png": jpeg("green"),
        "set/test/cat/1.png": jpeg("red"),
        "set/test/dog/1.png": jpeg("blue"),
        "set/readme.txt": b"no image",
    }
    return members | changes


def as_zip(folder, members):
    with zipfile.ZipFile(folder / "cifar10.zip", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def as_folder(folder, members):
    for name, content in members.items():
        path = folder / name.removeprefix("set/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    load_splits.cache_clear()


@pytest.mark.parametrize("make", [as_zip, as_folder])
def test_class_folders_are_decoded_once(make, tmp_path, monkeypatch):
    make(tmp_path, images())
    splits = load_splits(config(dataset="cifar10", data_dir=str(tmp_path)), seed=0)
    assert splits.train.y.tolist() == [0, 1, 1]
    assert splits.train.x[0, :, 0, 0].tolist() == [255, 0, 0]
    load_splits.cache_clear()
    monkeypatch.setattr("common.cifar10._decode_all", lambda source: pytest.fail("decoded again"))
    again = load_splits(config(dataset="cifar10", data_dir=str(tmp_path)), seed=0)
    assert torch.equal(again.train.x, splits.train.x)


@pytest.mark.parametrize("make", [as_zip, as_folder])
def test_images_that_are_there_are_not_fetched(make, tmp_path):
    """download = true is for what is missing; with it, fetched ones would be 50,000."""
    make(tmp_path, images())
    keys = {"dataset": "cifar10", "data_dir": str(tmp_path), "download": True}
    assert len(load_splits(config(**keys), seed=0).train) == 3
    assert not (tmp_path / "cifar-10-batches-py").exists()


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (images(**{"set/train/dog/2.png": b"junk"}), "set/train/dog/2.png is not a readable image"),
        (images(**{"set/train/dog/2.png": jpeg("red", (9, 9))}), "images differ in size"),
        (images(**{"set/test/cow/1.png": jpeg("red")}), "test class 'cow' has no training images"),
        ({"set/train/cat/1.png": jpeg("red")}, "no images in train/<class>/ and test/<class>/"),
    ],
)
def test_bad_images_are_named(members, words, tmp_path):
    as_zip(tmp_path, members)
    with pytest.raises(DataError) as error:
        load_splits(config(dataset="cifar10", data_dir=str(tmp_path)), seed=0)
    assert words in str(error.value)


def test_missing_files_are_named(tmp_path):
    for name, words in [
        ("mnist", "mnist is not there in torchvision's layout"),
        ("cifar10", "holds neither cifar-10-batches-py, nor cifar10.zip"),
    ]:
        with pytest.raises(DataError) as error:
            load_splits(config(dataset=name, data_dir=str(tmp_path)), seed=0)
        assert words in str(error.value)
        assert str(tmp_path) in str(error.value)
    (tmp_path / "cifar10.zip").write_bytes(b"not a zip")
    with pytest.raises(DataError, match="cannot be opened"):
        load_splits(config(dataset="cifar10", data_dir=str(tmp_path)), seed=0)
    with pytest.raises(DataError, match="no such folder"):
        load_splits(config(dataset="fmnist", data_dir=str(tmp_path / "nowhere")), seed=0)


@pytest.mark.usefixtures("dead_proxies")
@pytest.mark.parametrize("name", ["mnist", "fmnist", "cifar10"])
def test_a_download_that_fails_is_named(name, tmp_path):
    """Not as files that cannot be read, and without the advice to set download = true."""
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(DataError) as error:
            load_splits(config(dataset=name, data_dir=str(folder), download=True), seed=0)
        told = str(error.value)
        assert told.startswith(f"data-dir = '{folder}': {name} cannot be downloaded: ")
        assert "refused" in told
        assert told.endswith("; check the network or the proxy, or put the files there")
        assert "download = true" not in told
        assert "\n" not in told


@pytest.mark.usefixtures("dead_proxies")
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_folder_that_cannot_take_a_download(name, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/in': cannot be used: .*; give a folder that can"):
        load_splits(config(dataset=name, data_dir=f"{tmp_path}/file/in", download=True), seed=0)


def test_synthetic_belongs_to_its_clients():
    splits = load_splits(config(dataset="synthetic", num_clients=12), seed=0)
    assert splits.input_shape == (60,)
    assert set(splits.owner.tolist()) == set(range(12))
    assert len(splits.owner) == len(splits.train)
    held_out = len(splits.val) + len(splits.test)
    assert held_out == pytest.approx(len(splits.train) / 4, rel=0.05)


def test_synthetic_alpha_and_beta_spread_the_clients():
    """β spreads the inputs' means between clients, α the labels' distributions."""

    def spread(**keys):
        splits = load_splits(config(dataset="synthetic", num_clients=40, **keys), seed=0)
        clients = [splits.train.take(np.flatnonzero(splits.owner == k)) for k in range(40)]
        return np.std([float(c.x.mean()) for c in clients])

    assert spread(synthetic_beta=9.0) > 2 * spread(synthetic_beta=0.0)


def test_synthetic_needs_the_number_of_clients():
    with pytest.raises(DataError, match="set num-clients"):
        load_splits(config(dataset="synthetic"), seed=0)
