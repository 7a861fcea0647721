"""CSV files as people write them: separators, encodings, quotes; pyarrow is loaded only when used.

What cannot be read is placed by its line or row, and not quoted.
"""

import codecs
import csv
import itertools
from pathlib import Path
from typing import Any

from common.datasets import DataError
from common.labels import MISSING
from common.names import clean, counted, nth_row

_SEPARATORS = ",;\t|"
_UTF16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
#: How files begin that are no text.
_PACKED = {
    b"\x1f\x8b": "is packed by gzip; unpack it",
    b"PK\x03\x04": "is a ZIP or Excel file; save it as CSV",
}
_CHUNK = 2**20
#: Lines that a header may have, whose names may have line breaks.
_HEADER = 100


def read_csv(path: Path, label: str, source: str) -> Any:
    """The table of a CSV file as pyarrow reads it, its label column as texts.

    Raises:
        DataError: it is no text in UTF-8, is empty, has rows of another length than its header, or
            a quote that is not closed.
        pyarrow.ArrowInvalid, OSError: it is not readable for other reasons.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow

    quotes = _check_text(path, source)
    with open(path, encoding="utf-8-sig", newline="") as file:
        lines = itertools.dropwhile(lambda line: not line.strip(), file)  # as pyarrow does
        begin = list(itertools.islice(lines, _HEADER))
    if not begin:
        raise DataError(f"{source}: is empty; write a header and rows")
    headers = {s: _header(begin, s) for s in _SEPARATORS}
    right = {s: h for s, h in headers.items() if label in map(clean, h)} or headers
    separator = max(right, key=lambda s: len(right[s]))
    if quotes:
        _check_quotes(path, separator, source)
    if begin[0].startswith("#") and label not in map(clean, right[separator]):
        raise DataError(f"{source}: begins with a comment, by '#'; remove such lines")
    wrong: list[Any] = []

    def ragged(row: Any) -> str:
        wrong.append(row)
        return "error"

    def read(threads: bool) -> Any:
        return arrow.read_csv(
            path,
            arrow.ReadOptions(use_threads=threads),
            arrow.ParseOptions(
                delimiter=separator, newlines_in_values=quotes, invalid_row_handler=ragged
            ),
            arrow.ConvertOptions(
                null_values=sorted(MISSING),
                column_types={h: pa.string() for h in right[separator] if clean(h) == label},
            ),
        )

    try:
        return read(threads=True)
    except pa.ArrowInvalid as error:
        if len(begin) == 1 and not begin[0].endswith(("\n", "\r")):
            raise DataError(f"{source}: has a header, but no rows; fill it") from error
        if not wrong:
            raise
    wrong.clear()
    try:  # once more, as rows are counted by one thread only
        return read(threads=False)
    except pa.ArrowInvalid as error:
        if not wrong:
            raise
        row, comment = wrong[0], wrong[0].text.startswith("#")
        what = "write it anew" if not comment else "it begins with '#', as comments do; remove it"
        raise DataError(
            f"{source}: {nth_row(row.number - 2)} has "
            f"{counted(row.actual_columns, 'field')}, the header {row.expected_columns}; {what}"
        ) from error


def _header(lines: list[str], separator: str) -> list[str]:
    """Names as they stand in the file."""
    try:
        return next(csv.reader(lines, delimiter=separator), [])
    except csv.Error:  # no header is that long
        return []


def _check_quotes(path: Path, separator: str, source: str) -> None:
    """An open quote takes all lines up to the next one, or the end, into one value."""
    end = "\0"
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(itertools.chain(file, ["\n", end]), delimiter=separator)
        line, row = 1, list[str]()
        try:
            while row != [end]:
                line, row = rows.line_num + 1, next(rows)
        except (StopIteration, csv.Error) as error:  # of more than 128 KiB in one value
            raise _open_quote(line, source) from error


def _open_quote(line: int, source: str) -> DataError:
    return DataError(
        f"{source}: a quote that opens in line {line} is not closed; close it, or write two quotes "
        "for one in a text"
    )


def _check_text(path: Path, source: str) -> bool:
    """Whether there are quotes in a file, which must be UTF-8."""
    decoder, position, line = codecs.getincrementaldecoder("utf-8")(), 0, 1
    quotes = False
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            if not position and chunk.startswith(_UTF16):
                raise DataError(f"{source}: is UTF-16 text; save it as UTF-8")
            for magic, what in _PACKED.items():
                if not position and chunk.startswith(magic):
                    raise DataError(f"{source}: {what}")
            quotes = quotes or b'"' in chunk
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
    return quotes
