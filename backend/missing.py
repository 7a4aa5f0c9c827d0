"""What is wrong with the environment that a process was started in. It knows nothing, so that everybody may say it."""


class MissingSetting(RuntimeError):
    """A variable of the environment is missing or malformed."""
