"""CSV and Parquet tables as arrays: a column of labels, and numeric features by name."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common.arrays import Arrays, written
from common.columns import features_of
from common.csv_files import read_csv
from common.datasets import DataError, Dataset
from common.labels import Labels, are_numbers, comma_hint, labels_of, text_labels, written_labels
from common.names import clean, counted, quoted, twice

#: How pandas names a row index that is written as columns.
_INDEX = re.compile(r"(Unnamed: \d+(\.\d+)?|__index_level_\d+__)?")


def read_table(path: Path, label_column: str, source: str) -> Arrays:
    """Read a table. Text labels are classes in the order of their names.

    `source` names the file in messages: a key and its value. What pyarrow says of a broken row is
    left out, since it quotes the row.

    Raises:
        DataError: pyarrow is not installed, the file is no such table, there is no label column, or
            a label is missing or none.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise DataError(
            f"{source}: CSV and Parquet need the extra `tables`; pip install 'greedyfed[tables]'"
        ) from error
    is_csv, label = path.suffix.lower() == ".csv", clean(label_column)
    try:
        names, columns, index = (_csv if is_csv else _parquet)(path, label, source)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # the file itself cannot be read
        form = "CSV with a header and equally long rows" if is_csv else "Parquet"
        raise DataError(f"{source}: is not readable as {form}; write it anew") from error
    return _table(names, columns, index, label, source, written_labels if is_csv else text_labels)


def _csv(path: Path, label: str, source: str) -> tuple[list[str], list[Any], set[int]]:
    """Names and columns, and which are a row index."""
    table = read_csv(path, label, source)
    names = [clean(name) for name in table.column_names]
    index = set[int]()
    while len(index) < len(names) and _INDEX.fullmatch(names[len(index)]):
        index.add(len(index))
    return names, table.columns, index


def _parquet(path: Path, label: str, source: str) -> tuple[list[str], list[Any], set[int]]:
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.ParquetFile(path).read()
    levels = (table.schema.pandas_metadata or {}).get("index_columns", [])
    stored = {clean(level) for level in levels if isinstance(level, str)}  # a range is not stored
    names = [clean(name) for name in table.column_names]
    is_index = [name in stored or (name != "" and _INDEX.fullmatch(name)) for name in names]
    index, columns = {k for k, yes in enumerate(is_index) if yes}, list(table.columns)
    for level in levels:  # evenly spaced numbers are stored as their ends
        if isinstance(level, dict) and level.get("name"):
            index.add(len(names))
            names.append(clean(level["name"]))
            numbers = range(level["start"], level["stop"], level["step"])
            columns.append(pa.chunked_array([pa.array(numbers)]))
    return names, columns, index


def _table(
    names: list[str],
    columns: list[Any],
    index: set[int],
    label: str,
    source: str,
    texts: Callable[[Sequence[str | None], str], Labels],
) -> Arrays:
    """Of the names of all columns, the columns, and which of them are a row index.

    `texts` says what labels are that are texts in the table.
    """
    index -= {k for k, name in enumerate(names) if name == label}  # someone asks for it
    notes, left = [], [names[k] for k in sorted(index)]
    if index:
        notes.append(f"{counted(len(index), 'column')} left out as a row index: {quoted(left)}")
    empty = {k for k, name in enumerate(names) if not name} - index
    if full := [k for k in empty if columns[k].null_count < len(columns[k])]:
        raise DataError(f"{source}: column {min(full) + 1} has no name; give it one")
    if empty:
        notes.append(f"{counted(len(empty), 'column')} without a name or a value left out")
    kept = [k for k in range(len(names)) if k not in index | empty]
    names, columns = [names[k] for k in kept], [columns[k] for k in kept]
    if label not in names:
        raise DataError(
            f"{source}: needs one column {label!r} of labels beside its features, {_seen(names)}; "
            "name the label column so, or set label-column in node_config"
        )
    if len(names) < 2:
        aside = f"; {quoted(left)} was taken for a row index" * bool(left)
        raise DataError(f"{source}: has no features beside {label!r}; add columns{aside}")
    if (double := twice(names)) is not None:
        raise DataError(f"{source}: two columns are named {double!r:.50}; rename or remove one")
    if not len(columns[0]):
        raise DataError(f"{source}: has a header, but no rows; fill it")
    position = names.index(label)
    labels = _labels(columns.pop(position), label, source, texts)
    names.pop(position)
    found = features_of(names, [_numbers(column) for column in columns], len(labels.y))
    return Arrays(
        data=Dataset(torch.from_numpy(found.x), torch.from_numpy(labels.y)),
        features=found.names,
        unfit=found.unfit,
        index=tuple(left),
        classes=labels.classes,
        written=written(labels),
        notes=(*notes, *found.notes),
    )


def _seen(names: list[str]) -> str:
    """Names that were read; a line that may be an example is not quoted."""
    if any(are_numbers([name]) or comma_hint([name]) for name in names):
        return "and its first line looks like an example, not like names"
    return f"and has {quoted(names) or 'none'}"


def _labels(
    column: Any, name: str, source: str, texts: Callable[[Sequence[str | None], str], Labels]
) -> Labels:
    import pyarrow as pa

    column = _plain(column)
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.string())
    if _is_text(column.type):
        return texts(column.to_pylist(), source)
    if pa.types.is_null(column.type):
        return text_labels(column.to_pylist(), source)
    if pa.types.is_boolean(column.type) and not column.null_count:
        return labels_of(np.array(column.to_pylist(), bool), source)
    numbers = _numbers(column)
    if isinstance(numbers, str):
        raise DataError(f"{source}: labels {name!r:.50} are neither numbers nor texts; encode them")
    return labels_of(numbers, source)


def _numbers(column: Any) -> NDArray[Any] | str:
    """A column as an array of numbers, missing ones NaN, or why it is none and what to do."""
    import pyarrow as pa

    column = _plain(column)
    kind = column.type
    if pa.types.is_null(kind):
        return "has no value at all; remove it"
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_temporal(kind):
        return "is of dates or times; encode it as numbers, such as days since the first"
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return _no_numbers(column)
    numbers: NDArray[Any] = column.to_numpy()
    return numbers


def _no_numbers(column: Any) -> str:
    texts = {text for text in column.to_pylist() if text} if _is_text(column.type) else set()
    if are_numbers(texts):
        return "is of texts; convert the column to numbers"
    return f"is not numeric; {comma_hint(texts) or 'encode it as numbers or remove it'}"


def _plain(column: Any) -> Any:
    """Without a dictionary (categories)."""
    import pyarrow as pa

    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return kind in (pa.string(), pa.large_string(), pa.string_view())
