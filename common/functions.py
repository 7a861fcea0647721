"""What a Python function of one's own returns, as arrays under the names that a .npz has."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.datasets import DataError

_WANTED = "must return (x, y), or a mapping with x and y"


def plain(returned: Any, source: str) -> dict[str, Any]:
    """Arrays by name, of arrays, tensors, or frames (pandas, Polars, PyArrow).

    A frame x becomes a list of its columns (n,), and `feature_names`.

    Raises:
        DataError: something else is returned, or what cannot be an array.
    """
    if not isinstance(returned, Mapping):
        if not isinstance(returned, tuple | list):
            raise DataError(
                f"{source}: {_WANTED}, and returned {type(returned).__name__}; return both"
            )
        if len(returned) != 2:
            raise DataError(
                f"{source}: {_WANTED}, and returned a {type(returned).__name__} of "
                f"{len(returned)}; return x and y alone"
            )
        returned = dict(zip(("x", "y"), returned, strict=True))
    if odd := [name for name in returned if not isinstance(name, str)]:
        raise DataError(
            f"{source}: {_WANTED}, and a name in it is of type {type(odd[0]).__name__}; use texts"
        )
    given = {name: value for name, value in returned.items() if not _is_frame(value)}
    arrays: dict[str, Any] = {name: _array(v, name, source) for name, v in given.items()}
    if "x" in returned and "x" not in given:
        arrays |= _columns(returned["x"], source)
        if "feature_names" in given:
            raise DataError(
                f"{source}: the columns of x have names, and so has feature_names; leave "
                "feature_names out"
            )
    if "y" in returned and "y" not in given:
        raise DataError(f"{source}: y is a table; give the one column of labels")
    return arrays


def _is_frame(value: Any) -> bool:
    return hasattr(value, "columns") and len(getattr(value, "shape", ())) == 2


def _columns(frame: Any, source: str) -> dict[str, Any]:
    names = list(getattr(frame, "column_names", frame.columns))
    if not len(frame) or not names:
        what = "examples" if names else "features"
        raise DataError(f"{source}: x has shape {frame.shape} and no {what}; fill it")
    if all(isinstance(name, int | np.integer) for name in names):  # pandas numbers what has none
        return {"x": _array(frame, "x", source)}
    if not all(isinstance(name, str) for name in names):
        raise DataError(f"{source}: columns of x have names that are no texts; rename them")
    if len(set(names)) < len(names):
        raise DataError(f"{source}: two columns of x have one name; rename or remove one")
    columns = [_numeric(_array(frame[name], "x", source)) for name in names]
    return {"x": columns, "feature_names": np.array(names)}


def _numeric(column: NDArray[Any]) -> NDArray[Any]:
    """What pandas keeps as objects, since a value is missing, as floats."""
    if column.dtype.kind != "O":
        return column
    try:
        given = [np.nan if type(value).__name__ == "NAType" else value for value in column]
        if any(isinstance(value, str | bytes) for value in given):
            return column
        return np.array(given, np.float64)
    except (TypeError, ValueError):
        return column


def _array(value: Any, name: str, source: str) -> NDArray[Any]:
    """An array of what has the form of one; bfloat16, which numpy has not, as float32."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise DataError(f"{source}: {name} is a sparse tensor; give {name}.to_dense()")
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value
    if hasattr(value, "toarray"):
        raise DataError(
            f"{source}: {name} is sparse, a {type(value).__name__}; give {name}.toarray()"
        )
    if np.ma.isMaskedArray(value):
        if np.ma.getmaskarray(value).any():
            raise DataError(
                f"{source}: {np.ma.getmaskarray(value).sum()} of {value.size} cells of {name} are "
                "masked; fill them, or remove their examples"
            )
        value = value.data
    try:
        array = np.asarray(value)
    except Exception as error:  # of the object's own code; rows of other lengths
        raise DataError(
            f"{source}: {name}, a {type(value).__name__}, is no array: its rows may be of other "
            "lengths; give numpy.ndarray"
        ) from error
    if array.dtype.kind == "O" and array.ndim == 0:
        raise DataError(f"{source}: {name} is of type {type(value).__name__}; give numpy.ndarray")
    return array
