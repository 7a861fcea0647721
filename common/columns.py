"""Named columns of numbers as features: float32, and what is said of those that are none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.names import counted, nth_row, quoted

#: From here on float32 skips whole numbers.
EXACT = 2**24
#: Rows of a column that are looked at for differences which float32 loses.
_SAMPLE = 10_000
#: How much float32 may move a number, as a share of the column's standard deviation.
_SHIFT = 1e-3
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Features:
    """x (n, columns) float32, finite, and the columns' names.

    `unfit` says of each other column, by its name, why it is no feature: the rule and the remedy.
    """

    x: NDArray[np.float32]
    names: tuple[str, ...]
    unfit: Mapping[str, str]
    notes: tuple[str, ...]


def features_of(names: Sequence[str], columns: Sequence[NDArray[Any] | str], n: int) -> Features:
    """Columns (n,) under their names; a text in place of one says why it is no column of numbers.

    Who needs a column that is unfit refuses it; others leave it out.
    """
    fit: dict[str, NDArray[Any]] = {}
    unfit: dict[str, str] = {}
    for name, column in zip(names, columns, strict=True):
        if isinstance(column, str):
            unfit[name] = f"column {name!r:.50} {column}"
        elif why := why_unfit(column):
            unfit[name] = f"column {name!r:.50} {why}"
        else:
            fit[name] = column
    x = np.empty((n, len(fit)), np.float32)
    for k, column in enumerate(fit.values()):
        x[:, k] = column
    return Features(x, tuple(fit), unfit, tuple(rounding(fit)))


def why_unfit(column: NDArray[Any]) -> str:
    """Why numbers (n, …) are no features, and what to do: missing, infinite, beyond float32."""
    if column.dtype.kind not in "uifb":
        return "is not numeric; encode it as numbers or remove it"
    if column.dtype.kind != "f":
        return ""
    rows = column.reshape(len(column), -1)
    missing = np.isnan(rows).any(axis=1)
    if missing.any():
        return (
            f"misses {missing.sum()} of {len(rows)} values, first "
            f"in {nth_row(int(missing.argmax()))}; fill them, or remove the rows"
        )
    infinite = np.isinf(rows).any(axis=1)
    if infinite.any():
        return f"holds Inf, first in {nth_row(int(infinite.argmax()))}; mend it, or remove the rows"
    with np.errstate(over="ignore"):
        beyond = np.isinf(rows.astype(np.float32)).any(axis=1)
    if beyond.any():
        return (
            f"holds numbers beyond float32, {_LARGEST:.2g}, first "
            f"in {nth_row(int(beyond.argmax()))}; scale it"
        )
    return ""


def rounding(columns: Mapping[str, NDArray[Any]]) -> list[str]:
    """The notes on columns (n,) of which float32 loses what they tell."""
    wide = {k: column for k, column in columns.items() if not np.can_cast(column.dtype, np.float32)}
    lost = [name for name, column in wide.items() if _loses(column)]
    small = [name for name, column in wide.items() if _vanishes(column)]
    notes = []
    if lost:
        notes.append(
            f"{counted(len(lost), 'column')} with numbers of more digits than float32 holds, read "
            f"rounded: {quoted(lost)}; subtract the smallest first, or scale"
        )
    if small:
        notes.append(
            f"{counted(len(small), 'column')} with numbers too near to 0 for float32, read as 0: "
            f"{quoted(small)}; scale, or give logarithms"
        )
    return notes


def _vanishes(column: NDArray[Any]) -> bool:
    with np.errstate(under="ignore"):
        return bool(((column != 0) & (column.astype(np.float32) == 0)).any())


def _loses(column: NDArray[Any]) -> bool:
    """Whether float32 changes whole numbers, or moves a number by a part of the column's spread.

    Or makes most different numbers equal, which one far away hides in the spread.
    """
    exact = column.astype(np.float64) if column.dtype != np.longdouble else column
    narrow = column.astype(np.float32)
    shift = np.abs(exact - narrow)
    changed = column != narrow.astype(column.dtype) if column.dtype.kind == "f" else shift > 0
    if (changed & (np.abs(exact) >= EXACT) & (exact == np.floor(exact))).any():
        return True
    some = np.linspace(0, len(column) - 1, min(len(column), _SAMPLE)).astype(int)
    different = len(np.unique(column[some]))
    if different > 1 and shift.max() > _SHIFT * np.std(exact):
        return True
    return len(np.unique(narrow[some])) < different / 2
