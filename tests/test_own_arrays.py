"""Arrays with names, and what a server refuses to validate on."""

import numpy as np
import pytest
import torch

from common.config import RunConfig
from common.datasets import DataError, load_splits
from common.own_data import load_own_data
from tests.own_files import LABELS, PIXELS, class_folders, fresh_process, npz, table

NUMBERS = np.random.default_rng(0).random((400, 3))


@pytest.fixture(autouse=True)
def _every_process_reads_anew():
    fresh_process()


def served(path, **keys):
    load_splits.cache_clear()
    config = RunConfig.from_flat({"dataset": "own", "data-dir": str(path), **keys})
    return load_splits(config.data, 0)


def labelled(folder, y, **more):
    return npz(folder, NUMBERS[: len(y)], np.asarray(y), **more)


def as_mapping():
    return {
        "x": torch.tensor([[1, 2], [3, 4]]),
        "y": [0, 2],
        "feature_names": ["age", "dose"],
        "class_names": ["ill", "well", "dead"],
    }


def test_names_from_a_function(tmp_path):
    own = load_own_data(f"{__name__}:as_mapping")
    assert own.features == ("age", "dose")
    assert own.classes == ("ill", "well", "dead")
    assert (own.num_classes, own.inputs) == (3, "whole")
    assert own.data.x.tolist() == [[1, 2], [3, 4]]


def test_arrays_of_other_names_are_said_to_be_left_out(tmp_path):
    own = load_own_data(str(npz(tmp_path, groups=np.zeros(3), ids=np.arange(6))))
    (note,) = own.notes
    assert note.startswith("2 arrays other than ")
    assert note.endswith("left out: 'groups', 'ids'")


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64"])
def test_a_servers_whole_numbers_stay_as_they_are(dtype, tmp_path):
    ids = np.arange(24).reshape(6, 4).astype(dtype) + 100
    if dtype == "int64":
        ids = ids + 2**40
    splits = served(npz(tmp_path, ids))
    assert splits.inputs == "whole"
    rows = torch.cat([splits.val.x, splits.test.x])
    assert rows.dtype == torch.int64
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, ids.tolist()))


KINDS = {
    "uint8 images": (PIXELS, "pixels"),
    "fractions": (PIXELS / 255, "pixels"),
    "0 to 255": (PIXELS * 1.0, "numbers"),
    "standardised": (PIXELS / 60 - 2, "numbers"),
    "flags": (PIXELS > 99, "pixels"),
    "vectors within 0 to 1": (NUMBERS[:6], "numbers"),
    "two channels": (np.random.default_rng(0).random((6, 2, 4, 4)), "numbers"),
}


@pytest.mark.parametrize("case", KINDS)
def test_what_a_server_announces(case, tmp_path):
    x, inputs = KINDS[case]
    assert served(npz(tmp_path, x)).inputs == inputs


BAD_NAMES = {
    "too few classes": ({"class_names": np.array(["a", "b"])}, "class_names makes 2 classes, from"),
    "num_classes": (
        {"num_classes": 2},
        "num_classes makes 2 classes, from 0, but there is a label",
    ),
    "both": (
        {"class_names": np.array([*"abc"]), "num_classes": 4},
        "class_names has 3 names, num_classes is 4; leave num_classes out",
    ),
    "half a class": (
        {"num_classes": 3.5},
        "must be one whole number from 1 to 2147483647; mend",
    ),
    "classes of a list": ({"num_classes": [3, 3]}, "num_classes must be one whole number"),
    "numbers as names": ({"class_names": np.arange(3)}, "class_names must be a list of texts;"),
    "twice": ({"class_names": np.array(["a", " a", "b"])}, "class_names holds 'a' twice; give"),
    "empty": ({"class_names": np.array(["a", "b", " "])}, "class_names holds an empty name; give"),
    "features of images": (
        {"feature_names": np.array([*"abc"])},
        "feature_names has 3 names, an example has shape (3, 4, 4); name each column of x",
    ),
    "objects": (
        {"class_names": np.array(["a", None, "b"])},
        "array 'class_names' is of Python objects, which are not read from files; save np.array(",
    ),
}


