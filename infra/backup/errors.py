"""An error that a person has to fix. The message names the fix."""


class BackupError(RuntimeError):
    """The backup or the restore was not made."""
