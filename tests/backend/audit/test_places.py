"""The audit log's key and anchors leave the store that Ray nodes write, and the log verifies as before."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.accounts.models import Team
from backend.audit.anchoring import anchor_heads, verify_audit_log
from backend.audit.places import ANCHORS_FILE, anchors_and_key
from backend.audit.services import record_action
from backend.environment import read_environment
from backend.missing import MissingSetting
from tests.backend.conftest import NOW

KEY = "signing_key.pem"


@pytest.fixture
def place(settings: Any, tmp_path: Path) -> Callable[[Path], None]:
    """Puts the audit log into a folder, as the environment does."""
    before = settings.ENVIRONMENT

    def put(folder: Path) -> None:
        settings.ENVIRONMENT = replace(
            before, store_dir=tmp_path / "store", audit_dir=folder, audit_key_file=folder / KEY
        )

    return put


@pytest.fixture
def former(tmp_path: Path) -> Path:
    return tmp_path / "store" / "audit"


@pytest.fixture
def chosen(tmp_path: Path) -> Path:
    return tmp_path / "site" / "audit"


def note(team: Team) -> None:
    record_action(team_id=team.pk, actor="user:1", action="key.created", target="key_a", now=NOW, data={})


@pytest.mark.django_db
def test_what_an_earlier_version_kept_in_the_store_is_moved_and_still_verifies(
    place: Callable[[Path], None], former: Path, chosen: Path, team: Team
) -> None:
    place(former)
    note(team)
    assert anchor_heads(now=NOW) == 1
    written = {name: (former / name).read_bytes() for name in (ANCHORS_FILE, KEY)}
    place(chosen)
    note(team)
    assert anchor_heads(now=NOW) == 1
    assert verify_audit_log().findings == ()
    assert (chosen / KEY).read_bytes() == written[KEY] and (chosen / KEY).stat().st_mode & 0o777 == 0o600
    assert (chosen / ANCHORS_FILE).read_bytes().startswith(written[ANCHORS_FILE])
    assert len((chosen / ANCHORS_FILE).read_bytes().splitlines()) == 2
    assert not list(former.iterdir())


def test_a_key_that_is_there_is_never_replaced_by_one_that_a_node_put_into_the_store(
    place: Callable[[Path], None], former: Path, chosen: Path
) -> None:
    for folder, text in ((former, "planted"), (chosen, "ours")):
        folder.mkdir(parents=True)
        for name in (ANCHORS_FILE, KEY):
            (folder / name).write_text(text)
    place(chosen)
    assert [path.read_text() for path in anchors_and_key()] == ["ours", "ours"]


def test_a_link_in_the_store_leads_the_control_plane_nowhere(
    place: Callable[[Path], None], former: Path, chosen: Path, tmp_path: Path
) -> None:
    former.mkdir(parents=True)
    (tmp_path / "secret").write_text("of the site")
    (former / KEY).symlink_to(tmp_path / "secret")
    place(chosen)
    anchors_and_key()
    assert not (chosen / KEY).exists() and (tmp_path / "secret").exists()


def test_of_many_that_move_at_once_each_finds_everything_in_its_place(
    place: Callable[[Path], None], former: Path, chosen: Path
) -> None:
    former.mkdir(parents=True)
    for name in (ANCHORS_FILE, KEY):
        (former / name).write_text(name * 100_000)
    place(chosen)

    def whole(_: int) -> bool:
        return all(path.read_text() == path.name * 100_000 for path in anchors_and_key())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(whole, range(16)))


def test_where_it_cannot_be_moved_the_log_goes_on_where_it_is_and_says_so(
    place: Callable[[Path], None], former: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    former.mkdir(parents=True)
    (former / KEY).write_text("key")
    (tmp_path / "site").write_text("no folder can be made below a file")
    place(tmp_path / "site" / "audit")
    with caplog.at_level(logging.WARNING):
        assert anchors_and_key() == (former / ANCHORS_FILE, former / KEY)
    assert "LAMINAR_SITE_DIR" in caplog.text and "every Ray node may read it" in caplog.text


@pytest.mark.parametrize("folder", ["", "/static", "/../store/x"])
def test_a_folder_of_the_site_within_the_store_is_refused(folder: str, tmp_path: Path) -> None:
    names = ("DATABASE_URL", "BROKER_URL", "SECRET_KEY", "PUBLIC_URL", "CONTROL_URL", "RAY_URL", "RAY_TOKEN_FILE")
    told = dict.fromkeys((f"LAMINAR_{name}" for name in (*names, "ALLOWED_HOSTS")), "x")
    store = tmp_path / "store"
    with pytest.raises(MissingSetting, match="LAMINAR_SITE_DIR: a folder outside of LAMINAR_STORE_DIR"):
        read_environment(told | {"LAMINAR_STORE_DIR": str(store), "LAMINAR_SITE_DIR": f"{store}{folder}"})
    assert read_environment(told | {"LAMINAR_STORE_DIR": str(store)}).site_dir == tmp_path / "site"
