"""The base of all errors that a user can mend."""


class GreedyfedError(Exception):
    """An error whose text names the value, the rule and the remedy; no traceback is needed."""

    #: Of the command: 2 where nothing was started, since the request is wrong.
    exit_code = 2


class RunFailedError(GreedyfedError):
    """The run was started, and stopped before its end; what was learned is on disk."""

    exit_code = 1


def one_line(error: BaseException) -> str:
    """What an error of other code says, which may be several lines, or nothing but its name."""
    return printable(" ".join(str(error).split())) or type(error).__name__


def printable(text: str) -> str:
    r"""The text with `\x1b`, `\u202e`, … for what steers a terminal or turns letters around."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