@pytest.mark.parametrize("case", BAD_NAMES)
def test_names_that_do_not_fit(case, tmp_path):
    more, words = BAD_NAMES[case]
    with pytest.raises(DataError) as error:
        load_own_data(str(npz(tmp_path, **more)))
    assert words in str(error.value)


ONE_CLASS = {
    "0": lambda f: labelled(f, [0] * 20),
    "3": lambda f: labelled(f, [3] * 20, num_classes=5),
    "ant": lambda f: class_folders(f, ("ant", "ant", "ant"), names=["ant", "bee"]),
    "ill": lambda f: table(f, label=["ill"] * 4),
}


@pytest.mark.parametrize("name", ONE_CLASS)
def test_one_class_is_refused(name, tmp_path):
    with pytest.raises(DataError, match=rf"all \d+ examples are of class '{name}', which every"):
        served(ONE_CLASS[name](tmp_path))


def test_a_validation_part_of_one_class_is_refused(tmp_path):
    path = labelled(tmp_path, [0, 1] + [0] * 18)
    with pytest.raises(DataError, match="validation part, 1 of 20 examples, has one class only;"):
        served(path, **{"validation-size": 1})
    both = labelled(tmp_path, [0, 1] * 10)
    assert len(set(served(both).val.y.tolist())) == 2


MEASURED = {
    "ages": np.random.default_rng(0).integers(0, 311, 300),
    "a few of very many": [0, 1000] * 50,
    "each its own": np.arange(60),
    "two of each": np.arange(60).repeat(2),
}


@pytest.mark.parametrize("case", MEASURED)
def test_labels_that_look_like_measured_numbers_are_refused(case, tmp_path):
    y = np.asarray(MEASURED[case])
    with pytest.raises(DataError, match="as measured numbers or free texts do; give classes, or"):
        served(labelled(tmp_path, y))
    classes = int(y.max()) + 1
    for more in ({"num_classes": classes}, {"class_names": np.arange(classes).astype(str)}):
        assert served(labelled(tmp_path, y, **more)).num_classes == classes


def test_free_text_is_no_class(tmp_path):
    texts = [f"patient {k}" for k in range(40)]
    path = table(tmp_path, a=range(40), b=None, label=texts)
    with pytest.raises(DataError, match="as measured numbers or free texts do") as error:
        served(path)
    assert "patient" not in str(error.value)


CLASSES = {
    "many": np.arange(100).repeat(4),
    "few, absent": [0, 19] * 10,
    "three of each": np.arange(60).repeat(3),
    "a quarter absent": np.delete(np.arange(40), range(5, 15)).repeat(5),
}


@pytest.mark.parametrize("case", CLASSES)
def test_labels_that_look_like_classes_are_taken(case, tmp_path):
    y = np.asarray(CLASSES[case])
    assert served(labelled(tmp_path, y)).num_classes == int(y.max()) + 1


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros((6, 12), np.uint8), "uint8 of shape (12,), pixels must be (channels, height,"),
        (np.zeros((6, 9, 9), np.uint8), "uint8 of shape (9, 9), pixels must be"),
        (np.zeros((6, 9, 9, 3), np.uint8), "transpose x, by x.transpose(0, 3, 1, 2)"),
        (np.zeros((6, 9, 9, 1), np.uint8), "transpose x, by x.transpose(0, 3, 1, 2)"),
        (np.full((6, 2), 2**63, np.uint64), "x holds numbers from 2^63; save it as float32"),
    ],
)
def test_whole_numbers_of_which_nobody_knows_what_they_are(x, words, tmp_path):
    with pytest.raises(DataError) as error:
        served(npz(tmp_path, x, LABELS))
    assert words in str(error.value)
