"""The one kind of error that a person at the terminal reads."""


class LocalError(RuntimeError):
    """An error whose message names the problem and the fix, in one or two sentences."""
