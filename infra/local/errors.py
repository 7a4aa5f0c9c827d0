"""The one kind of error that a person at the terminal reads."""


class LocalError(RuntimeError):
    """What went wrong and what to do about it, in one or two sentences."""
