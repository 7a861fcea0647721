"""Clients' data agree with the server's by the names of features and classes, and in their kind.

Everything goes through a message's task, as a server announces it.
"""

import itertools
import logging

import numpy as np
import pytest
import torch
from torch import nn

from client_app.agreement import agreed
from common.config import RunConfig
from common.datasets import DataError, Dataset, load_splits
from common.fields import BadReplyError
from common.own_data import load_own_data
from common.task import Task, decode_task, encode_task
from server_app.server_model import ServerModel
from tests.own_files import LABELS, PIXELS, class_folders, fresh_process, mine, npz, table

NAMES = ["age", "dose", "weight"]


@pytest.fixture(autouse=True)
def _every_process_reads_anew():
    fresh_process()


def announced(path):
    """The task of a server with this data, as it arrives."""
    splits = load_splits(RunConfig.from_flat({"dataset": "own", "data-dir": str(path)}).data, 0)
    task = Task(
        splits.input_shape,
        splits.num_classes,
        splits.inputs,
        splits.features,
        splits.classes,
        unseen=splits.unseen,
    )
    assert decode_task(encode_task(task)) == task
    return task


def folder(tmp_path, name):
    (tmp_path / name).mkdir()
    return tmp_path / name


def columns(names, seed=0, n=12):
    """A table of these columns, each of values that only its name decides."""
    rng = np.random.default_rng(seed)
    values = {name: rng.normal(NAMES.index(name) * 10, 1, n).round(3) for name in sorted(names)}
    return {name: values[name] for name in names} | {"label": np.arange(n) % 2}


def written(tmp_path, name, names, form):
    cells = columns(names)
    if form != "npz":
        return table(folder(tmp_path, name), form, b=None, a=None, **cells)
    x = np.stack([cells[c] for c in names], axis=1)
    return npz(folder(tmp_path, name), x, cells["label"], feature_names=np.array(names))


@pytest.mark.parametrize("order", [*itertools.permutations(NAMES)], ids="-".join)
@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
def test_features_come_in_the_servers_order_whatever_the_files(order, form, tmp_path):
    task = announced(written(tmp_path, "server", NAMES, "csv"))
    me = mine(written(tmp_path, "client", list(order), form), task)
    cells = columns(NAMES)
    torch.testing.assert_close(
        me.data.x, torch.tensor(np.stack([cells[n] for n in NAMES], axis=1)).float()
    )
    assert me.data.y.tolist() == cells["label"].tolist()


@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
def test_names_agree_but_for_white_space_and_the_form_of_accents(form, tmp_path):
    """macOS writes é as e and an accent."""
    task = Task((2,), 2, features=("gr\u00f6\u00dfe", "age"))
    given = [" age ", "gro\u0308\u00dfe"]
    x, y = np.array([[1.0, 2], [3, 4]]), np.array([0, 1])
    if form == "npz":
        path = npz(tmp_path, x, y, feature_names=np.array(given))
    else:
        cells = {given[0]: x[:, 0], given[1]: x[:, 1], " label": y}
        path = table(tmp_path, form, a=None, b=None, label=None, **cells)
    assert mine(path, task).data.x.tolist() == [[2, 1], [4, 3]]


def test_extra_features_are_left_out_and_said_once(tmp_path, caplog):
    task = announced(written(tmp_path, "server", NAMES[:2], "csv"))
    path = written(tmp_path, "client", NAMES[::-1], "csv")
    with caplog.at_level(logging.WARNING, "greedyfed.client"):
        first, second = mine(path, task), mine(path, task)
    cells = columns(NAMES)
    assert first.data.x[:, 0].tolist() == pytest.approx(cells["age"].tolist(), rel=1e-6)
    assert first.data is second.data
    (said,) = caplog.messages
    assert said.endswith("1 feature left out that the server does not have: 'weight'")


UNNAMED = {"feature_names": None}
REFUSED_FEATURES = {
    "one missing": (NAMES, NAMES[:2], "lacks the server's feature 'weight'; add or rename"),
    "two missing": (NAMES, NAMES[:1], "lacks the server's features 'dose', 'weight'; add"),
    "renamed": (NAMES[:2], ["age", "weight"], "lacks the server's feature 'dose'; add"),
    "client unnamed": (
        NAMES,
        None,
        "the features have no names, the server's are 'age', 'dose', 'weight'; save feature_names",
    ),
    "server unnamed": (
        None,
        NAMES,
        "the features are named 'age', 'dose', 'weight', the server's have no names; save "
        "feature_names in the server's .npz",
    ),
}


@pytest.mark.parametrize("case", REFUSED_FEATURES)
def test_other_features_stay_out(case, tmp_path):
    servers, clients, words = REFUSED_FEATURES[case]

    def make(name, names):
        if names:
            return written(tmp_path, name, names, "csv")
        cells = columns(NAMES)
        x = np.stack([cells[c] for c in NAMES], axis=1)
        return npz(folder(tmp_path, name), x, cells["label"])

    task = announced(make("server", servers))
    with pytest.raises(DataError) as error:
        mine(make("client", clients), task)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_long_lists_of_names_are_cut():
    task = Task((300,), 2, features=tuple(f"gene {k}" for k in range(300)))
    own = load_own_data(f"{__name__}:no_names")
    with pytest.raises(DataError) as error:
        agreed(own, task)
    assert len(str(error.value)) < 400
    assert "… (300 in all)" in str(error.value)


