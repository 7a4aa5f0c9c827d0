"""The actor of a change in a team: a user on a page, or an API key that acts for its owner.

Invariants:
- the actor holds the required right at the time of the change, in the changed team; other actors are refused;
- every change leaves one entry in the team's audit log, in the same transaction.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from backend.accounts.keys.scopes import scopes_of_role
from backend.accounts.models import ApiKey, Role, Team, User
from backend.accounts.rights import GRANTS, RULES, effective_role
from backend.accounts.selectors import role_in
from backend.accounts.services import Caller
from backend.audit.services import record_action
from backend.errors import Denied


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    user: User
    team: Team
    role: Role
    key: ApiKey | None = None

    @classmethod
    def of(cls, caller: Caller) -> "Acting":
        return cls(user=caller.user, team=caller.team, role=caller.role, key=caller.key)

    @classmethod
    def person(cls, user: User, team: Team) -> "Acting | None":
        """The user's actor on a page of the team; None if the user is not a member."""
        role = role_in(user, team)
        return cls(user=user, team=team, role=effective_role(user, team, role)) if role else None

    @property
    def name(self) -> str:
        return f"key:{self.key.pk}" if self.key else f"user:{self.user.pk}"

    @property
    def scopes(self) -> frozenset[str]:
        """The scopes that the actor may pass on to a new key."""
        own = scopes_of_role(self.role, is_operator=self.user.is_staff)
        return own & frozenset(self.key.scopes) if self.key else own

    @property
    def rules(self) -> bool:
        return self.role in RULES and (self.key is None or "team:write" in self.scopes)

    def refuse_without(self, scope: str) -> None:
        if scope not in self.scopes:
            raise Denied(f"Your key or role lacks the scope {scope}. Use a key with this scope.")

    def refuse_unless_ruling(self) -> None:
        if not self.rules:
            raise Denied("Only owners and admins of the team can do this.")

    def refuse_unless_granting(self, *roles: Role) -> None:
        """Refuses unless the actor may both give and take each role. A key never grants or revokes the owner role."""
        self.refuse_unless_ruling()
        if self.key is not None and Role.OWNER in roles:
            raise Denied("An API key cannot add or remove owners. An owner can, on the members page.")
        not_granted = [role for role in roles if role not in GRANTS[self.role]]
        if not_granted:
            raise Denied(f"The role {self.role} cannot grant or revoke the role {not_granted[0]}. An owner can.")

    def record(self, action: str, target: str, *, now: datetime, data: Mapping[str, Any] | None = None) -> None:
        record_action(team_id=self.team.pk, actor=self.name, action=action, target=target, now=now, data=data)
