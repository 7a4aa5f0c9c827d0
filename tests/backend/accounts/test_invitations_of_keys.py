"""An invitation made by a key ends with the key, grants no more than the key has, and never the owner role."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backend.accounts.models import Invitation, Membership, Project, User
from backend.accounts.people.invitations import open_invitation
from backend.accounts.services import create_api_key, revoke_api_key
from tests.backend.conftest import Api, MakeKey

pytestmark = pytest.mark.django_db
WISH = {"email": "ina@example.org", "role": "member"}


def token_of(made: Any) -> str:
    assert made.status_code == 201, made.content
    return str(made.json()["link"].rpartition("/")[2])


def test_an_invitation_dies_with_the_key_that_made_it(api: Api, key_row: Any) -> None:
    token = token_of(api.post("/invitations", WISH))
    key, now = key_row(api.key), datetime.now(UTC)
    assert open_invitation(token, now=now) is not None
    revoke_api_key(key, now=now)
    assert open_invitation(token, now=now) is None
    assert Invitation.objects.get().made_with == key


def test_it_dies_with_the_key_that_made_its_key(api: Api, alice: User, key_row: Any) -> None:
    child = Api(api.post("/api-keys", {"name": "child", "scopes": ["team:read", "team:write"]}).json()["secret"])
    token = token_of(child.post("/invitations", WISH))
    revoke_api_key(key_row(api.key), now=datetime.now(UTC))
    assert open_invitation(token, now=datetime.now(UTC)) is None


def test_it_ends_no_later_than_the_key(alice: User, make_key: MakeKey) -> None:
    brief = Api(make_key(alice, expires_in=timedelta(hours=1)))
    token = token_of(brief.post("/invitations", WISH))
    assert open_invitation(token, now=datetime.now(UTC) + timedelta(minutes=59)) is not None
    assert open_invitation(token, now=datetime.now(UTC) + timedelta(minutes=61)) is None


@pytest.mark.parametrize("limit", ["project", "max_devices", "max_gpu_hours"])
def test_limited_key_cannot_invite(alice: User, project: Project, limit: str) -> None:
    value: Any = project if limit == "project" else 2
    _, text = create_api_key(
        team=project.team, created_by=alice, name="limited", scopes=["team:read", "team:write"], **{limit: value}
    )
    assert Api(text).post("/invitations", WISH).status_code == 403
    assert not Invitation.objects.exists()


def test_owners_are_made_by_people(api: Api, alice: User, bob: User, adam: User) -> None:
    assert api.post("/invitations", {"email": "ina@example.org", "role": "owner"}).status_code == 403
    assert api.request("PATCH", f"/members/{bob.public_id}", {"role": "owner"}).status_code == 403
    assert api.request("PATCH", f"/members/{bob.public_id}", {"role": "admin"}).status_code == 200
    Membership.objects.filter(user=adam).update(role="owner")
    assert api.request("PATCH", f"/members/{adam.public_id}", {"role": "member"}).status_code == 403
    assert api.request("DELETE", f"/members/{adam.public_id}").status_code == 403
    assert Membership.objects.filter(role="owner").count() == 2
