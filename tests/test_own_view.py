"""`greedyfed data`: what it says of data of every form, and how it ends."""

import numpy as np
import pytest

from common.config import RunConfig
from common.datasets import DataError, load_splits
from common.own_data import load_own_data
from experiments.own import data, described
from tests.bad_input import greedyfed
from tests.own_files import PIXELS, class_folders, fresh_process, npz, table


@pytest.fixture(autouse=True)
def _every_process_reads_anew():
    fresh_process()


def lines_of(path, **keys):
    own = load_own_data(str(path), label_column=keys.get("label_column", "label"))
    return [f"{what}: {text}" for what, text in described(own, **keys)]


def test_a_table(tmp_path):
    cells = {"label": None, "b": [1.5, 2, -3, 4], "sick": [0, 1, 2, 1]}
    path = table(tmp_path, "parquet", **cells)
    path = path.rename(tmp_path / "clinic.parquet")
    assert lines_of(path, label_column="sick")[-2:] == [
        "server: no: a server's label column is 'label'; rename it there",
        "client: yes, of a server that has these features and these classes",
    ]


TABLE = """\
form      .csv file
examples  4, each of shape (2,)
inputs    numbers (float32), from -3 to 255
features  b, a
classes   ill (1), well (3)
note      1 column left out as a row index: 'Unnamed: 0'
server    yes, to validate and to test on, with seed = 0; another may leave one class to validate
client    yes, of a server that has these features and these classes
"""


def test_the_command(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(
        "Unnamed: 0;b;label;a\n0;1.5;well;255\n1;2;ill;0\n2;-3;well;7\n3;4;well;1\n"
    )
    assert greedyfed("data", str(tmp_path / "t.csv")) == (0, "")
    data(str(tmp_path / "t.csv"))
    assert capsys.readouterr().out == TABLE


def test_images(tmp_path):
    root = class_folders(tmp_path, names=["cow", "dodo", "bee", "ant"])
    (root / "bee" / "notes.txt").write_text("")
    lines = lines_of(root)
    assert lines[:4] == [
        "form: folder of class folders",
        "examples: 6, each of shape (3, 4, 4)",
        f"inputs: pixels (float32), from {PIXELS.min() / 255:.6g} to {PIXELS.max() / 255:.6g}",
        "classes: cow (2), dodo (0), bee (2), ant (2)",
    ]
    assert lines[4] == "note: 1 file that is no image left out: .txt"


def test_long_lists_are_cut(tmp_path):
    x = np.random.default_rng(0).random((300, 50))
    names = np.array([f"gene {k}" for k in range(50)])
    path = npz(tmp_path, x, np.arange(300) % 100, feature_names=names)
    lines = lines_of(path)
    assert lines[3].startswith("features: gene 0, gene 1, ")
    assert lines[3].endswith("gene 19, … (50 in all)")
    assert lines[4].startswith("classes: 0 (3), 1 (3), ")
    assert lines[4].endswith("19 (3), … (100 in all)")


def test_a_label_of_two_thousand_millions(tmp_path):
    lines = lines_of(npz(tmp_path, y=np.array([0, 0, 1, 1, 2, 2**31 - 1])))
    assert "classes: 0 (2), 1 (2), 2 (1), 3 (0), " in lines[3]
    assert "server: no: the labels of 6 examples make 2147483648 classes" in lines[4]


def test_bytes_are_only_a_clients(tmp_path):
    lines = lines_of(npz(tmp_path, np.arange(24).reshape(6, 4).astype(np.uint8)))
    assert (
        lines[2]
        == "inputs: bytes (uint8), whether ids, counts or pixels nobody knows, from 0 to 23"
    )
    assert lines[3] == "features: without names"
    assert lines[-2].startswith("server: no: an example is uint8 of shape (4,)")
    assert lines[-1].endswith("examples of this shape, whole numbers, and these classes")


def test_a_name_that_would_move_the_cursor(tmp_path):
    path = npz(tmp_path, class_names=np.array(["ant", "b\x1b[2J", "x" * 99]))
    assert lines_of(path)[3] == f"classes: ant (2), 'b\\x1b[2J' (2), {'x' * 39}… (2)"


@pytest.mark.parametrize("name", ["nowhere.npz", "t.mat", "t.csv"])
def test_what_cannot_be_read_is_one_line_and_exit_2(name, tmp_path):
    (tmp_path / "t.mat").write_text("")
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    code, said = greedyfed("data", str(tmp_path / name))
    assert code == 2
    (line,) = said.splitlines()
    assert line.startswith("greedyfed: data-path = ")
    assert "; " in line


SPLIT = {
    "two": ([0, 1], "server: no: the validation part, 1 of 2 examples, has one class only; give"),
    "one of ten": ([0] * 9 + [1], "server: "),
    "any": ([0, 1, 2] * 4, "server: yes, to validate and to test on"),
}


@pytest.mark.parametrize("case", SPLIT)
def test_the_server_says_what_a_run_would_say(case, tmp_path):
    y, words = SPLIT[case]
    path = npz(tmp_path, np.zeros((len(y), 2)), np.array(y))
    (line,) = (line for line in lines_of(path) if line.startswith("server: "))
    assert line.startswith(words)
    config = RunConfig.from_flat({"dataset": "own", "data-dir": str(path)})
    load_splits.cache_clear()
    if line.startswith("server: yes"):
        load_splits(config.data, 0)
        assert ("with seed = 0" in line) == (case == "one of ten")
    else:
        with pytest.raises(DataError, match="has one class only"):
            load_splits(config.data, 0)


def test_columns_that_are_no_features_are_shown(tmp_path):
    path = table(tmp_path, "parquet", a=["p", "q", "r", "s"])
    lines = lines_of(path)
    why = "column 'a' is not numeric; encode it as numbers or remove it"
    assert f"left out: {why}" in lines
    assert f"server: no: {why}" in lines
    assert "features: b" in lines
