"""What operators do in the admin is as safe and as visible as what everybody does on the pages."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from backend.accounts.models import Team, User
from backend.accounts.services import recognise_api_key
from backend.audit.models import AuditEntry

pytestmark = pytest.mark.django_db
Saves = Callable[[dict[User, str]], None]


@pytest.fixture
def operator(db: None) -> User:
    return User.objects.create_superuser("operator@example.org", "still-waters-run-deep")


@pytest.fixture
def save(operator: User, team: Team) -> Saves:
    """The form of the team, as the operator's browser sends it: its members are those, with those roles."""

    def send(wanted: dict[User, str]) -> None:
        client = Client()
        client.force_login(operator)
        there = list(team.memberships.order_by("pk"))
        rows = [
            {"id": row.pk, "user": row.user_id, "role": wanted.get(row.user, row.role)}
            | ({} if row.user in wanted else {"DELETE": "on"})
            for row in there
        ]
        known = {row.user for row in there}
        rows += [{"id": "", "user": user.pk, "role": role} for user, role in wanted.items() if user not in known]
        form: dict[str, Any] = {"name": team.name, "memberships-INITIAL_FORMS": len(there)}
        form |= {"memberships-TOTAL_FORMS": len(rows)}
        for at, row in enumerate(rows):
            form |= {f"memberships-{at}-{name}": value for name, value in row.items()}
            form[f"memberships-{at}-team"] = team.pk
        assert client.post(f"/admin/accounts/team/{team.pk}/change/", form).status_code == 302

    return send


def test_members_whom_an_operator_changes_stand_in_the_audit_log(
    save: Saves, operator: User, alice: User, bob: User, team: Team
) -> None:
    save({alice: "owner", bob: "viewer", operator: "owner"})
    save({alice: "owner", operator: "owner"})
    told = list(AuditEntry.objects.filter(team=team).order_by("seq").values_list("actor", "action", "target"))
    actor = f"user:{operator.pk}"
    assert sorted(told[:2]) == [
        (actor, "member.added", operator.public_id),
        (actor, "member.role_changed", bob.public_id),
    ]
    assert told[2:] == [(actor, "member.removed", bob.public_id)]


def test_who_is_removed_there_gets_no_key_back(
    save: Saves, alice: User, bob: User, make_key: Callable[[User], str]
) -> None:
    key = make_key(bob)
    save({alice: "owner"})
    save({alice: "owner", bob: "member"})
    assert recognise_api_key(key, now=datetime.now(UTC)) is None


def test_an_operator_changes_their_password_where_guesses_are_counted(operator: User) -> None:
    client = Client()
    client.force_login(operator)
    new = {"new_password1": "rivers-find-their-way", "new_password2": "rivers-find-their-way"}
    answer = client.post("/admin/password_change/", {"old_password": "still-waters-run-deep"} | new)
    assert (answer.status_code, answer["Location"]) == (302, "/accounts/password/change/")
    operator.refresh_from_db()
    assert operator.check_password("still-waters-run-deep")
