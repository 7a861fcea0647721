"""What Python functions may return: frames, tensors, arrays; and what is said of all else."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from scipy import sparse
from torch.utils.data import TensorDataset

from common.datasets import DataError
from common.own_data import load_own_data
from common.task import Task
from tests.own_files import fresh_process, mine, npz

FRAME = pd.DataFrame({"age": [30.0, 40, 50], "weight": [70, 80, 90], "name": [*"pqr"]})
X, Y = np.arange(6.0).reshape(3, 2), np.array([0, 1, 0])
TEXTS = ["ill", "well", "ill"]


@pytest.fixture(autouse=True)
def _every_process_reads_anew():
    fresh_process()


returned = None


def function():
    if isinstance(returned, type):
        raise returned("a patient's name")
    return returned


def own(value):
    global returned
    returned = value
    fresh_process()
    return load_own_data(f"{__name__}:function")


@pytest.mark.parametrize("kind", [lambda f: f, pa.Table.from_pandas], ids=["pandas", "arrow"])
@pytest.mark.parametrize("order", [["age", "weight"], ["weight", "age"], ["name", "weight", "age"]])
def test_columns_of_frames_go_by_name(order, kind):
    own((kind(FRAME[order]), Y))
    data = mine(f"{__name__}:function", Task((2,), 2, features=("age", "weight"))).data
    assert data.x.tolist() == [[30, 70], [40, 80], [50, 90]]


def test_frames_without_names_and_with_bad_ones():
    assert own((pd.DataFrame(X), Y)).features == ()
    both = {"x": FRAME[["age"]], "y": Y, "feature_names": ["age"]}
    mixed = FRAME[["age"]].set_axis([("a", 1)], axis=1), Y
    twice = FRAME[["age", "age"]], Y
    for bad, words in ((both, "leave feature_names out"), (mixed, "no texts"), (twice, "one name")):
        with pytest.raises(DataError, match=words):
            own(bad)


def test_a_missing_cell_of_a_frame_is_placed():
    ages = pd.array([1, None, 3], dtype="Int64")
    with pytest.raises(DataError, match="column 'age' misses 1 of 3 values, first in row 2"):
        own((pd.DataFrame({"age": ages}), Y)).check_server()


LABELS = {
    "series": pd.Series(TEXTS),
    "categories": pd.Series(TEXTS, dtype="category"),
    "array": np.array(TEXTS),
    "objects": np.array(TEXTS, object),
    "list": TEXTS,
}


@pytest.mark.parametrize("kind", LABELS)
def test_text_labels(kind):
    found = own((X, LABELS[kind]))
    assert (found.classes, found.data.y.tolist()) == (("ill", "well"), [0, 1, 0])


@pytest.mark.parametrize("nothing", [None, np.nan, pd.NA])
def test_a_missing_label(nothing):
    for labels in (["ill", nothing, "well"], [0, nothing, 1]):
        with pytest.raises(DataError, match=r"1 of 3 labels missing, first in row 2 of the data"):
            own((X, pd.Series(labels, dtype=object)))


def test_arrays_that_are_taken():
    assert own((torch.tensor(X, dtype=torch.bfloat16), Y)).data.x.tolist() == X.tolist()
    assert own((np.ma.masked_array(X), np.ma.masked_array(Y))).data.x.tolist() == X.tolist()
    names = {"feature_names": np.array(["a", "b"], object), "class_names": pd.Index(["c", "d"])}
    found = own({"x": X, "y": Y} | names)
    assert (found.features, found.classes) == (("a", "b"), ("c", "d"))


MASK = [[False, True], [False, False], [False, False]]
BAD = {
    "nothing": (None, "and returned NoneType; return both"),
    "three": ((X, Y, Y), "returned a tuple of 3; return x and y alone"),
    "data set": (TensorDataset(torch.tensor(X), torch.tensor(Y)), "and returned TensorDataset;"),
    "sparse": ((sparse.csr_matrix(X), Y), "x is sparse, a csr_matrix; give x.toarray()"),
    "sparse tensor": ((torch.tensor(X).to_sparse(), Y), "x is a sparse tensor; give x.to_dense()"),
    "ragged": (([[1], [2, 3], [4]], Y), "x, a list, is no array: its rows may be of other lengths"),
    "masked x": ((np.ma.masked_array(X, MASK), Y), "1 of 6 cells of x are masked; fill them"),
    "masked y": ((X, np.ma.masked_array(Y, [0, 1, 0])), "1 of 3 cells of y are masked; fill"),
    "one axis": ((Y, Y), "x has shape (3,), must be (examples, …); if these are one feature, give"),
    "no features": ((X[:, :0], Y), "x has shape (3, 0), must be (examples, …) and not empty; fill"),
    "a scalar": ((1, Y), "x has shape (), must be (examples, …); give an array of all examples"),
    "mixed labels": ((X, np.array(["a", 1, 2], object)), "must be whole numbers from 0, or texts"),
    "SystemExit": (SystemExit, "but raised SystemExit; call it in Python to see where"),
    "KeyError": (KeyError, "but raised KeyError; call it"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_else_is_returned_is_said(case):
    value, words = BAD[case]
    with pytest.raises(DataError) as error:
        own(value)
    assert words in str(error.value)
    assert "; " in str(error.value)
    assert "patient" not in str(error.value)


def test_a_name_that_the_module_lacks():
    with pytest.raises(DataError, match="mend the name of the function"):
        load_own_data(f"{__name__}:nope")


@pytest.mark.parametrize("name", ["feature_names", "class_names", "y"])
def test_objects_in_an_npz_are_named(name, tmp_path):
    path = npz(tmp_path, X, **{"y": Y, name: np.array(TEXTS, object)})
    with pytest.raises(DataError, match=f"array '{name}' is of Python objects, .*; save "):
        load_own_data(str(path))
