"""CSV and Parquet tables as arrays: a column of labels, and numeric features."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.datasets import DataError


def read_table(path: Path, label_column: str, source: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Features x (n, columns) float32 and the label column y (n,) of its own type.

    Missing values become NaN. `source` names the file in messages: a key and its value. What
    pyarrow says of a broken row is left out, since it quotes the row.

    Raises:
        DataError: pyarrow is not installed, the file is no such table, there is no label column, or
            a feature is not numeric.
    """
    try:
        import pyarrow as pa
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"{source}: CSV and Parquet need the extra `tables`; pip install 'greedyfed[tables]'"
        ) from error
    try:
        is_csv = path.suffix.lower() == ".csv"
        table = pa.csv.read_csv(path) if is_csv else pa.parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # the file itself cannot be read
        form = "CSV with a header and equally long rows" if is_csv else "Parquet"
        raise DataError(f"{source}: is not readable as {form}; write it anew") from error
    names: list[str] = table.column_names
    if names.count(label_column) != 1 or len(names) < 2:
        raise DataError(
            f"{source}: needs one column {label_column!r} of labels beside its features; "
            "name the label column so, or set label-column in node_config"
        )
    if not table.num_rows:
        raise DataError(f"{source}: holds no rows; fill it")
    columns = [column.to_numpy() for column in table.columns]
    y = columns.pop(names.index(label_column))
    names.remove(label_column)
    for name, column in zip(names, columns, strict=True):
        if column.dtype.kind not in "uifb":
            raise DataError(
                f"{source}: column {name!r} is not numeric; encode it as numbers or remove it"
            )
    with np.errstate(over="ignore"):  # an overflow is told as Inf
        return np.stack(columns, axis=1, dtype=np.float32, casting="unsafe"), y
