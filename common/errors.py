"""The base of all errors that a user can mend."""


class GreedyfedError(Exception):
    """An error whose text names the value, the rule and the remedy; no traceback is needed."""
