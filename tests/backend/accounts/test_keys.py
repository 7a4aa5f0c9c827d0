"""API keys: their text, and their owners."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backend.accounts.keys import tokens as keys
from backend.accounts.models import ApiKey, Role, User
from backend.accounts.services import create_api_key, recognise_api_key, revoke_api_key

MINUTE = timedelta(minutes=1)


def test_a_key_looks_as_documented_and_no_two_are_equal() -> None:
    text = keys.new_key_text()
    assert text.startswith("lam_live_") and len(text) == 9 + 8 + 1 + 43 + 6
    assert keys.is_well_formed(text) and keys.new_key_text() != text


@pytest.mark.parametrize("index", [0, 9, 17, 30, -1])
def test_one_wrong_character_is_noticed_offline(index: int) -> None:
    text = keys.new_key_text()
    other = "x" if text[index] != "x" else "y"
    assert not keys.is_well_formed(text[:index] + other + (text[index + 1 :] if index != -1 else ""))


@pytest.mark.parametrize("text", ["", "lam_live_", "\x00", "\ud800", "é" * 67, "lam_live_" + "0" * 100_000])
def test_rubbish_is_no_key_and_costs_no_query(text: str, django_assert_num_queries: Callable[[int], Any]) -> None:
    assert recognise_api_key(text, now=datetime.now(UTC)) is None  # without the db fixture a query would raise


def test_the_secret_is_not_stored(alice: User) -> None:
    row, text = create_api_key(team=alice.memberships.get().team, created_by=alice, name="ci")
    stored = " ".join(str(value) for value in ApiKey.objects.filter(pk=row.pk).values_list()[0])
    assert text[18:] not in stored and text[:17] == row.prefix


def test_a_key_speaks_for_its_team_until_it_is_revoked(alice: User, now: datetime) -> None:
    row, text = create_api_key(team=alice.memberships.get().team, created_by=alice, name="ci")
    caller = recognise_api_key(text, now=now)
    assert caller is not None and (caller.team, caller.user, caller.role) == (row.team, alice, Role.OWNER)
    revoke_api_key(row, now=now)
    assert recognise_api_key(text, now=now) is None
    revoke_api_key(row, now=now + MINUTE)
    assert row.revoked_at == now


def test_a_key_dies_at_its_expiry_and_not_before(alice: User, now: datetime) -> None:
    team = alice.memberships.get().team
    _, text = create_api_key(team=team, created_by=alice, name="ci", expires_at=now)
    assert recognise_api_key(text, now=now - MINUTE) is not None
    assert recognise_api_key(text, now=now) is None


def test_another_secret_under_a_known_prefix_is_refused(alice: User, now: datetime) -> None:
    row, text = create_api_key(team=alice.memberships.get().team, created_by=alice, name="ci")
    ApiKey.objects.filter(pk=row.pk).update(secret_sha256=keys.digest_of(keys.new_key_text()))
    assert recognise_api_key(text, now=now) is None


@pytest.mark.parametrize("change", ["left the team", "was deactivated"])
def test_a_key_dies_with_its_owners_membership(bob: User, now: datetime, change: str) -> None:
    _, text = create_api_key(team=bob.memberships.get().team, created_by=bob, name="ci")
    if change == "left the team":
        bob.memberships.all().delete()
    else:
        User.objects.filter(pk=bob.pk).update(is_active=False)
    assert recognise_api_key(text, now=now) is None


def test_use_is_noted_at_most_once_a_minute(alice: User, now: datetime) -> None:
    row, text = create_api_key(team=alice.memberships.get().team, created_by=alice, name="ci")
    for moment in (now, now + MINUTE / 2):
        recognise_api_key(text, now=moment)
        row.refresh_from_db()
        assert row.last_used_at == now
    recognise_api_key(text, now=now + 2 * MINUTE)
    row.refresh_from_db()
    assert row.last_used_at == now + 2 * MINUTE


def test_an_unknown_scope_is_refused(alice: User) -> None:
    with pytest.raises(ValueError, match="unknown scopes"):
        create_api_key(team=alice.memberships.get().team, created_by=alice, name="ci", scopes=["everything"])
