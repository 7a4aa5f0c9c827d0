"""Whether anybody could sign in to this site at all.

Invariant: once somebody is there, nobody asks the database again.
"""

from backend.accounts.models import User


class FirstPerson:
    """What a process knows of it."""

    def __init__(self) -> None:
        self._is_there = False

    def is_there(self) -> bool:
        """A site that loses its last person hears of it from its next process."""
        self._is_there = self._is_there or User.objects.filter(is_service=False).exists()
        return self._is_there


first_person = FirstPerson()
