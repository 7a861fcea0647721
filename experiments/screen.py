"""What a terminal shows of runs: text as it is, never markup or control characters."""

from rich.text import Text

from common.errors import printable


def plain(text: object) -> Text:
    """Ids, reasons, names of files: rich would take `[/red]` in them for markup."""
    return Text(printable(str(text)))
