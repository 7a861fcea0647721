"""Tables as people have them: separators, encodings, indexes, text labels, digits that are lost."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from common.datasets import DataError
from common.own_data import load_own_data
from tests.own_files import fresh_process

AGE, DOSE, LABEL = [31.5, 40, 52, 7], [0.5, 0.25, 0, 1], [0, 1, 1, 0]
FRAME = pd.DataFrame({"age": AGE, "dose": DOSE, "label": LABEL})


@pytest.fixture(autouse=True)
def _every_process_reads_anew():
    fresh_process()


def read(path, label_column="label"):
    return load_own_data(str(path), label_column=label_column)


def as_it_is(own):
    assert own.features == ("age", "dose")
    assert own.data.x.tolist() == [list(row) for row in zip(AGE, DOSE, strict=True)]
    assert own.data.y.tolist() == LABEL
    return own.notes


def text(tmp_path, content, encoding="utf-8"):
    (tmp_path / "t.csv").write_bytes(content.encode(encoding))
    return tmp_path / "t.csv"


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_separators_and_line_ends(separator, encoding, end, tmp_path):
    content = FRAME.to_csv(index=False, sep=separator, lineterminator=end)
    assert as_it_is(read(text(tmp_path, content, encoding))) == ()


def test_the_separator_is_the_one_that_names_the_label(tmp_path):
    own = read(text(tmp_path, '"age, in years";"dose|mg";label\n1;2;0\n3;4;1\n'))
    assert own.features == ("age, in years", "dose|mg")


def test_spaces_around_names_and_numbers(tmp_path):
    assert as_it_is(read(text(tmp_path, FRAME.to_csv(index=False).replace(",", " , ")))) == ()


INDEX = {
    "csv": lambda f, p: f.to_csv(p),
    "csv twice": lambda f, p: pd.read_csv(_csv(f, p)).to_csv(p),
    "csv of two levels": lambda f, p: f.set_axis(
        pd.MultiIndex.from_arrays([range(4), range(4)])
    ).to_csv(p),
    "parquet, sampled": lambda f, p: f.iloc[[0, 1, 2, 3]].set_index(pd.Index([9, 3, 5, 1])),
    "parquet, named": lambda f, p: f.set_index(pd.Index([9, 3, 5, 1], name="patient")),
    "parquet, of texts": lambda f, p: f.set_index(pd.Index([*"wxyz"], name="patient")),
    "parquet, two levels": lambda f, p: f.set_index(
        pd.MultiIndex.from_arrays([[1, 1, 2, 2], [1, 2, 1, 2]])
    ),
}


def _csv(frame, path):
    frame.to_csv(path)
    return path


@pytest.mark.parametrize("case", INDEX)
def test_an_index_that_pandas_wrote_is_no_feature(case, tmp_path):
    path = tmp_path / ("t.csv" if case.startswith("csv") else "t.parquet")
    frame = INDEX[case](FRAME, path)
    if frame is not None:
        frame.to_parquet(path)
    (note,) = as_it_is(read(path))
    assert "left out as a row index: " in note
    fresh_process()
    assert as_it_is(read(path)) == (note,)  # also from the cache


def test_an_index_that_was_written_again_without_pandas(tmp_path):
    table = pa.table({**FRAME.to_dict("list"), "__index_level_0__": [9, 3, 5, 1]})
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    (note,) = as_it_is(read(tmp_path / "t.parquet"))
    assert "'__index_level_0__'" in note


def test_an_index_that_is_stored_as_a_range_or_asked_for(tmp_path):
    FRAME.to_parquet(tmp_path / "t.parquet")
    assert as_it_is(read(tmp_path / "t.parquet")) == ()
    FRAME.set_index("label").to_parquet(tmp_path / "t.parquet")
    assert as_it_is(read(tmp_path / "t.parquet")) == ()


def test_an_empty_column_at_the_end_of_each_row(tmp_path):
    content = FRAME.to_csv(index=False).replace("\n", ",\n")
    assert as_it_is(read(text(tmp_path, content))) == (
        "1 column without a name or a value left out",
    )


TYPES = {
    "categories of numbers": pa.array([5, 7, 5, 5]).dictionary_encode(),
    "decimals": pa.array([decimal.Decimal(k) for k in (5, 7, 5, 5)]),
    "bytes": pa.array([5, 7, 5, 5], pa.uint8()),
    "half floats": pa.array(np.array([5, 7, 5, 5], np.float16)),
}


@pytest.mark.parametrize("kind", TYPES)
def test_columns_of_other_types_of_numbers(kind, tmp_path):
    pa.parquet.write_table(pa.table({"a": TYPES[kind], "label": LABEL}), tmp_path / "t.parquet")
    assert read(tmp_path / "t.parquet").data.x.tolist() == [[5], [7], [5], [5]]


LABELS = {
    "texts": (pa.array(["well", " ill", "ill", "well "]), ("ill", "well"), [1, 0, 0, 1]),
    "categories": (
        pa.array(["well", "ill", "ill", "well"]).dictionary_encode(),
        ("ill", "well"),
        [1, 0, 0, 1],
    ),
    "large texts": (pa.array([*"baab"], pa.large_string()), ("a", "b"), [1, 0, 0, 1]),
    "numbers as texts": (pa.array(["10", "9", "9", "10"]), ("9", "10"), [1, 0, 0, 1]),
    "booleans": (pa.array([True, False, False, True]), (), [1, 0, 0, 1]),
    "floats": (pa.array([3.0, 0, 0, 3]), (), [3, 0, 0, 3]),
    "narrow": (pa.array([200, 0, 0, 200], pa.uint8()), (), [200, 0, 0, 200]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels(kind, tmp_path):
    column, classes, y = LABELS[kind]
    pa.parquet.write_table(pa.table({"a": AGE, "label": column}), tmp_path / "t.parquet")
    own = read(tmp_path / "t.parquet")
    assert own.classes == classes
    assert own.data.y.tolist() == y


LOST = {
    "whole numbers": [2**24 + 1, 5, 6, 7],
    "times": [1.7e9 + k / 4 for k in range(4)],
    "times of the quarter second, two apart": [1.7e9, 1.7e9 + 100, 1.7e9 + 20.25, 1.7e9 + 10.5],
    "times in ns": [1_700_000_000_000_000_000 + k for k in range(4)],
}
KEPT = {
    "small": [2**24, 5, 6, 7],
    "round": [2**30, 5, 6, 7],
    "fractions": [0.1, 0.2, 0.3, 0.4],
    "equal": [1 / 3] * 4,
}


@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("values", LOST | KEPT)
def test_digits_that_are_lost_are_said(form, values, tmp_path):
    frame = pd.DataFrame({"a": [1, 2, 3, 4], "t": (LOST | KEPT)[values], "label": LABEL})
    path = tmp_path / f"t.{form}"
    if form == "npz":
        np.savez(path, x=frame[["a", "t"]].to_numpy(float), y=LABEL, feature_names=["a", "t"])
    else:
        getattr(frame, f"to_{form}")(path, index=False)
    notes = read(path).notes
    if values in LOST:
        (note,) = notes
        assert note.startswith("1 column with numbers of more digits than float32 holds")
        assert "'t'; subtract" in note
    else:
        assert notes == ()


def test_numbers_that_become_0_are_said(tmp_path):
    (note,) = read(text(tmp_path, "p,label\n1e-300,0\n0.5,1\n0,1\n")).notes
    assert note.startswith("1 column with numbers too near to 0 for float32, read as 0: 'p'; ")


def test_whole_numbers_of_32_bits_lose_digits_too(tmp_path):
    column = pa.array([2**24 + 1, 5, 6, 7], pa.int32())
    pa.parquet.write_table(pa.table({"t": column, "label": LABEL}), tmp_path / "t.parquet")
    (note,) = read(tmp_path / "t.parquet").notes
    assert "more digits than float32 holds" in note


BAD = {
    "latin-1": (
        "age,gr\u00f6\u00dfe,label\n1,2,0\n".encode("latin-1"),
        "is not UTF-8 text, at byte 7, in line 1; save it as UTF-8",
    ),
    "latin-1 in a row": (
        "age,name,label\n1,b,0\n2,\u00e9,1\n".encode("cp1252"),
        "is not UTF-8 text, at byte 24, in line 3",
    ),
    "cut short": (b"age,label\n1,\xc3", "is not UTF-8 text, at byte 13, its last"),
    "utf-16": ("age,label\n1,0\n".encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
    "no known separator": (b"age:label\n1:0\n", "'label' of labels beside its features, and has "),
    "other label": (b"age;dose;sick\n1;2;0\n", "and has 'age', 'dose', 'sick'; name the label"),
    "no header": (
        b"63,patient,1\n64,patient,0\n",
        "its first line looks like an example, not like",
    ),
    "twice": (b"age,age,label\n1,2,0\n", "two columns are named 'age'; rename or remove one"),
    "twice but for a space": (b"age, age,label\n1,2,0\n", "two columns are named 'age'"),
    "two labels": (b"age,label,label\n1,2,0\n", "two columns are named 'label'"),
    "a column without name": (b"age,,label\n1,2,0\n", "column 2 has no name; give it one"),
    "decimal commas": (
        b"age;dose;label\n1,5;2;0\n2;3;1\n",
        "column 'age' is not numeric; write its decimal commas as points",
    ),
    "quoted decimal commas": (
        b'age,label\n"1,5",0\n"2,5",1\n',
        "column 'age' is not numeric; write its decimal commas as points",
    ),
    "decimal commas as labels": (
        b"age;label\n1;0,5\n2;1\n",
        "labels are numbers with commas; write its decimal commas as points",
    ),
    "words": (b"age;label\npatient;0\n2;1\n", "column 'age' is not numeric; encode it as numbers"),
    "dates": (
        b"age,label\n2020-01-02,0\n",
        "column 'age' is of dates or times; encode",
    ),
    "no values": (b"age,dose,label\n1,,0\n2,,1\n", "column 'dose' has no value at all; remove it"),
    "a missing value": (
        b"age,label\n1,0\n,1\n",
        "'age' misses 1 of 2 values, first in row 2",
    ),
    "a missing flag": (
        b"age,label\ntrue,0\n,1\n",
        "'age' misses 1 of 2 values, first in row 2",
    ),
    "a missing label": (
        b"age,label\n1,0\n2,\n",
        "1 of 2 labels missing, first in row 2 of",
    ),
    "a missing text": (b"age,label\n1,ill\n2,\n", "1 of 2 labels missing, first in row 2 of the"),
    "no rows": (b"age,label\n", "has a header, but no rows; fill it"),
    "nothing": (b"", "is empty; write a header and rows"),
    "one long line": (b"x" * 200_000, "has a header, but no rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_rightly_is_refused(case, tmp_path):
    content, words = BAD[case]
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataError) as error:
        read(tmp_path / "t.csv").check_server()
    (line,) = str(error.value).splitlines()
    assert words in line
    assert "; " in line
    assert "patient" not in line  # nothing of an example
    assert len(line) < 500


NO_NUMBERS = {
    "dates": (pa.array([datetime.date(2020, 1, 2)] * 4), "is of dates or times; encode it as"),
    "lists": (pa.array([[1.0]] * 4), "is not numeric; encode it as numbers or remove it"),
    "structs": (pa.array([{"a": 1}] * 4), "is not numeric; encode it"),
    "numbers as texts": (pa.array(["1", "2", "1.5", "2"]), "is of texts; convert the column to"),
    "categories": (pa.array([*"1212"]).dictionary_encode(), "is of texts; convert the column to"),
    "thousands": (pa.array(["1,234", "5", "6", "1,234,567.5"]), "write its numbers without commas"),
    "decimal commas": (pa.array(["1,5", "2", "1,234", "3"]), "write its decimal commas as points"),
    "both": (pa.array(["1,5", "2", "1,234.5", "3"]), "is not numeric; encode it as numbers"),
}


@pytest.mark.parametrize("case", NO_NUMBERS)
def test_columns_that_are_no_numbers_are_refused_where_they_are_needed(case, tmp_path):
    values, words = NO_NUMBERS[case]
    table = pa.table({"a": values, "b": LABEL, "label": LABEL})
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    own = read(tmp_path / "t.parquet")
    assert own.features == ("b",)
    with pytest.raises(DataError) as error:
        own.check_server()
    assert ": column 'a' is " in str(error.value)
    assert words in str(error.value)


def test_lists_are_no_labels(tmp_path):
    for values in ([[1.0]] * 4, [{"a": 1}] * 4):
        pa.parquet.write_table(pa.table({"a": LABEL, "label": values}), tmp_path / "t.parquet")
        with pytest.raises(DataError, match="labels 'label' are neither numbers nor texts; encode"):
            read(tmp_path / "t.parquet")


def test_an_error_far_into_a_large_file_is_placed(tmp_path):
    """The file is read in parts, and a character may lie across two of them."""
    row = "1,\u00e9,0\n".encode()
    rows = row * (2**20 // len(row) + 1000)
    (tmp_path / "t.csv").write_bytes(b"a,b,label\n" + rows + b"2,\xe9,1\n")
    with pytest.raises(DataError) as error:
        read(tmp_path / "t.csv")
    place = f"at byte {10 + len(rows) + 3}, in line {2 + rows.count(bytes([10]))};"
    assert place in str(error.value)


def test_a_long_list_of_columns_is_cut(tmp_path):
    path = text(tmp_path, ",".join(f"gene{k}" for k in range(500)) + "\n" + "1," * 499 + "1\n")
    with pytest.raises(DataError) as error:
        read(path)
    assert "'gene4', … (500 in all)" in str(error.value)
    assert len(str(error.value)) < 400
