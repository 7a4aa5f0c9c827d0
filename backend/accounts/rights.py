"""Rights in a team: who may do what, in one table.

                      owner   admin   member   viewer
    look                x       x       x        x
    submit, cancel      x       x       x
    keys of one's own   x       x       x        x      (what such a key may do: `scopes`)
    invite, projects,
    service accounts    x       x
    give and take       any     all but owner
    the second factor
    of those who rule   x

Invariant: nobody gives a role that they could not take away, so an admin cannot make or unmake an owner.
"""

from collections.abc import Mapping
from typing import Final

from allauth.mfa.models import Authenticator

from backend.accounts.models import Role, Team, User

RULES: Final = frozenset({Role.OWNER, Role.ADMIN})
GRANTS: Final[Mapping[Role, frozenset[Role]]] = {
    Role.OWNER: frozenset(Role),
    Role.ADMIN: frozenset({Role.ADMIN, Role.MEMBER, Role.VIEWER}),
    Role.MEMBER: frozenset(),
    Role.VIEWER: frozenset(),
}
OF_SERVICE_ACCOUNTS: Final = frozenset({Role.MEMBER, Role.VIEWER})


def effective_role(user: User, team: Team, role: Role) -> Role:
    """In a team that asks for a second factor, who rules without one counts as a member."""
    return Role.MEMBER if lacks_second_factor(user, team, role) else role


def lacks_second_factor(user: User, team: Team, role: Role) -> bool:
    return team.requires_mfa and role in RULES and not has_second_factor(user)


def has_second_factor(user: User) -> bool:
    """Recovery codes alone are none: they are made beside a real one."""
    real = Authenticator.objects.filter(user_id=user.pk).exclude(type=Authenticator.Type.RECOVERY_CODES)
    return bool(real.exists())
