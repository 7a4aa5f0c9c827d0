"""Sign-in events are in the audit log of every team of the user, and no flood fills it."""

from collections.abc import Callable
from typing import Any

import pytest
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from django.test import Client

from backend.accounts import adapter
from backend.accounts.models import Membership, Role, Team, User
from backend.accounts.signing_in import chains
from backend.audit.models import AuditEntry
from backend.audit.verification import verify_chain
from tests.backend.accounts.addresses.test_proved import claims_without_proof
from tests.backend.accounts.test_mfa import code_of, with_second_factor
from tests.backend.accounts.test_oidc import ADA, behave, issuer, return_from_provider  # noqa: F401  # fixtures
from tests.backend.conftest import Api

pytestmark = pytest.mark.django_db
PASSWORD = "still-waters-run-deep"


@pytest.fixture
def ada(alice: User) -> User:
    alice.set_password(PASSWORD)
    alice.save()
    return alice


def tries(client: Client, email: str, password: str = PASSWORD) -> Any:
    return client.post("/accounts/login/", {"login": email, "password": password})


def told(team_id: str) -> list[str]:
    return [entry.action for entry in AuditEntry.objects.filter(team_id=team_id).order_by("seq")]


def test_sign_in_and_out_are_audited_in_each_team(
    client: Client, ada: User, team: Team, other_team: Team, bob: User
) -> None:
    Membership.objects.create(user=ada, team=other_team, role=Role.VIEWER)
    tries(client, ada.email)
    client.post("/accounts/logout/")
    assert told(team.pk) == told(other_team.pk) == ["user.signed_in", "user.signed_out"]
    entry = AuditEntry.objects.filter(team=team).earliest("seq")
    assert (entry.actor, entry.target, entry.ip) == (f"user:{ada.pk}", ada.public_id, "127.0.0.1")
    assert entry.data["with"] == ["password"]
    assert verify_chain(team.pk, {}, sees_anchors=False) is None


def test_users_without_team_are_in_the_sites_chain(client: Client, team: Team) -> None:
    User.objects.create_superuser("root@example.org", PASSWORD)
    tries(client, "root@example.org")
    assert told(chains.SITE) == ["user.signed_in"] and told(team.pk) == []
    assert "This site" in client.get("/admin/audit/auditentry/").content.decode()
    assert not Membership.objects.filter(team_id=chains.SITE).exists()


def test_wrong_password_is_audited_without_the_typed_text(client: Client, ada: User, team: Team) -> None:
    tries(client, ada.email, "wrong-one-this-time")
    tries(client, "typed-my-password-here@example.org", "wrong-one-this-time")
    assert told(team.pk) == told(chains.SITE) == ["sign_in.failed"]
    stored = " ".join(str(list(row)) for row in AuditEntry.objects.values_list())
    assert "this-time" not in stored and "typed-my" not in stored
    assert AuditEntry.objects.get(team=team).actor == "stranger"


def test_a_flood_of_failures_ends_and_hides_no_success(
    client: Client, ada: User, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PER_ADDRESS", "PER_ACCOUNT", "PER_ACCOUNT_AND_ADDRESS"):
        monkeypatch.setattr(adapter, name, (name, 10_000, 60))
    monkeypatch.setattr(chains, "TRIES_AT_A_PERSON", ("audit-tries", 3, 3_600))
    monkeypatch.setattr(chains, "TRIES_OF_STRANGERS", ("audit-strangers", 2, 3_600))
    for n in range(8):
        tries(client, ada.email, f"guess-{n}")
        tries(client, f"nobody-{n}@example.org")
    tries(client, ada.email)
    assert told(team.pk) == ["sign_in.failed"] * 3 + ["user.signed_in"]
    assert told(chains.SITE) == ["sign_in.failed"] * 2
    assert "not_written" in AuditEntry.objects.get(team=team, seq=3).data, "the last entry notes that more follow"


def test_rate_limited_sign_in_is_audited(
    client: Client, ada: User, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "PER_ACCOUNT", ("sign-in-account", 1, 300))
    tries(client, ada.email, "guess")
    tries(client, ada.email)
    assert told(team.pk) == ["sign_in.failed", "sign_in.refused"]


def test_refused_sign_ins_are_audited(client: Client, ada: User, bob: User, team: Team) -> None:
    User.objects.filter(pk=ada.pk).update(is_active=False)
    tries(client, ada.email)
    bob.set_password(PASSWORD)
    bob.save()
    tries(client, claims_without_proof(bob, ADA).email)
    entries = AuditEntry.objects.filter(team=team, action="sign_in.refused").order_by("seq")
    assert [entry.data["why"] for entry in entries] == ["the account is closed", "the address is not proved"]


def test_refused_openid_sign_in_is_audited(
    client: Client,
    behave: Callable[..., None],  # noqa: F811
    bob: User,
    team: Team,
) -> None:
    claims_without_proof(bob, ADA)
    return_from_provider(client)
    assert told(team.pk) == ["sign_in.refused"]


def test_second_factor_events_are_audited(client: Client, ada: User, team: Team) -> None:
    secret = with_second_factor(ada)
    code = RecoveryCodes.activate(ada).get_unused_codes()[0]
    tries(client, ada.email)
    client.post("/accounts/2fa/authenticate/", {"code": "000000"})
    client.post("/accounts/2fa/authenticate/", {"code": code})
    client.post("/accounts/2fa/reauthenticate/", {"code": code_of(secret)})
    client.post("/accounts/2fa/totp/deactivate/")
    assert told(team.pk) == [
        "second_factor.failed",
        "second_factor.used",
        "user.signed_in",
        "second_factor.used",
        "second_factor.removed",
        "second_factor.removed",
    ]
    assert AuditEntry.objects.get(team=team, action="user.signed_in").data["with"] == ["password", "recovery_codes"]


def test_new_password_is_audited_and_ends_open_links(client: Client, ada: User, team: Team) -> None:
    from backend.accounts.signing_in.resets import make_reset, open_reset
    from backend.clock import database_now

    token, new = make_reset(ada, now=database_now()), "rivers-find-their-way"
    tries(client, ada.email)
    client.post("/accounts/password/change/", {"oldpassword": PASSWORD, "password1": new, "password2": new})
    assert told(team.pk)[-1] == "password.changed" and open_reset(token, now=database_now()) is None


def test_without_the_audit_log_sign_in_fails(client: Client, ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(**_: Any) -> None:
        raise RuntimeError("the log cannot be written")

    monkeypatch.setattr(chains, "record_action", away)
    client.raise_request_exception = False
    assert tries(client, ada.email).status_code == 500
    assert client.get("/jobs/").status_code == 302


def test_denied_requests_are_audited_in_the_team(
    vera: User, team: Team, other_team: Team, api_of: Callable[[User], Api]
) -> None:
    api = api_of(vera)
    Membership.objects.create(user=vera, team=other_team, role=Role.VIEWER)
    assert api.request("POST", "/invitations", {"email": ADA}).status_code == 403
    (entry,) = AuditEntry.objects.all()
    assert (entry.team_id, entry.action, entry.data["route"]) == (team.pk, "request.denied", "api/v1/invitations")
    assert entry.actor.startswith("key:")
    page = Client()
    page.force_login(vera)
    page.post(f"/members/rules?team={team.pk}", {"requires_mfa": "yes"})
    assert told(team.pk) == ["request.denied"] * 2 and told(other_team.pk) == ["request.denied"]
