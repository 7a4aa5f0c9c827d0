"""The one kind of error that a person at the terminal reads."""


class LocalError(RuntimeError):
    """An error that says what went wrong and what to do about it, in one or two sentences."""
