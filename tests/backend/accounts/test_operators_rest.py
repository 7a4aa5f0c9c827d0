"""Operators by REST: teams and users of the whole site, with a scope that no team's key has, and no way to log in."""

from typing import Any

import pytest

from backend.accounts.keys.scopes import DEFAULT_SCOPES, OPERATES, scopes_of_role
from backend.accounts.models import ApiKey, Invitation, Membership, Role, Team, User
from backend.accounts.signing_in.chains import SITE
from backend.audit.models import AuditEntry
from backend.rest import api as rest
from tests.backend.conftest import Api, MakeKey


@pytest.fixture
def operator(adam: User, make_key: MakeKey) -> Api:
    User.objects.filter(pk=adam.pk).update(is_staff=True)
    return Api(make_key(User.objects.get(pk=adam.pk), scopes=(OPERATES, "quota:write")))


def test_no_role_and_no_default_key_has_the_operator_scope() -> None:
    assert OPERATES not in DEFAULT_SCOPES
    assert not any(OPERATES in scopes_of_role(role) for role in Role)


def test_former_operator_loses_the_scope_at_once(operator: Api, adam: User) -> None:
    assert operator.get("/operator/teams").status_code == 200
    User.objects.filter(pk=adam.pk).update(is_staff=False)
    assert operator.get("/operator/teams").status_code == 403


def test_a_team_is_made_with_an_invitation_for_its_owner(operator: Api, team: Team) -> None:
    created = operator.post("/operator/teams", {"name": "Wasps", "owner": "Ina@example.org"})
    assert created.status_code == 201, created.content
    told = created.json()
    assert told["owner"] == "ina@example.org" and "/invitations/" in told["link"]
    invitation = Invitation.objects.get(team_id=told["team"])
    assert invitation.role == Role.OWNER and not Membership.objects.filter(team_id=told["team"]).exists()
    entry = AuditEntry.objects.get(action="team.created")
    assert (entry.team_id, entry.actor) == (told["team"], f"key:{ApiKey.objects.get().pk}")
    assert operator.post("/operator/teams", {"name": "wasps", "owner": "ida@example.org"}).status_code == 409
    assert operator.post("/operator/teams", {"name": "", "owner": "nobody"}).status_code == 422
    listed = {each["name"]: each for each in operator.get("/operator/teams").json()["data"]}
    assert listed["Wasps"]["num_owners"] == 0 and "This site" not in listed


def test_people_are_listed_page_by_page_with_their_teams(operator: Api, alice: User, bob: User, team: Team) -> None:
    first = operator.get("/operator/people?limit=2").json()
    assert [each["email"] for each in first["data"]] == ["adam@example.org", "alice@example.org"] and first["has_more"]
    assert first["data"][1]["teams"] == [{"team": team.pk, "role": "owner"}]
    rest = operator.get(f"/operator/people?limit=2&after={first['next_cursor']}").json()
    assert [each["email"] for each in rest["data"]] == ["bob@example.org"] and not rest["has_more"]
    people = operator.get("/operator/people?q=BOB").json()["data"]
    assert [each["id"] for each in people] == [bob.public_id]
    assert operator.get("/operator/people?after=nobody").status_code == 404


def test_an_account_is_closed_and_opened_and_never_one_s_own(
    operator: Api, bob: User, adam: User, make_key: MakeKey
) -> None:
    theirs = Api(make_key(bob))
    closed = operator.post(f"/operator/people/{bob.public_id}/close", {})
    assert closed.json()["is_active"] is False and theirs.get("/me").status_code == 401
    assert operator.post(f"/operator/people/{bob.public_id}/open", {}).json()["is_active"] is True
    assert theirs.get("/me").status_code == 200
    assert operator.post(f"/operator/people/{bob.public_id}/end-sessions", {}).json() == {"ended": 0}
    refused = operator.post(f"/operator/people/{adam.public_id}/close", {})
    assert (refused.status_code, refused.json()["code"]) == (409, "closes_oneself")
    assert operator.post("/operator/people/usr_nobody/close", {}).status_code == 404
    assert AuditEntry.objects.filter(action="account.closed", actor__startswith="key:").exists()
    assert not AuditEntry.objects.filter(team_id=SITE, action="account.closed").exists(), (
        "it is in the log of their team"
    )


@pytest.mark.long
def test_operator_key_gives_no_access_to_accounts_or_teams() -> None:
    """No route returns a reset link, or a link for another owner."""
    paths: dict[str, Any] = rest.get_openapi_schema()["paths"]
    assert not [path for path in paths if "/operator/" in path and ("reset" in path or "password" in path)]
    assert [path for path in paths if path.endswith("/owner")] == []
