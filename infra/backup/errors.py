"""An error that a person has to fix. The message names the fix."""


class BackupError(RuntimeError):
    """The backup or restore failed."""
