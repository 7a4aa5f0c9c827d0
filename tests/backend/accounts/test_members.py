"""Members and roles: who may grant which, a team keeps an owner, and ending a membership revokes its keys."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from backend.accounts.acting import Acting
from backend.accounts.models import ApiKey, Membership, Role, Team, User
from backend.accounts.people.memberships import LastOwner, change_role, remove_member
from backend.accounts.people.teams import change_team
from backend.accounts.rights import GRANTS
from backend.accounts.services import create_api_key, recognise_api_key
from backend.audit.models import AuditEntry
from backend.errors import Denied
from tests.backend.conftest import NOW, Api
from tests.racing import race

Keys = Callable[..., str]


def acting(user: User, team: Team) -> Acting:
    acting = Acting.person(user, team)
    assert acting is not None
    return acting


def test_the_list_names_people_by_public_ids(api: Api, alice: User, bob: User) -> None:
    rows = api.get("/members").json()["data"]
    assert [(row["email"], row["role"]) for row in rows] == [(alice.email, "owner"), (bob.email, "member")]
    assert all(row["id"].startswith("user_") for row in rows)
    assert api.get(f"/members/{bob.public_id}").json()["email"] == bob.email
    assert api.get(f"/members/{bob.pk}").status_code == 404


def test_the_last_owner_can_neither_leave_nor_be_made_less(team: Team, alice: User, bob: User) -> None:
    hers = acting(alice, team)
    for less in (lambda: change_role(hers, alice.public_id, Role.ADMIN, now=NOW),
                 lambda: remove_member(hers, alice.public_id, now=NOW)):  # fmt: skip
        with pytest.raises(LastOwner):
            less()
    change_role(hers, bob.public_id, Role.OWNER, now=NOW)
    change_role(hers, alice.public_id, Role.MEMBER, now=NOW)
    with pytest.raises(Denied):
        change_role(acting(alice, team), alice.public_id, Role.OWNER, now=NOW)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "statement", ["DELETE FROM accounts_membership", "UPDATE accounts_membership SET role='admin'"]
)
def test_database_keeps_the_last_owner(alice: User, statement: str) -> None:
    with pytest.raises(IntegrityError, match="its last owner cannot go"), connection.cursor() as db:
        db.execute(statement)
    assert Membership.objects.get(user=alice).role == Role.OWNER


@pytest.mark.django_db(transaction=True)
def test_two_owners_who_demote_each_other_at_once_leave_one(
    team: Team, alice: User, bob: User, in_own_connection: Callable[..., Any]
) -> None:
    """Bypasses the service's lock: two raw transactions that each see the other as an owner."""
    Membership.objects.filter(user=bob).update(role=Role.OWNER)
    both_have_written, refused = threading.Barrier(2), []

    def demote(user: User) -> None:
        try:
            with transaction.atomic():
                Membership.objects.filter(user=user).update(role=Role.ADMIN)
                both_have_written.wait(60)
        except IntegrityError as error:
            refused.append(error)

    race(*(partial(in_own_connection(demote), user) for user in (alice, bob)))
    assert len(refused) == 1
    assert Membership.objects.filter(team=team, role=Role.OWNER).count() == 1


def test_a_team_can_be_deleted_with_its_owner_in_it(alice: User, team: Team) -> None:
    team.delete()
    with connection.cursor() as db:
        db.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert not Membership.objects.filter(user=alice).exists()


@pytest.mark.parametrize("actor", list(Role))
@pytest.mark.parametrize("target", list(Role))
@pytest.mark.parametrize("wanted", list(Role))
def test_roles_are_changed_only_within_own_rights(
    team: Team, alice: User, actor: Role, target: Role, wanted: Role
) -> None:
    doer, subject = (User.objects.create_user(f"{name}@example.org") for name in ("doer", "subject"))
    Membership.objects.create(user=doer, team=team, role=actor)
    Membership.objects.create(user=subject, team=team, role=target)
    allowed = {target, wanted} <= GRANTS[actor]
    if allowed:
        change_role(acting(doer, team), subject.public_id, wanted, now=NOW)
    else:
        with pytest.raises(Denied):
            change_role(acting(doer, team), subject.public_id, wanted, now=NOW)
    assert Membership.objects.get(user=subject).role == (wanted if allowed else target)


def test_removed_member_loses_all_keys_for_good(team: Team, alice: User, bob: User) -> None:
    _, text = create_api_key(team=team, created_by=bob, name="laptop")
    remove_member(acting(alice, team), bob.public_id, now=NOW)
    assert recognise_api_key(text, now=NOW) is None
    Membership.objects.create(user=bob, team=team, role=Role.MEMBER)
    assert recognise_api_key(text, now=NOW) is None, "rejoining restores no key"
    assert ApiKey.objects.get(owner=bob).revoked_at == NOW


def test_members_may_leave_but_no_key_removes_its_owner(team: Team, alice: User, vera: User, make_key: Keys) -> None:
    program = Api(make_key(vera))
    assert program.request("DELETE", f"/members/{vera.public_id}").status_code == 403
    remove_member(acting(vera, team), vera.public_id, now=NOW)
    assert not Membership.objects.filter(user=vera).exists()


def test_every_change_is_audited_with_who_did_it(api: Api, team: Team, alice: User, bob: User) -> None:
    api.request("PATCH", f"/members/{bob.public_id}", {"role": "viewer"})
    api.request("PATCH", f"/members/{bob.public_id}", {"role": "viewer"})  # changes nothing, so sends no notice
    api.request("DELETE", f"/members/{bob.public_id}")
    rows = list(AuditEntry.objects.filter(team=team).order_by("seq"))
    assert [(row.action, row.target) for row in rows] == [
        ("member.role_changed", bob.public_id),
        ("member.removed", bob.public_id),
    ]
    key = ApiKey.objects.get(prefix=(api.key or "")[:17])
    assert rows[0].data == {"from": "member", "to": "viewer"} and rows[0].actor == f"key:{key.pk}"


@pytest.mark.parametrize("field", ["id", "team", "user", "email", "is_staff", "is_superuser", "requires_mfa"])
def test_nothing_but_the_role_can_be_written(api: Api, bob: User, field: str) -> None:
    answer = api.request("PATCH", f"/members/{bob.public_id}", {"role": "viewer", field: True})
    assert answer.status_code == 422
    assert Membership.objects.get(user=bob).role == Role.MEMBER


def test_only_owner_with_second_factor_can_require_one(team: Team, alice: User, adam: User) -> None:
    for user in (alice, adam):
        with pytest.raises(Denied):
            change_team(acting(user, team), requires_mfa=True, now=NOW)
    team.refresh_from_db()
    assert team.requires_mfa is False
