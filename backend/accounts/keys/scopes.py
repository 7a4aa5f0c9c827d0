"""Scopes: everything that a key may be allowed to do, and the roles that include each.

Invariants:
- a key never does more than its owner could: its scopes are intersected with those of the owner's present role;
- a scope that is not listed here does not exist; a route requires exactly one.
"""

from collections.abc import Mapping
from typing import Final

from backend.accounts.models import Role

SCOPES: Final[Mapping[str, str]] = {
    "jobs:read": "Read jobs, their events, metrics, logs and timelines.",
    "jobs:write": "Submit, cancel, pause, resume and retry jobs.",
    "trajectories:read": "Read trajectories: the texts and tokens that models generated.",
    "checkpoints:read": "List and download checkpoints and models.",
    "checkpoints:write": "Pin, delete and promote checkpoints.",
    "data:read": "List data sets and uploaded models.",
    "data:write": "Upload and delete data sets and models.",
    "usage:read": "Read usage and budgets.",
    "team:read": "Read members, projects and service accounts.",
    "team:write": "Invite, change and remove members, projects, service accounts and keys.",
    "webhooks:write": "Manage webhooks and read their deliveries.",
    "audit:read": "Read the audit log.",
    "quota:write": "Change pools, quotas and budgets of every team: for operators of the platform.",
    "site:operate": "Announce maintenance, drain hosts, create teams, close accounts: for operators of the platform.",
}
OPERATES: Final = "site:operate"
_OF_OPERATORS: Final = frozenset({"quota:write", OPERATES})
"""No role of a team includes them, so neither a team member's key nor a service account ever has them."""

_READS: Final = frozenset(
    {"jobs:read", "trajectories:read", "checkpoints:read", "data:read", "usage:read", "team:read"}
)
_WORKS: Final = _READS | {"jobs:write", "checkpoints:write", "data:write"}
_RULES: Final = _WORKS | {"team:write", "webhooks:write", "audit:read"}
_OF_ROLE: Final[Mapping[Role, frozenset[str]]] = {
    Role.VIEWER: _READS,
    Role.MEMBER: _WORKS,
    Role.ADMIN: _RULES,
    Role.OWNER: _RULES,
}
DEFAULT_SCOPES: Final = tuple(sorted(_WORKS))
"""The scopes of a key that was created without a list of scopes."""


def scopes_of_role(role: Role, *, is_operator: bool = False) -> frozenset[str]:
    return _OF_ROLE[role] | (_OF_OPERATORS if is_operator else frozenset())
