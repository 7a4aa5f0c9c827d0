"""Service accounts: no sign-in, own keys that outlive their creator, never more than a member."""

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from backend.accounts.acting import Acting
from backend.accounts.keys.making import KeyWish, make_key
from backend.accounts.keys.service_accounts import close_service_account, open_service_account
from backend.accounts.models import ApiKey, Membership, Project, Role, ServiceAccount, Team, User
from backend.accounts.people.memberships import remove_member
from backend.accounts.services import recognise_api_key
from backend.errors import Invalid
from tests.backend.conftest import NOW, Api, MakeSpec

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(team: Team, alice: User, adam: User) -> Acting:
    return Acting(user=adam, team=team, role=Role.ADMIN)


def robot(admin: Acting, role: Role = Role.MEMBER, project: Project | None = None) -> ServiceAccount:
    return open_service_account(admin, name="nightly", role=role, project=project, now=NOW)


def key_of(admin: Acting, account: ServiceAccount, **wish: object) -> tuple[ApiKey, str]:
    return make_key(admin, KeyWish(name="ci", **wish), account_id=account.pk, now=NOW)  # type: ignore[arg-type]


def test_its_keys_live_on_when_its_maker_leaves(admin: Acting, alice: User) -> None:
    account = robot(admin)
    _, text = key_of(admin, account)
    _, own = make_key(admin, KeyWish(name="laptop"), now=NOW)
    remove_member(Acting(user=alice, team=admin.team, role=Role.OWNER), admin.user.public_id, now=NOW)
    assert recognise_api_key(own, now=NOW) is None
    caller = recognise_api_key(text, now=NOW)
    assert caller is not None and (caller.user, caller.role) == (account.user, Role.MEMBER)


def test_it_never_signs_in(admin: Acting, client: Client) -> None:
    account = robot(admin)
    answer = client.post("/accounts/login/", {"login": account.user.email, "password": ""})
    assert answer.status_code == 200 and "_auth_user_id" not in client.session
    with pytest.raises(IntegrityError, match="service_accounts_do_not_sign_in"), transaction.atomic():
        account.user.set_password("a-password-for-a-robot")
        account.user.save()
    with pytest.raises(IntegrityError, match="service_accounts_do_not_sign_in"), transaction.atomic():
        User.objects.filter(pk=account.user.pk).update(is_staff=True)


@pytest.mark.parametrize("role", [Role.ADMIN, Role.OWNER])
def test_it_rules_no_team(admin: Acting, role: Role) -> None:
    with pytest.raises(Invalid):
        robot(admin, role)
    account = robot(admin)
    with pytest.raises(IntegrityError, match="a service account is a member or a viewer"), transaction.atomic():
        Membership.objects.filter(user=account.user).update(role=role)


def test_a_viewers_key_does_not_submit(admin: Acting) -> None:
    _, text = key_of(admin, robot(admin, Role.VIEWER))
    caller = recognise_api_key(text, now=NOW)
    assert caller is not None and "jobs:write" not in caller.scopes and "jobs:read" in caller.scopes
    with pytest.raises(Invalid):
        key_of(admin, ServiceAccount.objects.get(), scopes=["jobs:write"])


def test_closing_it_ends_its_keys_at_once(admin: Acting) -> None:
    account = robot(admin)
    _, text = key_of(admin, account)
    close_service_account(admin, account.pk, now=NOW)
    assert recognise_api_key(text, now=NOW) is None
    assert robot(admin).pk != account.pk, "the name is free again"


def test_one_of_a_project_holds_only_keys_of_that_project(admin: Acting, project: Project) -> None:
    other = Project.objects.create(team=admin.team, name="Other")
    account = robot(admin, project=project)
    assert key_of(admin, account)[0].project == project
    with pytest.raises(Invalid):
        key_of(admin, account, project=other)


def test_it_is_no_member_of_the_list_and_its_jobs_name_it(
    api: Api, admin: Acting, project: Project, pool: object, make_spec: MakeSpec
) -> None:
    account = robot(admin)
    assert account.user.email not in api.get("/members").content.decode()
    assert [row["name"] for row in api.get("/service-accounts").json()["data"]] == ["nightly"]
    program = Api(key_of(admin, account)[1])
    body = {"project": project.pk, "spec": make_spec().model_dump(mode="json")}
    submitted = program.request("POST", "/jobs", body)
    assert submitted.status_code == 202, submitted.content
    assert submitted.json()["created_by"] == account.user.email


def test_through_the_api(api: Api, project: Project) -> None:
    created = api.request("POST", "/service-accounts", {"name": "ci", "role": "viewer", "project": project.pk})
    assert created.status_code == 201 and created.json()["project"] == project.pk
    path = f"/service-accounts/{created.json()['id']}"
    assert api.request("POST", "/service-accounts", {"name": "ci"}).json()["code"] == "name_taken"
    assert api.request("PATCH", path, {"role": "member"}).json()["role"] == "member"
    assert api.request("PATCH", path, {"role": "owner"}).status_code == 422
    assert api.request("DELETE", path).status_code == 204
    assert api.request("DELETE", path).status_code == 404
    assert api.get("/service-accounts").json()["data"] == []


def test_another_teams_project_is_no_project_of_ours(api: Api, other_project: Project) -> None:
    answer = api.request("POST", "/service-accounts", {"name": "ci", "project": other_project.pk})
    assert answer.status_code == 422 and not ServiceAccount.objects.exists()
