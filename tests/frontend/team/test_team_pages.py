"""Keys and members: permissions of each role, secrets shown once, and changes only through the services."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.test import Client

from backend.accounts.models import ApiKey, Invitation, Membership, Role, ServiceAccount, User
from backend.accounts.services import recognise_api_key
from tests.frontend.html_reading import text_of
from tests.frontend.seed import World

KEY = re.compile(r"lam_live_[0-9A-Za-z]{8}_[0-9A-Za-z]{49}")


def make_key(client: Client, **typed: Any) -> Any:
    return client.post(
        "/keys/", {"name": "laptop", "scopes": ["jobs:read", "jobs:write"], "lasts": "30"} | typed, follow=True
    )


@pytest.mark.parametrize("path", ["/keys/", "/members/"])
def test_strangers_are_sent_to_sign_in(db: None, path: str) -> None:
    assert Client().get(path)["Location"] == f"/accounts/login/?next={path}"


def test_a_new_key_is_shown_once_and_works(world: World, owner: Client) -> None:
    made = make_key(owner)
    (secret,) = set(KEY.findall(text_of(made)))
    assert "no-store" in made["Cache-Control"]
    caller = recognise_api_key(secret, now=datetime.now(UTC))
    assert caller is not None and caller.user == world.owner and caller.scopes == {"jobs:read", "jobs:write"}
    again = owner.get(made.redirect_chain[-1][0])
    assert not KEY.search(text_of(again)) and ApiKey.objects.count() == 1, "a reload makes none and shows none"
    page = text_of(owner.get("/keys/"))
    assert not KEY.search(page) and secret[:17] in page
    assert not any(secret[18:] in str(row.get_decoded()) for row in Session.objects.all()), "not in the session either"


def test_pending_secret_is_sealed_and_only_for_its_creator(world: World, owner: Client, viewer: Client) -> None:
    sent = owner.post("/keys/", {"name": "laptop", "scopes": ["jobs:read"], "lasts": "30"})
    assert sent.status_code == 302
    kept = str([row.get_decoded() for row in Session.objects.all()])
    assert ApiKey.objects.get().pk in kept and not KEY.search(kept)
    assert not KEY.search(text_of(viewer.get("/keys/", {"made": ApiKey.objects.get().pk})))
    assert KEY.search(text_of(owner.get(sent["Location"])))
    assert ApiKey.objects.get().pk not in str([row.get_decoded() for row in Session.objects.all()])


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"name": ""}, "Name: 1 to 80 characters"),
        ({"name": "x" * 81}, "Name: 1 to 80 characters"),
        ({"scopes": []}, "choose at least one"),
        ({"scopes": ["quota:write"]}, "quota:write is not among"),
        ({"scopes": ["everything"]}, "Unknown scope"),
        ({"lasts": "99999"}, "Expiration"),
        ({"max_devices": "0"}, "whole number"),
        ({"max_devices": "1.5"}, "whole number"),
        ({"max_devices": "NaN"}, "whole number"),
        ({"max_gpu_hours": "1e99"}, "GPU-hours"),
        ({"max_gpu_hours": "0.001"}, "GPU-hours"),
    ],
)
def test_invalid_key_form_shows_errors_and_keeps_input(owner: Client, typed: dict[str, Any], said: str) -> None:
    answer = make_key(owner, **typed)
    assert answer.status_code == 422 and said in text_of(answer)
    assert not ApiKey.objects.exists()
    if "name" not in typed:
        assert 'value="laptop"' in text_of(answer)


def test_a_viewer_makes_a_key_that_only_looks(world: World, viewer: Client) -> None:
    assert "jobs:write" not in text_of(viewer.get("/keys/"))
    assert make_key(viewer).status_code == 422
    assert make_key(viewer, scopes=["jobs:read"]).status_code == 200
    assert ApiKey.objects.get().owner == world.viewer


def test_members_revoke_own_keys_and_admins_all(world: World, owner: Client, viewer: Client) -> None:
    make_key(owner, name="mine-alone")
    assert "mine-alone" not in text_of(viewer.get("/keys/"))
    key = ApiKey.objects.get()
    assert viewer.post(f"/keys/{key.pk}/revoke").status_code == 404
    make_key(viewer, name="hers", scopes=["jobs:read"])
    assert "hers" in text_of(owner.get("/keys/"))
    hers = ApiKey.objects.get(name="hers")
    assert owner.post(f"/keys/{hers.pk}/revoke").status_code == 302
    hers.refresh_from_db()
    assert hers.revoked_at is not None
    key.refresh_from_db()
    assert key.revoked_at is None


def test_another_teams_pages_do_not_exist(world: World, outsider: Client, owner: Client) -> None:
    make_key(owner)
    key = ApiKey.objects.get()
    for path in ("/keys/", "/members/"):
        assert outsider.get(f"{path}?team={world.team.pk}").status_code == 404
    assert outsider.post(f"/keys/{key.pk}/revoke").status_code == 404
    assert outsider.post(f"/members/{world.viewer.public_id}/change", {"remove": "yes"}).status_code == 404
    assert Membership.objects.filter(user=world.viewer, team=world.team).exists()


def test_an_owner_invites_and_the_link_is_shown_once(world: World, owner: Client) -> None:
    made = text_of(owner.post("/members/", {"email": "new@example.org", "role": "admin"}, follow=True))
    (link,) = set(re.findall(r"/invitations/[0-9A-Za-z_-]{43}", made))
    assert link not in text_of(owner.get("/members/"))
    assert "new@example.org" in text_of(owner.get("/members/"))
    assert Client().get(link).status_code == 200
    owner.post(f"/invitations/{Invitation.objects.get().pk}/revoke")
    assert Client().get(link).status_code == 404


def test_a_viewer_sees_members_and_no_button(world: World, viewer: Client) -> None:
    page = text_of(viewer.get("/members/"))
    assert world.owner.email in page and "Invite a member" not in page and "Remove" not in page
    assert viewer.post("/members/", {"email": "x@example.org", "role": "viewer"}).status_code == 403
    viewer.post(f"/members/{world.viewer.public_id}/change", {"role": "owner"})
    viewer.post(f"/members/{world.owner.public_id}/change", {"remove": "yes"})
    viewer.post("/service-accounts/", {"name": "mine", "role": "member"})
    viewer.post("/members/rules", {"requires_mfa": "yes"})
    roles = dict(Membership.objects.filter(team=world.team).values_list("user__email", "role"))
    assert roles == {world.owner.email: Role.OWNER, world.viewer.email: Role.VIEWER}
    assert not Invitation.objects.exists() and not ServiceAccount.objects.exists()


def test_the_last_owner_is_told_why_they_cannot_go(world: World, owner: Client) -> None:
    page = owner.get("/members/")
    assert "the last owner cannot leave" in text_of(page)
    answer = owner.post(f"/members/{world.owner.public_id}/change", {"remove": "yes"}, follow=True)
    assert "Make another member an owner first" in text_of(answer)


def test_who_leaves_is_shown_the_jobs(world: World, viewer: Client) -> None:
    answer = viewer.post(f"/members/{world.viewer.public_id}/change", {"remove": "yes"})
    assert answer["Location"] == "/jobs/"


def test_a_hostile_name_is_text(world: World, owner: Client) -> None:
    hostile = "<script>alert(1)</script>"
    make_key(owner, name=hostile)
    owner.post("/service-accounts/", {"name": hostile, "role": "member"})
    for path in ("/keys/", "/members/"):
        page = text_of(owner.get(path))
        assert hostile not in page and "&lt;script&gt;alert(1)" in page


def test_a_service_accounts_key_is_made_by_who_rules(world: World, owner: Client, viewer: Client) -> None:
    owner.post("/service-accounts/", {"name": "nightly", "role": "member"})
    account = ServiceAccount.objects.get()
    assert "nightly" in text_of(owner.get("/keys/"))
    assert make_key(viewer, owner=account.pk, scopes=["jobs:read"]).status_code == 403
    assert make_key(owner, owner=account.pk).status_code == 200
    assert ApiKey.objects.get().owner == account.user
    owner.post(f"/service-accounts/{account.pk}/close")
    assert ApiKey.objects.get().revoked_at is not None


def test_nothing_is_changed_by_a_link(world: World, owner: Client, as_user: Callable[[User], Client]) -> None:
    make_key(owner)
    for path in (f"/keys/{ApiKey.objects.get().pk}/revoke", f"/members/{world.viewer.public_id}/change"):
        assert owner.get(path).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(world.owner)
    assert strict.post("/keys/", {"name": "x", "scopes": ["jobs:read"]}).status_code == 403
    assert ApiKey.objects.count() == 1
