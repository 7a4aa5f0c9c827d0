"""`manage.py ensure_demo`: creates once, then repairs."""

import io
import json
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from backend.accounts.keys.tokens import is_well_formed, new_key_text, prefix_of
from backend.accounts.models import ApiKey, Membership, Project, Team, User
from backend.accounts.services import recognise_api_key, revoke_api_key
from backend.pools.models import ResourcePool, TeamQuota


@pytest.fixture
def files(tmp_path: Path, db: None) -> tuple[Path, Path]:
    return tmp_path / "password", tmp_path / "api key"


def ensure(files: tuple[Path, Path]) -> dict[str, Any]:
    out = io.StringIO()
    call_command("ensure_demo", "--password-file", str(files[0]), "--api-key-file", str(files[1]), stdout=out)
    [line] = out.getvalue().splitlines()
    shown: dict[str, Any] = json.loads(line)
    return shown


def works(files: tuple[Path, Path]) -> bool:
    user = User.objects.get()
    caller = recognise_api_key(files[1].read_text().strip(), now=datetime.now(UTC))
    return (
        user.check_password(files[0].read_text().strip())
        and user.is_active
        and caller is not None
        and caller.scopes >= {"jobs:read", "jobs:write"}
    )


def test_everything_is_made_and_its_secrets_are_private(files: tuple[Path, Path]) -> None:
    shown = ensure(files)
    assert shown == {
        "team": Team.objects.get().pk,
        "project": Project.objects.get().pk,
        "user": "demo@laminar.local",
        "pool": "demo",
    }
    assert works(files)
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    assert is_well_formed(files[1].read_text().strip())
    assert (ResourcePool.objects.get().capacity, TeamQuota.objects.get().nominal) == (8, 8)
    assert Membership.objects.get().role == "owner"


def test_again_changes_nothing(files: tuple[Path, Path]) -> None:
    shown, secrets = ensure(files), [file.read_text() for file in files]
    assert ensure(files) == shown and [file.read_text() for file in files] == secrets
    assert [model.objects.count() for model in (User, Team, Project, ApiKey, ResourcePool, TeamQuota)] == [1] * 6


def test_what_the_files_hold_is_what_is_wanted(files: tuple[Path, Path]) -> None:
    files[0].write_text("correct horse\n")
    files[1].write_text(key := new_key_text())
    ensure(files)
    assert works(files) and files[1].read_text() == key, "a key that outlived its database is imported again"


def test_what_was_broken_is_repaired(files: tuple[Path, Path]) -> None:
    ensure(files)
    user = User.objects.get()
    user.set_password("something else")
    user.is_active = False
    user.save()
    Membership.objects.update(role="viewer")
    TeamQuota.objects.all().delete()
    ensure(files)
    assert works(files) and TeamQuota.objects.get().nominal == 8


def test_a_revoked_key_stays_revoked_and_is_replaced(files: tuple[Path, Path]) -> None:
    ensure(files)
    old = files[1].read_text().strip()
    revoke_api_key(ApiKey.objects.get(prefix=prefix_of(old)), now=datetime.now(UTC))
    ensure(files)
    assert files[1].read_text().strip() != old and works(files)
    assert recognise_api_key(old, now=datetime.now(UTC)) is None


def test_what_an_operator_changed_is_kept(files: tuple[Path, Path]) -> None:
    ensure(files)
    ResourcePool.objects.update(capacity=64)
    TeamQuota.objects.update(nominal=32)
    ensure(files)
    assert (ResourcePool.objects.get().capacity, TeamQuota.objects.get().nominal) == (64, 32)


def test_a_place_that_cannot_be_written_is_one_clear_sentence(tmp_path: Path, db: None) -> None:
    with pytest.raises(CommandError, match="cannot write"):
        ensure((tmp_path / "no such folder" / "password", tmp_path / "key"))
    (tmp_path / "short").write_text("abc")
    with pytest.raises(CommandError, match="shorter than 10"):
        ensure((tmp_path / "short", tmp_path / "key"))
