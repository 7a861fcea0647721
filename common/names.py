"""Names of features and classes, by which data of several places are matched."""

import re
import unicodedata
from collections.abc import Iterable, Sequence


def clean(name: object) -> str:
    """A name as it is compared: without white space around it, in Unicode's composed form."""
    return unicodedata.normalize("NFC", str(name)).strip()


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once, sorted; by number where all are whole numbers, so that 10 follows 9."""
    found = set(names)
    if all(re.fullmatch("[0-9]{1,18}", name) for name in found):
        return tuple(sorted(found, key=lambda name: (int(name), name)))
    return tuple(sorted(found))


def twice(names: Sequence[str]) -> str | None:
    """The first name that stands there more than once."""
    return next((name for k, name in enumerate(names) if name in names[:k]), None)


def quoted(names: Sequence[str], most: int = 5) -> str:
    """Names for a message, long ones and long lists cut: of a message 300 characters are kept."""
    shown = ", ".join(repr(name if len(name) <= 30 else f"{name[:29]}…") for name in names[:most])
    return shown if len(names) <= most else f"{shown}, … ({len(names)} in all)"


def counted(count: int, thing: str, things: str = "") -> str:
    """`1 file`, `2 files`."""
    return f"{count} {thing if count == 1 else things or thing + 's'}"


def nth_row(index: int) -> str:
    """The place of an example, as all messages name it."""
    return f"row {index + 1} of the data (counted from 1)"