def no_names():
    return np.zeros((4, 300)), np.arange(4) % 2


def classes_in(form, folder, names):
    """Data of one's own whose labels 0, 0, 1, 1, 2, 2 are named so."""
    if form == "folder":
        return class_folders(folder, names)
    if form == "npz":
        return npz(folder, class_names=np.array(names))
    x = {f"p{k}": column for k, column in enumerate(PIXELS.reshape(6, 48).T / 255)}
    return table(folder, form, a=None, b=None, label=[names[k] for k in LABELS], **x)


@pytest.mark.parametrize("forms", [*itertools.product(["folder", "npz"], repeat=2)], ids="-".join)
def test_classes_go_by_name_not_by_place(forms, tmp_path):
    task = announced(classes_in(forms[0], folder(tmp_path, "server"), ["ant", "bee", "cow"]))
    assert task.classes == ("ant", "bee", "cow")
    me = mine(classes_in(forms[1], folder(tmp_path, "client"), ["cow", "ant", "bee"]), task)
    right = {0: 2, 1: 0, 2: 1}  # label of the pixels -> the server's number
    pixels = {
        tuple(p.flatten() / np.float32(255)): right[k] for k, p in zip(LABELS, PIXELS, strict=True)
    }
    for x, y in zip(me.data.x, me.data.y, strict=True):
        assert pixels[tuple(x.flatten().numpy())] == int(y)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_text_labels_are_classes_by_name(form, tmp_path):
    server = classes_in(form, folder(tmp_path, "server"), ["well", "ill", "dead"])
    task = announced(server)
    assert task.classes == ("dead", "ill", "well")
    client = classes_in(form, folder(tmp_path, "client"), ["ill", "well", "well"])
    assert mine(client, task).data.y.tolist() == [1, 1, 2, 2, 2, 2]


def test_a_client_needs_not_have_all_classes(tmp_path):
    task = announced(class_folders(folder(tmp_path, "server")))
    root = class_folders(folder(tmp_path, "client"))
    for name in ("ant", "bee"):
        for path in (root / name).iterdir():
            path.unlink()
        (root / name).rmdir()
    assert mine(root, task).data.y.tolist() == [2, 2]


@pytest.mark.parametrize("count", [2, 10, 12])
def test_folders_named_by_numbers_are_these_numbers(count, tmp_path):
    """11 sorts between 1 and 2 as a text."""
    labels = np.arange(count).repeat(4)
    x = np.zeros((len(labels), 3, 4, 4), np.uint8)
    server = npz(folder(tmp_path, "server"), x, labels)
    names = [str(k) for k in range(count)]
    root = class_folders(tmp_path, names[:2] * 2)
    for k, name in enumerate(names):
        (root / name).mkdir(exist_ok=True)
        for path in (root / names[0]).glob("0.png"):
            (root / name / f"x{k}.png").write_bytes(path.read_bytes())
    data = load_own_data(str(root)).data
    task = announced(server)
    assert sorted(set(mine(root, task).data.y.tolist())) == list(range(count))
    assert sorted(set(data.y.tolist())) == list(range(count))
    assert mine(npz(folder(tmp_path, "client"), x, labels), announced(root)).data.y.equal(
        torch.tensor(labels)
    )


REFUSED_CLASSES = {
    "one unknown": (
        ["ant", "bee", "cow"],
        ["ant", "bee", "dog"],
        "the server has no class 'dog', its classes are 'ant', 'bee', 'cow'; rename the class",
    ),
    "server unnamed": (
        None,
        ["ant", "bee", "cow"],
        "the classes are named 'ant', 'bee', 'cow', the server's are numbers without names; save "
        "class_names in the server's .npz",
    ),
    "client unnamed": (
        ["ant", "bee", "cow"],
        None,
        "the classes are numbers without names, the server's are 'ant', 'bee', 'cow'; save "
        "class_names",
    ),
}


@pytest.mark.parametrize("case", REFUSED_CLASSES)
@pytest.mark.parametrize("form", ["folder", "npz"])
def test_other_classes_stay_out(form, case, tmp_path):
    servers, clients, words = REFUSED_CLASSES[case]

    def make(name, names):
        place = folder(tmp_path, name)
        return classes_in(form, place, names) if names else npz(place)

    task = announced(make("server", servers))
    with pytest.raises(DataError) as error:
        mine(make("client", clients), task)
    assert words in str(error.value)


