"""Labels agree by the text that stands in the files, and missing ones are none."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest

from common.datasets import DataError
from common.labels import MISSING
from common.own_data import load_own_data
from common.task import Task
from tests.own_files import fresh_process, mine, npz, table
from tests.test_agreement import announced, folder


@pytest.fixture(autouse=True)
def _every_process_reads_anew():
    fresh_process()


def csv(place, *labels, header="a,label"):
    lines = [f"{k},{label}" for k, label in enumerate(labels)]
    (place / "t.csv").write_text("\n".join([header, *lines]) + "\n")
    return place / "t.csv"


WRITTEN = {
    "leading zeros": (["01", "02", "A1"] * 2, ["02", "01"], [1, 0]),
    "booleans": (["True", "False", "Unknown"] * 2, ["True", "False"], [1, 0]),
    "floats": (["1.0", "2.0", "unk"] * 2, ["2.0", "1.0"], [1, 0]),
    "numbers": (["0", "1", "unk"] * 2, ["1", "0"], [1, 0]),
    "dates": (["2020-01-02", "2020-01-03", "-"] * 2, ["2020-01-03", "2020-01-02"], [2, 1]),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_labels_are_compared_as_they_are_written(case, tmp_path):
    servers, clients, right = WRITTEN[case]
    task = announced(csv(folder(tmp_path, "server"), *servers))
    path = csv(folder(tmp_path, "client"), *clients)
    assert mine(path, task).data.y.tolist() == right
    fresh_process()
    assert mine(path, task).data.y.tolist() == right  # also from the cache


def test_booleans_and_dates_of_parquet_are_compared_as_texts(tmp_path):
    task = Task((1,), 3, features=("a",), classes=("False", "True", "Unknown"))
    flags = table(tmp_path, "parquet", b=None, label=[True, False, True, True])
    assert mine(flags, task).data.y.tolist() == [1, 0, 1, 1]
    days = pd.to_datetime(["2020-01-03", "2020-01-02"] * 2).date
    path = table(folder(tmp_path, "days"), "parquet", b=None, label=days)
    assert load_own_data(str(path)).classes == ("2020-01-02", "2020-01-03")


def test_other_texts_of_one_number_are_other_classes(tmp_path):
    task = announced(csv(folder(tmp_path, "server"), *["01", "02", "A1"] * 2))
    with pytest.raises(DataError, match="none of the 2 classes among the labels is the server's"):
        mine(csv(folder(tmp_path, "client"), "1", "2"), task)


def test_whole_numbers_and_booleans_of_a_csv_are_numbers(tmp_path):
    for labels in (["1", "0", "01"], ["true", "False", "TRUE"], ["1.0", "0", "1"]):
        own = load_own_data(str(csv(tmp_path, *labels)))
        assert (own.classes, own.data.y.tolist()) == ((), [1, 0, 1])


@pytest.mark.parametrize("form", ["csv", "csv numbers", "parquet", "npz"])
@pytest.mark.parametrize("spelling", sorted(MISSING))
def test_missing_labels_are_no_class(spelling, form, tmp_path):
    labels = ["ill", spelling, "well", "ill"]
    if form.startswith("csv"):
        path = csv(tmp_path, *(["0", spelling, "1", "0"] if "numbers" in form else labels))
    elif form == "parquet":
        path = table(tmp_path, form, label=labels)
    else:
        path = npz(tmp_path, np.zeros((4, 2)), np.array(labels))
    with pytest.raises(DataError) as error:
        load_own_data(str(path))
    words = "1 of 4 labels missing, first in row 2 of the data (counted from 1); write a word such"
    assert words in str(error.value)


def test_missing_are_at_least_what_pyarrow_takes_for_it():
    assert set(pa.csv.ConvertOptions().null_values) < MISSING


def test_a_text_of_several_lines_is_no_label(tmp_path):
    with pytest.raises(DataError, match=r"the label in row 2 of the data .* has a line break;"):
        load_own_data(str(csv(tmp_path, "x", '"y\nz"', "x")))


def test_text_labels_of_arrays(tmp_path):
    x, y = np.zeros((4, 2)), np.array(["x", "y", " x", "y"])
    own = load_own_data(str(npz(tmp_path, x, y)))
    assert (own.classes, own.declared, own.data.y.tolist()) == (("x", "y"), False, [0, 1, 0, 1])
    own = load_own_data(str(npz(tmp_path, x, y, class_names=np.array(["y", "z", "x"]))))
    assert (own.classes, own.declared) == (("y", "z", "x"), True)
    assert own.data.y.tolist() == [2, 0, 2, 0]
    with pytest.raises(DataError, match="1 class among the labels not in class_names; add them"):
        load_own_data(str(npz(tmp_path, x, y, class_names=np.array(["y", "z"]))))


def test_a_class_that_the_server_has_neither_seen_nor_named_stays_out(tmp_path):
    path = csv(folder(tmp_path, "server"), *["1", "2"] * 4)
    (note,) = load_own_data(str(path)).server_notes()
    assert note.startswith("no example of class '0', so that clients who have one stay out; ")
    task = announced(path)
    assert task.unseen == (0,)
    with pytest.raises(DataError, match="the server has no example of class '0', and no name"):
        mine(csv(folder(tmp_path, "client"), "0", "1"), task)
    assert mine(csv(folder(tmp_path, "right"), "2", "1"), task).data.y.tolist() == [2, 1]
    told = npz(folder(tmp_path, "told"), np.zeros((8, 1)), np.array([1, 2] * 4), num_classes=3)
    assert announced(told).unseen == ()


EXTRA = {
    "texts": ["p", "q", "r", "s"],
    "blank": [None] * 4,
    "dates": ["2020-01-02"] * 4,
    "some missing": [1.5, None, 2, None],
    "huge": [1e300, 1, 2, 3],
}


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("case", EXTRA)
def test_a_column_that_the_server_does_not_have_may_hold_anything(case, form, tmp_path):
    path = table(tmp_path, form, notes=EXTRA[case])
    for _ in range(2):  # the second from the cache
        data = mine(path, Task((2,), 3, features=("a", "b"))).data
        assert data.x.tolist() == [[255, 1.5], [0, 2], [7, -3], [1, 4]]
        fresh_process()
    with pytest.raises(DataError, match="column 'notes' "):
        mine(path, Task((2,), 3, features=("a", "notes")))
    with pytest.raises(DataError, match="column 'notes' "):
        load_own_data(str(path)).check_server()


def test_a_feature_that_was_taken_for_an_index_is_named(tmp_path):
    for ages in ([3, 9, 4], [30, 40, 50]):  # pandas stores the second as its ends
        frame = pd.DataFrame({"age": ages, "dose": [1, 2, 3], "label": [0, 1, 0]})
        frame.set_index("age").to_parquet(tmp_path / "t.parquet")
        with pytest.raises(DataError, match="lacks the server's feature 'age'; 'age' was taken"):
            mine(tmp_path / "t.parquet", Task((2,), 2, features=("age", "dose")))
        own = load_own_data(str(tmp_path / "t.parquet"), label_column="age")
        assert own.data.y.tolist() == ages
    frame.set_index(["age", "dose"]).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"no features beside 'label'.* 'age', 'dose' was taken"):
        load_own_data(str(tmp_path / "t.parquet"))


BROKEN = {
    "open quote": (b'a,label\n1,ill\n3,"well\n5,ill\n', "a quote that opens in line 3 is not"),
    "short row": (b"a,b,label\n" + b"1,2,x\n" * 99 + b"1,2\n", "row 100 of the data (counted from"),
    "comment": (b"a,label\n1,x\n# note\n", "has 1 field, the header 2; it begins with '#'"),
    "comment first": (b"# note\na,label\n1,x\n", "begins with a comment, by '#'; remove"),
    "header alone": (b"a,label", "has a header, but no rows; fill it"),
    "empty": (b"\n\n", "is empty; write a header and rows"),
    "gzip": (b"\x1f\x8b\x08\x00", "is packed by gzip; unpack it"),
    "Excel": (b"PK\x03\x04", "is a ZIP or Excel file; save it as CSV"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_csv_files_are_placed(case, tmp_path):
    content, words = BROKEN[case]
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataError) as error:
        load_own_data(str(tmp_path / "t.csv"))
    assert words in str(error.value)


def test_line_breaks_within_quotes_are_read(tmp_path):
    (tmp_path / "t.csv").write_text('"a\nb",label,notes\n1,x,"one\ntwo"\n2,y,"say ""no"""\n')
    own = load_own_data(str(tmp_path / "t.csv"))
    assert (own.features, own.data.x.tolist()) == (("a\nb",), [[1], [2]])
    assert own.classes == ("x", "y")
