"""Who a session belongs to, and the user's teams: of many sessions with one set of queries, for sockets.

Invariant: a session has rights here exactly if a request with its cookie is authenticated, and nothing is written.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.utils.crypto import constant_time_compare

from backend.accounts.models import Membership, User
from backend.accounts.sessions.following import over_among
from backend.clock import database_now


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRights:
    user_id: int
    public_id: str
    teams: frozenset[str]


def rights_of(keys: Collection[str]) -> dict[str, SessionRights]:
    """By session key. A session without rights has no entry."""
    contents = _contents_of(set(keys) - over_among(keys))
    users = User.objects.filter(is_active=True).in_bulk({_user_id(content) for content in contents.values()})
    teams: defaultdict[int, set[str]] = defaultdict(set)
    for user_id, team_id in Membership.objects.filter(user__in=users).values_list("user_id", "team_id"):
        teams[user_id].add(team_id)
    found = {}
    for key, content in contents.items():
        user = users.get(_user_id(content))
        if user is not None and _is_of(content, user):
            found[key] = SessionRights(user_id=user.pk, public_id=user.public_id, teams=frozenset(teams[user.pk]))
    return found


def _contents_of(keys: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Of those that exist and belong to a user."""
    rows = Session.objects.filter(session_key__in=keys, expire_date__gt=database_now())
    store = SessionStore()
    contents = {row.session_key: store.decode(row.session_data) for row in rows}
    return {key: content for key, content in contents.items() if SESSION_KEY in content}


def _user_id(content: Mapping[str, Any]) -> int:
    return int(content[SESSION_KEY])


def _is_of(content: Mapping[str, Any], user: User) -> bool:
    """As in `django.contrib.auth.get_user`: a changed password ends the session."""
    if content.get(BACKEND_SESSION_KEY) not in settings.AUTHENTICATION_BACKENDS:
        return False
    current = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    return any(constant_time_compare(content.get(HASH_SESSION_KEY, ""), each) for each in current)
