"""Whether the site has a user who can sign in.

Invariant: once a user exists, no further query is made.
"""

from backend.accounts.models import User


class FirstPerson:
    """A process' cached answer."""

    def __init__(self) -> None:
        self._is_there = False

    def is_there(self) -> bool:
        """A site that loses its last user notices after a restart."""
        self._is_there = self._is_there or User.objects.filter(is_service=False).exists()
        return self._is_there


first_person = FirstPerson()
