"""Fields of Flower's records, checked: whoever sent them is not trusted."""

from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from common.errors import GreedyfedError

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord)
#: Of what a client may say: whole numbers that float64 holds exactly, the epochs of a round, and
#: figures whose squares and sums stay finite.
MAX_COUNT, MAX_EPOCHS, MAX_FIGURE = 2**53, 10**6, 1e100


class BadReplyError(GreedyfedError):
    """A reply that cannot be used; the text says why."""


def record_in(content: RecordDict, name: str, kind: type[R]) -> R | None:
    """The record of that name and kind; Flower's own views by kind copy all records each time."""
    record = content.get(name)
    return record if isinstance(record, kind) else None


def names(value: object, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise BadReplyError(f"{name} is {cut(value)}, not a list of names")
    return tuple(value)


def whole(value: object, name: str, least: int = 1, most: int = MAX_COUNT) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadReplyError(f"{name} is {cut(value)}, not a whole number")
    if value < least:
        raise BadReplyError(f"{name} is {cut(value)}, not {least} or more")
    if value > most:
        raise BadReplyError(f"{name} is {cut(value)}, more than {most}")
    return value


def figure(value: object, name: str, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise BadReplyError(f"{name} is {cut(value)}, not a number")
    if not least <= value <= MAX_FIGURE:
        raise BadReplyError(f"{name} is {cut(value)}, not {least:g} to {MAX_FIGURE:g}")
    return float(value)


def cut(value: object) -> str:
    """A value as an error shows it: short, on one line."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return f"{value!r:.50}"
