"""Labels as numbers of classes: whole numbers from 0, or texts, which name the classes."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.datasets import DataError
from common.names import clean, nth_row, ordered

#: Texts that stand for a missing value, in features and in labels: pyarrow's, and Python's.
MISSING = {
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("N/A", "NA", "NULL", "NaN", "n/a", "nan", "null", "None", "<NA>", "NaT"),
}
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
_THOUSANDS = re.compile(r"\s*[-+]?\d{1,3}(,\d{3})+(\.\d*)?\s*")
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d*,\d+([eE][-+]?\d+)?\s*")
_MOST = 2**31
_BOOLEANS = {"false": 0, "true": 1}


@dataclass(frozen=True, eq=False)
class Labels:
    """The numbers of the examples' classes, y (n,) int64 from 0.

    `classes` are the names of text labels, numbered by y, or empty. `written` is how a file writes
    labels that are numbers: the number of a text for each example (n,), and these texts.
    """

    y: NDArray[np.int64]
    classes: tuple[str, ...] = ()
    written: tuple[NDArray[np.int64], tuple[str, ...]] | None = None


def labels_of(values: NDArray[Any], source: str) -> Labels:
    """Labels (n,) of an array, numbers or texts.

    Raises:
        DataError: some are missing, numbers are not whole or below 0, or they are neither.
    """
    if values.dtype.kind == "b":
        return Labels(values.astype(np.int64), (), (values.astype(np.int64), ("False", "True")))
    if values.dtype.kind in "uif":
        return Labels(_whole(values, source))
    given = values.tolist()
    if values.dtype.kind in "OUT":
        known = [value for value in given if not _is_missing(value)]
        if known and all(isinstance(value, int | float | np.number) for value in known):
            numbers = [np.nan if _is_missing(value) else float(value) for value in given]
            return Labels(_whole(np.array(numbers), source))
        if all(isinstance(value, str) for value in known):
            return text_labels([v if isinstance(v, str) else None for v in given], source)
    raise DataError(
        f"{source}: y is of type {values.dtype}, must be whole numbers from 0, or texts; number "
        "the classes 0, 1, …, or name them"
    )


def text_labels(texts: Sequence[str | None], source: str) -> Labels:
    """Texts as classes in the order of their names; raises DataError where some are missing."""
    names = {text: clean(text or "") for text in set(texts)}
    missing = {text for text, name in names.items() if name in MISSING}
    if missing:
        raise _missing([k for k, text in enumerate(texts) if text in missing], len(texts), source)
    broken = {text for text, name in names.items() if len(name.splitlines()) > 1}
    if broken:
        row = next(k for k, text in enumerate(texts) if text in broken)
        raise DataError(
            f"{source}: the label in {nth_row(row)} has a line break; write it on one line, "
            "and close the quotes"
        )
    classes = ordered(names.values())
    if hint := comma_hint(classes):
        raise DataError(f"{source}: labels are numbers with commas; {hint}")
    number = {name: k for k, name in enumerate(classes)}
    return Labels(np.array([number[names[text]] for text in texts], np.int64), classes)


def written_labels(texts: Sequence[str | None], source: str) -> Labels:
    """Labels of a text file: numbers where all are numbers, or true and false; else texts."""
    labels = text_labels(texts, source)
    if all(name.lower() in _BOOLEANS for name in labels.classes):
        numbers = np.array([_BOOLEANS[name.lower()] for name in labels.classes], np.float64)
    elif are_numbers(labels.classes):
        numbers = np.array([float(name) for name in labels.classes])
    else:
        return labels
    return Labels(_whole(numbers[labels.y], source), (), (labels.y, labels.classes))


def are_numbers(texts: Collection[str]) -> bool:
    return bool(texts) and all(map(_NUMBER.fullmatch, texts))


def comma_hint(texts: Collection[str]) -> str:
    """What to do about commas in numbers, if they are what keeps texts from being numbers."""
    commas = [text for text in texts if "," in text]
    if not commas or not are_numbers([text for text in texts if "," not in text] or ["0"]):
        return ""
    if all(map(_THOUSANDS.fullmatch, commas)):
        return "write its numbers without commas, which may mean thousands"
    if all(map(_DECIMAL_COMMA.fullmatch, commas)):
        return "write its decimal commas as points"
    return ""


def _whole(values: NDArray[Any], source: str) -> NDArray[np.int64]:
    wide = values.astype(np.float64) if values.dtype.kind == "f" else values
    if wide.dtype.kind == "f" and (missing := np.flatnonzero(np.isnan(wide))).size:
        raise _missing(missing, len(wide), source)
    wrong = ~((wide >= 0) & (wide == np.floor(wide)) & (wide < _MOST))
    if wrong.any():
        raise DataError(
            f"{source}: the label in {nth_row(int(wrong.argmax()))} is not a whole number from 0; "
            "number the classes 0, 1, …"
        )
    return wide.astype(np.int64)


def _missing(rows: Sequence[int] | NDArray[np.int64], count: int, source: str) -> DataError:
    return DataError(
        f"{source}: {len(rows)} of {count} labels missing, first in "
        f"{nth_row(int(rows[0]))}; write a word such as 'none given', or remove the rows"
    )


def _is_missing(value: object) -> bool:
    """None, NaN, and what pandas has for them."""
    kind = type(value).__name__
    return (
        value is None or kind in ("NAType", "NaTType") or (kind[:5] == "float" and value != value)
    )
