"""Rotation of an installation's secrets: old signatures and seals stay valid until the old secrets are removed."""

from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.core import signing
from django.core.management import CommandError, call_command
from django.test import Client

from backend.accounts.models import Team, User
from backend.accounts.second_factor import SecondFactorAdapter
from backend.audit.anchors import BrokenAnchors, append_anchors, key_id, read_anchors, signing_key
from backend.audit.key_rotation import former_keys, rotate_key
from backend.jobs.attempts.tokens import attempt_of_token, attempt_token, token_of
from backend.jobs.models import JobAttempt
from backend.webhooks.models import WebhookEndpoint
from backend.webhooks.secret_box import new_secret, seal, unseal

BEFORE, AFTER = "of before", "of now"


@pytest.fixture(autouse=True)
def _key_of_before(settings: Any) -> None:
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = BEFORE, []


def rotate(settings: Any) -> None:
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = AFTER, [BEFORE]


def take_away(settings: Any) -> None:
    settings.SECRET_KEY_FALLBACKS = []


def test_running_and_launching_attempts_keep_their_token(settings: Any, attempt: JobAttempt) -> None:
    given = attempt_token(attempt.job_id, attempt.n, attempt.fence)
    rotate(settings)
    assert attempt_of_token(given) == attempt
    assert token_of(attempt) == given  # what the launcher passes on
    take_away(settings)
    assert attempt_of_token(given) == attempt  # by its digest


def test_rotation_signs_no_user_out(settings: Any, client: Client, alice: User) -> None:
    client.force_login(alice)
    rotate(settings)
    assert client.get("/jobs/").status_code == 200
    take_away(settings)
    client.get("/jobs/")


def test_old_links_work_until_the_key_is_removed(settings: Any) -> None:
    link = signing.dumps([1, 2], salt="x")
    rotate(settings)
    assert signing.loads(link, salt="x") == [1, 2]
    take_away(settings)
    with pytest.raises(signing.BadSignature):
        signing.loads(link, salt="x")


def test_resealed_secrets_outlive_the_old_key(settings: Any, team: Team, alice: User, now: datetime) -> None:
    secret, adapter = new_secret(), SecondFactorAdapter()
    hook = WebhookEndpoint.objects.create(
        team=team, url="https://example.org", events=["*"], secret=seal(secret), created_at=now
    )
    factor = Authenticator.objects.create(
        user=alice, type=Authenticator.Type.TOTP, data={"secret": adapter.encrypt("otp")}
    )
    rotate(settings)
    assert unseal(hook.secret) == secret and adapter.decrypt(factor.data["secret"]) == "otp"
    call_command("reseal_secrets", stdout=StringIO())
    take_away(settings)
    hook.refresh_from_db()
    factor.refresh_from_db()
    assert unseal(hook.secret) == secret and adapter.decrypt(factor.data["secret"]) == "otp"


def test_unopenable_seal_is_reported_and_nothing_changes(settings: Any, team: Team, now: datetime) -> None:
    hook = WebhookEndpoint.objects.create(
        team=team, url="https://example.org", events=["*"], secret=seal(new_secret()), created_at=now
    )
    settings.SECRET_KEY = AFTER
    with pytest.raises(CommandError, match="LAMINAR_SECRET_KEYS_OF_BEFORE"):
        call_command("reseal_secrets", stdout=StringIO())
    assert WebhookEndpoint.objects.get().secret == hook.secret


def test_anchors_verify_with_former_but_not_foreign_keys(tmp_path: Path, now: datetime) -> None:
    anchors, key_file = tmp_path / "anchors.jsonl", tmp_path / "key.pem"
    append_anchors(anchors, [("team_1", 1, "a")], key=signing_key(key_file), now=now)
    going, coming = rotate_key(key_file)
    append_anchors(anchors, [("team_1", 2, "b")], key=signing_key(key_file), now=now)
    rotate_key(key_file, to=tmp_path / "third.pem")
    assert len(former_keys(tmp_path / "third.pem")) == 2
    key = signing_key(key_file).public_key()
    read = list(read_anchors(anchors, key=key, former=former_keys(key_file)))
    assert [anchor.key for anchor in read] == [going, coming] and key_id(key) == coming
    assert key_file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BrokenAnchors, match=going):
        list(read_anchors(anchors, key=key))