@pytest.mark.parametrize("labels", [["patient A", "patient B"] * 2, [70_431, 70_432] * 2])
@pytest.mark.parametrize("classes", [("ill", "well"), ()])
def test_what_another_column_than_the_labels_holds_is_not_told(labels, classes, tmp_path):
    path = table(tmp_path, label=labels)
    with pytest.raises(DataError) as error:
        mine(path, Task((2,), 2, features=("a", "b"), classes=classes))
    message = str(error.value).removeprefix(f"data-path = {str(path)!r}")
    assert "patient" not in message
    assert "70" not in message
    assert "; " in message


FLOATS = PIXELS.astype(np.float32)
IDS = np.arange(24).reshape(6, 4)
#: the server's x, the client's x, and what the client's becomes, or what is said.
KINDS = {
    "ids": (IDS, IDS, IDS),
    "narrow ids": (IDS, IDS.astype(np.int16), IDS),
    "uint8 ids": (IDS, IDS.astype(np.uint8), IDS),
    "ids as floats": (IDS, IDS.astype(np.float64), IDS),
    "pixels for whole numbers": (PIXELS.astype(int), PIXELS, PIXELS),
    "no ids": (IDS, IDS / 2, "x is not all whole numbers, as the server's inputs are"),
    "counts for numbers": (IDS / 3, IDS, IDS.astype(np.float32)),
    "too large for numbers": (IDS / 3, IDS + 2**24, "beyond 16777216, more than the float32"),
    "uint8 for numbers": (IDS / 3, IDS.astype(np.uint8), "uint8 of shape (4,), pixels must be"),
    "bool for numbers": (IDS / 3, IDS > 11, (IDS > 11).astype(np.float32)),
    "pixels": (PIXELS, PIXELS, FLOATS / 255),
    "fractions": (PIXELS, FLOATS / 255, FLOATS / 255),
    "uint8 for fractions": (FLOATS / 255, PIXELS, FLOATS / 255),
    "resized fractions": (PIXELS, FLOATS / 255 * 1.1 - 0.05, FLOATS / 255 * 1.1 - 0.05),
    "0 to 255 for pixels": (PIXELS, FLOATS, "x goes beyond 0 to 1, the range of the server's"),
    "whole 0 to 255 for pixels": (PIXELS, PIXELS.astype(int), "x goes beyond 0 to 1"),
    "standardised for pixels": (PIXELS, FLOATS / 60 - 2, "x goes beyond 0 to 1"),
    "0 to 255 on both": (FLOATS, FLOATS, FLOATS),
    "whole for 0 to 255": (FLOATS, PIXELS.astype(int), FLOATS),
    "pixels for 0 to 255": (FLOATS, PIXELS, "images are from 0 to 1 (as uint8 pixels become)"),
    "fractions for 0 to 255": (FLOATS, FLOATS / 255, "images are from 0 to 1"),
    "channels last": (
        np.zeros((6, 9, 8, 3), np.float32) + IDS[:, :1, None, None],
        np.zeros((6, 9, 8, 3), np.uint8),
        "uint8 of shape (9, 8, 3), pixels must be (channels, height, width); transpose x",
    ),
}


@pytest.mark.parametrize("case", KINDS)
def test_inputs_are_of_the_servers_kind(case, tmp_path):
    servers, clients, right = KINDS[case]
    task = announced(npz(folder(tmp_path, "server"), servers))
    path = npz(folder(tmp_path, "client"), clients)
    if isinstance(right, str):
        with pytest.raises(DataError) as error:
            mine(path, task)
        assert right in str(error.value)
        assert "; " in str(error.value)
        return
    x = mine(path, task).data.x
    np.testing.assert_allclose(x.numpy(), right.astype(x.numpy().dtype), rtol=1e-6, atol=1e-7)
    assert x.dtype == (torch.int64 if task.inputs == "whole" else torch.float32)


@pytest.mark.parametrize(
    ("x", "inputs"),
    [(PIXELS / 255, "pixels"), (PIXELS * 1.0, "numbers"), (PIXELS.astype(int), "whole")],
)
def test_a_server_in_python_announces_its_kind_too(x, inputs):
    x = torch.tensor(x if inputs == "whole" else x.astype(np.float32))
    data = Dataset(x, torch.tensor(LABELS))
    network = nn.Sequential(Floats(), nn.Flatten(), nn.Linear(48, 3))
    assert ServerModel(network, data, data, 3).task.inputs == inputs


class Floats(nn.Module):
    def forward(self, x):
        return x.float()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"inputs": "bytes"}, "inputs is 'bytes', none of numbers, pixels, whole"),
        ({"inputs": 3}, "inputs is 3"),
        ({"features": "age"}, "features is 'age', not a list of names"),
        ({"features": [1, 2]}, "features is [1, 2]"),
        ({"classes": [0.5]}, "classes is [0.5]"),
        ({"input-shape": [0]}, "input-shape is 0"),
        ({"input-shape": 3}, "input-shape is 3, not a list"),
    ],
)
def test_a_task_of_other_types_is_refused(keys, words):
    content = encode_task(Task((2,), 3))
    assert decode_task(content) == Task((2,), 3)
    for key, value in keys.items():
        content["task"][key] = value
    with pytest.raises(BadReplyError) as error:
        decode_task(content)
    assert words in str(error.value)
