"""Service accounts: identities for programs, independent of the member who created them.

Invariants:
- a service account has no password and no pages; it authenticates by keys only, and is a member or a viewer;
- a service account of a project holds only keys limited to that project;
- closing one revokes its keys at once. The row is kept, because its jobs refer to it.
"""

from datetime import datetime

from django.db import IntegrityError, transaction

from backend.accounts.acting import Acting
from backend.accounts.models import ApiKey, Membership, Project, Role, ServiceAccount, Team, User
from backend.accounts.people.teams import NameTaken
from backend.accounts.rights import OF_SERVICE_ACCOUNTS
from backend.accounts.services import revoke_keys
from backend.errors import FieldError, Invalid, NotFound

_DOMAIN = "service.invalid"  # RFC 2606: never receives mail


@transaction.atomic
def open_service_account(
    acting: Acting, *, name: str, role: Role, project: Project | None, now: datetime
) -> ServiceAccount:
    acting.refuse_unless_ruling()
    _refuse_role(role)
    account = ServiceAccount(team=acting.team, project=project, name=name, created_at=now)
    user = User(email=f"{account.pk.replace('_', '-')}@{_DOMAIN}", is_service=True)
    user.set_unusable_password()
    user.save()
    account.user = user
    try:
        with transaction.atomic():
            account.save(force_insert=True)
    except IntegrityError:
        raise NameTaken from None
    Membership.objects.create(team=acting.team, user=user, role=role)
    data = {"name": name, "role": role, "project": project.pk if project else None}
    acting.record("service_account.opened", account.pk, now=now, data=data)
    return account


@transaction.atomic
def change_service_account(acting: Acting, account_id: str, *, role: Role, now: datetime) -> ServiceAccount:
    acting.refuse_unless_ruling()
    _refuse_role(role)
    account = locked_service_account(acting.team, account_id)
    membership = Membership.objects.get(team=acting.team, user=account.user)
    if membership.role != role:
        before, membership.role = membership.role, role
        membership.save(update_fields=["role"])
        acting.record("service_account.role_changed", account.pk, now=now, data={"from": before, "to": role})
    return account


@transaction.atomic
def close_service_account(acting: Acting, account_id: str, *, now: datetime) -> None:
    acting.refuse_unless_ruling()
    account = locked_service_account(acting.team, account_id)
    revoked = revoke_keys(ApiKey.objects.filter(owner=account.user, revoked_at=None), now=now)
    Membership.objects.filter(user=account.user).delete()
    account.user.is_active = False
    account.user.save(update_fields=["is_active"])
    account.closed_at = now
    account.save(update_fields=["closed_at"])
    acting.record("service_account.closed", account.pk, now=now, data={"keys_revoked": revoked})


def locked_service_account(team: Team, account_id: str) -> ServiceAccount:
    """Locks an open service account. Raises `NotFound`."""
    account = (
        ServiceAccount.objects.select_for_update(of=("self",), no_key=True)
        .select_related("user", "project")
        .filter(team=team, pk=account_id, closed_at=None)
        .first()
    )
    if account is None:
        raise NotFound
    return account


def _refuse_role(role: Role) -> None:
    if role not in OF_SERVICE_ACCOUNTS:
        place = FieldError(pointer="/role", code="role", message="must be member or viewer")
        raise Invalid("A service account must be a member or a viewer.", errors=[place])
