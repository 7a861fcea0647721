"""Everything that can be wrong with one's own data: one line with path, rule and remedy."""

import sys

import numpy as np
import pytest

from client_app.data import ClientError, my_data
from common.datasets import DataError
from common.task import Task
from tests.own_files import (
    CONFIG,
    LABELS,
    PIXELS,
    TABLES,
    TASK,
    class_folders,
    fresh_process,
    image,
    mine,
    npz,
    table,
)


@pytest.fixture(autouse=True)
def _every_process_reads_anew():
    fresh_process()


def _fails():
    raise KeyError("a patient's name")


def fails():
    return _fails()


def returns_one():
    return (PIXELS,)


def returns_text():
    return np.array([["a"]]), np.array([0])


def junk(name):
    def make(folder):
        (folder / name).write_bytes(b"junk, and a patient's name\n1,2,3\n")
        return folder / name

    return make


def broken_image(folder):
    root = class_folders(folder)
    (root / "bee" / "2.png").write_bytes(image(PIXELS[0].transpose(1, 2, 0))[:60])
    return root


def other_size(folder):
    root = class_folders(folder)
    (root / "cow" / "5.png").write_bytes(image(np.zeros((5, 4, 3), np.uint8)))
    return root


def bad(k, value):
    x = PIXELS.astype(np.float64)
    x[k, 0, 0, 0] = value
    return x


def npy(folder):
    np.save(folder / "x.npy", PIXELS)
    return (folder / "x.npy").rename(folder / "x.npz")


def labels_with(value):
    return np.array([0, 0, 1, 1, 2, value])


