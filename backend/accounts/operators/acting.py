"""The acting operator of the platform: a user on a page, or a key of theirs.

Invariant: a user who is not an operator at that moment gets a 404, and every action writes an entry: in the log of the
team concerned, else in the site's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backend.accounts.models import ApiKey, User
from backend.accounts.services import Caller
from backend.accounts.signing_in.chains import site_chain
from backend.audit.services import record_action
from backend.errors import Denied, NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    user: User
    key: ApiKey | None = None

    @classmethod
    def acting(cls, user: User) -> "Operator":
        """Raises `NotFound`: pages for operators are hidden from other users."""
        if not (user.is_active and user.is_staff):
            raise NotFound
        return cls(user=user)

    @classmethod
    def speaking(cls, caller: Caller, scope: str) -> "Operator":
        """The operator behind an API key. Raises `Denied`."""
        if scope not in caller.scopes or not caller.user.is_staff:
            raise Denied(f"This needs the scope {scope}, which only operators of the platform have.")
        return cls(user=caller.user, key=caller.key)

    @property
    def name(self) -> str:
        return f"key:{self.key.pk}" if self.key else f"user:{self.user.pk}"

    def record(
        self, action: str, target: str, *, now: datetime, data: Mapping[str, Any] | None = None, team_id: str = ""
    ) -> None:
        record_action(
            team_id=team_id or site_chain(), actor=self.name, action=action, target=target, now=now, data=data
        )
