"""CSV and Parquet tables as arrays: a column of labels, and numeric features by name."""

import codecs
import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.arrays import loses, lossy
from common.datasets import DataError
from common.names import clean, counted, ordered, quoted, twice

_SEPARATORS = ",;\t|"
#: How pandas names a row index that is written as columns.
_INDEX = re.compile(r"(Unnamed: \d+(\.\d+)?|__index_level_\d+__)?")
_NUMBER = re.compile(r"\s*[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?\s*")
_UTF16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
_CHUNK = 2**20


@dataclass(frozen=True, eq=False)
class Table:
    """Features x (n, columns) float32, missing ones NaN, their names, and labels y (n,).

    `classes` are the names of text labels, numbered by y; without any y is as it was read.
    """

    x: NDArray[np.float32]
    y: NDArray[Any]
    features: tuple[str, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...]


def read_table(path: Path, label_column: str, source: str) -> Table:
    """Read a table. Text labels are classes in the order of their names.

    `source` names the file in messages: a key and its value. What pyarrow says of a broken row is
    left out, since it quotes the row.

    Raises:
        DataError: pyarrow is not installed, the file is no such table, there is no label column, or
            a feature is not numeric.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise DataError(
            f"{source}: CSV and Parquet need the extra `tables`; pip install 'greedyfed[tables]'"
        ) from error
    is_csv = path.suffix.lower() == ".csv"
    try:
        read = _read_csv if is_csv else _read_parquet
        names, columns, index = read(path, clean(label_column), source)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # the file itself cannot be read
        form = "CSV with a header and equally long rows" if is_csv else "Parquet"
        raise DataError(f"{source}: is not readable as {form}; write it anew") from error
    return _table(names, columns, index, clean(label_column), source)


def _read_csv(path: Path, label: str, source: str) -> tuple[list[str], list[Any], set[int]]:
    """Names and columns, and which are a row index."""
    from pyarrow import csv as arrow

    _check_utf8(path, source)
    with open(path, encoding="utf-8-sig", newline="") as file:
        first = next((line for line in file if line.strip()), "")  # as pyarrow does
    headers = {s: _header(first, s) for s in _SEPARATORS}
    right = {s: names for s, names in headers.items() if label in names} or headers
    separator = max(right, key=lambda s: len(right[s]))
    table = arrow.read_csv(path, parse_options=arrow.ParseOptions(delimiter=separator))
    names = [clean(name) for name in table.column_names]
    index = set[int]()
    while len(index) < len(names) and _INDEX.fullmatch(names[len(index)]):
        index.add(len(index))
    return names, table.columns, index


def _header(line: str, separator: str) -> list[str]:
    try:
        names = next(csv.reader(io.StringIO(line), delimiter=separator), [])
    except csv.Error:  # no header is that long
        return []
    return [clean(name) for name in names]


def _check_utf8(path: Path, source: str) -> None:
    decoder, position, line = codecs.getincrementaldecoder("utf-8")(), 0, 1
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            if not position and chunk.startswith(_UTF16):
                raise DataError(f"{source}: is UTF-16 text; save it as UTF-8")
            try:
                decoder.decode(chunk)
            except UnicodeDecodeError as error:
                held = len(error.object) - len(chunk)  # bytes of the chunk before
                line += error.object[: error.start].count(b"\n")
                raise DataError(
                    f"{source}: is not UTF-8 text, at byte {position - held + error.start + 1}, in "
                    f"line {line}; save it as UTF-8 (in Excel: CSV UTF-8)"
                ) from error
            position, line = position + len(chunk), line + chunk.count(b"\n")
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{source}: is not UTF-8 text, at byte {position}, its last; save it as UTF-8"
        ) from error


def _read_parquet(path: Path, label: str, source: str) -> tuple[list[str], list[Any], set[int]]:
    from pyarrow import parquet

    table = parquet.ParquetFile(path).read()
    levels = (table.schema.pandas_metadata or {}).get("index_columns", [])
    stored = {clean(level) for level in levels if isinstance(level, str)}  # a range is not stored
    names = [clean(name) for name in table.column_names]
    is_index = [name in stored or (name != "" and _INDEX.fullmatch(name)) for name in names]
    return names, table.columns, {k for k, yes in enumerate(is_index) if yes}


def _table(names: list[str], columns: list[Any], index: set[int], label: str, source: str) -> Table:
    """Names of all columns, the columns, and which of them are a row index."""
    index -= {k for k, name in enumerate(names) if name == label}  # someone asks for it
    notes = []
    if index:
        left = quoted([names[k] for k in sorted(index)])
        notes.append(f"{counted(len(index), 'column')} left out as a row index: {left}")
    empty = {k for k, name in enumerate(names) if not name} - index
    if full := [k for k in empty if columns[k].null_count < len(columns[k])]:
        raise DataError(f"{source}: column {min(full) + 1} has no name; give it one")
    if empty:
        notes.append(f"{counted(len(empty), 'column')} without a name or a value left out")
    kept = [k for k in range(len(names)) if k not in index | empty]
    names, columns = [names[k] for k in kept], [columns[k] for k in kept]
    if label not in names or len(names) < 2:
        raise DataError(
            f"{source}: needs one column {label!r} of labels beside its features, {_seen(names)}; "
            "name the label column so, or set label-column in node_config"
        )
    if (double := twice(names)) is not None:
        raise DataError(f"{source}: two columns are named {double!r:.50}; rename or remove one")
    if not len(columns[0]):
        raise DataError(f"{source}: holds no rows; fill it")
    position = names.index(label)
    y, classes = _labels(columns.pop(position), label, source)
    names.pop(position)
    wide = [_numbers(column, name, source) for column, name in zip(columns, names, strict=True)]
    lost = [k for k, column in enumerate(wide) if column.dtype.itemsize > 4 and loses(column)]
    with np.errstate(over="ignore"):  # an overflow is told as Inf
        x = np.stack(wide, axis=1, dtype=np.float32, casting="unsafe")
    return Table(x, y, tuple(names), classes, (*notes, *lossy(lost, names)))


def _seen(names: list[str]) -> str:
    """Names that were read; a line that may be an example is not quoted."""
    if any(_NUMBER.fullmatch(name) for name in names):
        return "and its first line looks like an example, not like names"
    return f"and has {quoted(names) or 'none'}"


def _labels(column: Any, name: str, source: str) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Numbers as they are, or the numbers of texts and these texts in order."""
    column = _plain(column)
    if not _is_text(column.type):
        return _numbers(column, name, source, "labels"), ()
    texts = [None if text is None else clean(text) for text in column.to_pylist()]
    missing = [k for k, text in enumerate(texts) if not text]
    if missing:
        raise DataError(
            f"{source}: {len(missing)} of {len(texts)} labels missing, in row {missing[0] + 1} "
            "first; fill them, or remove the rows"
        )
    known = [text for text in texts if text]
    if all(map(_NUMBER.fullmatch, known)) and any("," in text for text in known):
        raise DataError(f"{source}: {_not_numeric('labels', name, column)}")
    classes = ordered(known)
    number = {text: k for k, text in enumerate(classes)}
    return np.array([number[text] for text in known]), classes


def _numbers(column: Any, name: str, source: str, what: str = "column") -> NDArray[Any]:
    """A column as an array of numbers, missing ones NaN."""
    import pyarrow as pa

    column = _plain(column)
    kind = column.type
    if pa.types.is_null(kind):
        raise DataError(f"{source}: {what} {name!r:.50} has no value at all; remove it")
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(f"{source}: {_not_numeric(what, name, column)}")
    numbers: NDArray[Any] = column.to_numpy()
    return numbers


def _not_numeric(what: str, name: str, column: Any) -> str:
    """The rule and the remedy; a decimal comma is a frequent reason."""
    texts = [text for text in column.to_pylist() if text] if _is_text(column.type) else []
    comma = bool(texts) and all(map(_NUMBER.fullmatch, texts))
    remedy = "write its decimal commas as points" if comma else "encode it as numbers or remove it"
    return f"{what} {name!r:.50} is not numeric; {remedy}"


def _plain(column: Any) -> Any:
    """Without a dictionary (categories)."""
    import pyarrow as pa

    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return kind in (pa.string(), pa.large_string(), pa.string_view())