BAD = {
    "missing": (lambda f: f / "no.npz", TASK, "no.npz': not found (from /", "; give a .npz, .csv"),
    "suffix": (
        junk("x.mat"),
        TASK,
        "x.mat': is of no known form; give a .npz, .csv or .parquet file, a folder",
    ),
    "no archive": (junk("x.npz"), TASK, "is not a .npz file of plain arrays x and y; write it by"),
    "a .npy": (npy, TASK, "is not a .npz file of plain arrays x and y"),
    "no y": (lambda f: npz(f, y=None), TASK, "needs the arrays x and y, and holds 'x'; give"),
    "objects": (
        lambda f: npz(f, x=np.array([{}] * 6)),
        TASK,
        "array 'x' is of Python objects, which are not read from files; save x.astype(float)",
    ),
    "dates": (
        lambda f: npz(f, y=np.array(["2020-01-02"] * 6, "datetime64[D]")),
        TASK,
        "y is of type datetime64[D], must be whole numbers from 0, or texts; number the classes",
    ),
    "complex": (lambda f: npz(f, x=PIXELS * 1j), TASK, "x is of type complex128"),
    "empty": (
        lambda f: npz(f, x=PIXELS[:0], y=LABELS[:0]),
        TASK,
        "x has shape (0, 3, 4, 4), must be (examples, …) and not empty; fill it",
    ),
    "one axis": (lambda f: npz(f, x=LABELS), TASK, "x has shape (6,), must be (examples, …)"),
    "lengths": (lambda f: npz(f, y=LABELS[:5]), TASK, "y has shape (5,), must be (6,); label"),
    "one-hot": (
        lambda f: npz(f, y=np.eye(6)),
        TASK,
        "y has shape (6, 6), must be (examples,); give each example one label, by y.argmax(axis=1)",
    ),
    "half": (
        lambda f: npz(f, y=labels_with(0.5)),
        TASK,
        "label in row 6 of the data (counted",
    ),
    "negative": (
        lambda f: npz(f, y=labels_with(-1)),
        TASK,
        "whole number from 0; number the classes",
    ),
    "huge": (
        lambda f: npz(f, y=labels_with(1e300)),
        TASK,
        "label in row 6 of the data (counted",
    ),
    "no label": (
        lambda f: npz(f, y=labels_with(np.nan)),
        TASK,
        "1 of 6 labels missing, first in row 6",
    ),
    "nan": (
        lambda f: npz(f, x=bad(1, np.nan)),
        TASK,
        "x misses 1 of 6 values, first in row 2",
    ),
    "inf": (lambda f: npz(f, x=bad(1, -np.inf)), TASK, "x holds Inf, first in row 2 of the data"),
    "overflow": (
        lambda f: npz(f, x=bad(1, 1e300)),
        TASK,
        "x holds numbers beyond float32, 3.4e+38, first in row 2 of the data (counted from 1)",
    ),
    "shape": (
        npz,
        Task((4, 4, 3), 3),
        "an example has shape (3, 4, 4), the server's have (4, 4, 3); convert the examples",
    ),
    "class": (
        npz,
        Task((3, 4, 4), 2, "pixels"),
        "the server has no class '2', its classes are '0', '1'; rename the class, or leave",
    ),
    "no images": (lambda f: f, TASK, "holds no images <class>/<image>; give the folder above them"),
    "broken image": (broken_image, TASK, "bee/2.png is not a readable image; mend or remove it"),
    "sizes": (other_size, TASK, "images differ in size, cow/5.png first; resize them to one"),
    "not listed": (
        lambda f: class_folders(f, names=["ant", "bee", "dog"]),
        TASK,
        "folder 'cow' is not in classes.txt; add or rename the class",
    ),
    "listed twice": (
        lambda f: class_folders(f, names=["ant", "bee", "cow", "ant"]),
        TASK,
        "classes.txt names a class twice; remove one of the lines",
    ),
    "bad csv": (
        junk("x.csv"),
        TABLES,
        "row 1 of the data (counted from 1) has 3 fields, the header 2; write it anew",
    ),
    "bad parquet": (junk("x.parquet"), TABLES, "is not readable as Parquet; write it anew"),
    "no label column": (
        lambda f: table(f, label=None),
        TABLES,
        "needs one column 'label' of labels beside its features, and has 'b', 'a'; name the label",
    ),
    "only labels": (
        lambda f: table(f, a=None, b=None),
        TABLES,
        "no features beside 'label'; add",
    ),
    "text column": (
        lambda f: table(f, a=["w", "x", "y", "z"]),
        TABLES,
        "column 'a' is not numeric; encode it as numbers or remove it",
    ),
    "missing value": (
        lambda f: table(f, a=[1, None, 2, None]),
        TABLES,
        "column 'a' misses 2 of 4 values, first in row 2 of the data (counted from 1); fill",
    ),
    "missing label": (
        lambda f: table(f, "parquet", label=[1, None, 2, 0]),
        TABLES,
        "1 of 4 labels missing, first in row 2 of the data (counted from 1); write a word such as",
    ),
    "columns": (
        lambda f: npz(f, x=PIXELS.reshape(6, 48).astype(float)),
        Task((47,), 3),
        "an example has shape (48,), the server's have (47,); convert",
    ),
    "no module": (lambda f: "no.such:data", TASK, "cannot be imported: No module named 'no'; mend"),
    "no function": (lambda f: f"{__name__}:nothing", TASK, "has no attribute 'nothing'; mend"),
    "raises": (
        lambda f: f"{__name__}:fails",
        TASK,
        "must return arrays (x, y), but raised KeyError; call it in Python to see where",
    ),
    "one array": (lambda f: f"{__name__}:returns_one", TASK, "returned a tuple of 1; return x"),
    "text array": (lambda f: f"{__name__}:returns_text", TASK, "x is of type <U1"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_are_one_line_with_path_rule_and_remedy(case, tmp_path):
    make, task, *words = BAD[case]
    path = make(tmp_path)
    with pytest.raises(DataError) as error:
        mine(path, task)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"data-path = {str(path)!r}: ")
    assert all(w in line for w in words), line
    assert "; " in line  # the remedy follows
    assert "patient" not in line  # nor anything else of the content


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    path = npz(tmp_path)

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(np, "load", denied)  # root may read everything
    with pytest.raises(DataError, match=r"cannot be read: .* Permission denied; mend its perm"):
        mine(path)


def test_the_missing_extra_is_named(tmp_path, monkeypatch):
    path = table(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        DataError, match=r"need the extra `tables`; pip install 'greedyfed\[tables\]'"
    ):
        mine(path, TABLES)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"data-path": ""}, "data-path = '': must be a text, not empty; mend --node-config"),
        ({"data-path": 3}, "data-path = 3: must be a text"),
        ({"data-path": "x.csv", "label-column": 1}, "label-column = 1: must be a text"),
        ({}, "data-path is missing: with dataset = 'own' each client has its own examples; give"),
        ({"partition-id": 0, "num-partitions": 2}, "data-path is missing"),
        (
            {"noise_sigma": 5.0},
            "noise_sigma: unknown key of node_config; did you mean 'noise-sigma",
        ),
        ({"client_id": "a"}, "client_id: unknown key of node_config; did you mean 'client-id'?"),
        ({"Data-Path": "x"}, "did you mean 'data-path'?"),
        ({"local-epoch": 3}, "did you mean 'local-epochs'?"),
    ],
)
def test_bad_node_configs_are_named(keys, words):
    with pytest.raises(ClientError) as error:
        my_data(keys, CONFIG, TASK, 1)
    assert words in str(error.value)
