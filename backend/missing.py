"""The error of an invalid environment. Imports nothing, so that every module may raise it."""


class MissingSetting(RuntimeError):
    """A variable of the environment is missing or malformed."""
