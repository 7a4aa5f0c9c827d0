"""Rights in a team, as one table of roles.

                  owner   admin   member   viewer
    read                x       x       x        x
    submit, cancel      x       x       x
    create own keys     x       x       x        x      (what such a key may do: `scopes`)
    invite, projects,
    service accounts    x       x
    grant and revoke    any     all but owner
    require a second
    factor of admins    x

Invariant: a role can grant only what it can revoke, so an admin cannot grant or revoke the owner role.
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
    """Member for an owner or admin without a second factor, in a team that requires one."""
    return Role.MEMBER if lacks_second_factor(user, team, role) else role


def lacks_second_factor(user: User, team: Team, role: Role) -> bool:
    return team.requires_mfa and role in RULES and not has_second_factor(user)


def has_second_factor(user: User) -> bool:
    """Recovery codes alone do not count: they exist only in addition to a real factor."""
    real = Authenticator.objects.filter(user_id=user.pk).exclude(type=Authenticator.Type.RECOVERY_CODES)
    return bool(real.exists())
