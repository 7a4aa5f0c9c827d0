"""What a person has to see to. The message says what to do."""


class BackupError(RuntimeError):
    """The backup or the restore was not made."""
