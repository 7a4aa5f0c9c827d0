"""The audit page: entries, filters, and verification of the log."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client

from backend.accounts.models import ApiKey
from backend.audit.anchoring import anchor_heads
from backend.audit.models import AuditEntry
from backend.audit.places import ANCHORS_FILE
from backend.audit.services import record_action
from tests.backend.audit.test_audit import behind_the_guards
from tests.frontend.html_reading import words_of
from tests.frontend.seed import World

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


@pytest.fixture
def anchors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    apart = replace(settings.ENVIRONMENT, audit_dir=tmp_path, audit_key_file=tmp_path / "key.pem")
    monkeypatch.setattr(settings, "ENVIRONMENT", apart)
    return tmp_path


def wrote(world: World, *actions: str, actor: str = "", target: str = "thing_1", at: datetime = NOW) -> None:
    for action in actions:
        record_action(
            team_id=world.team.pk, actor=actor or f"user:{world.owner.pk}", action=action, target=target, now=at,
            data={"name": "<b>bold</b>"},
        )  # fmt: skip


def numbers(page: str) -> list[int]:
    return [int(each) for each in re.findall(r'id="entry-(\d+)"', page)]


def test_who_did_what_newest_first_with_names(world: World, owner: Client) -> None:
    wrote(world, "member.invited", "key.created")
    key = ApiKey.objects.create(
        team=world.team, owner=world.owner, created_by=world.owner, name="nightly", prefix="lam_live_x", scopes=[],
        secret_sha256="0" * 64, created_at=NOW,
    )  # fmt: skip
    wrote(world, "job.cancelled", actor=f"key:{key.pk}", target="job_abc")
    page = words_of(owner.get("/audit/"))
    assert numbers(page) == [3, 2, 1]
    assert world.owner.email in page and "key “nightly”" in page and '<a href="/jobs/job_abc/">' in page
    assert "&lt;b&gt;bold" in str(owner.get("/audit/").content, "utf-8"), "what was written is text"


def test_filters_find_by_name_action_target_and_day(world: World, owner: Client) -> None:
    wrote(world, "member.invited", at=NOW - timedelta(days=3))
    wrote(world, "key.created", actor="scheduler", target="key_1")
    wrote(world, "key.revoked", target="key_1")

    def found(query: str) -> list[int]:
        return numbers(words_of(owner.get(f"/audit/?{query}")))

    assert found(f"actor={world.owner.email.upper()}") == [3, 1]
    assert found("actor=scheduler") == [2]
    assert found("action=key.created") == [2]
    assert found("target=key_1") == [3, 2]
    assert found(f"since={NOW.date()}") == [3, 2]
    assert found("actor=scheduler&action=key.revoked") == []
    assert "No matching entries" in words_of(owner.get("/audit/?actor=nobody"))
    wrong = owner.get("/audit/?since=soon")
    assert wrong.status_code == 422 and "2026-01-31" in words_of(wrong)


def test_long_logs_come_in_pages_that_keep_the_filter(
    world: World, owner: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.pages.team.audit_views.ENTRIES_A_PAGE", 2)
    wrote(world, "key.created", "key.revoked", "key.created", "key.created")
    first = words_of(owner.get("/audit/?action=key.created"))
    link = re.search(r'rel="next" href="([^"]+)"', first)
    assert numbers(first) == [4, 3] and link
    second = words_of(owner.get(f"/audit/{link[1]}"))
    assert numbers(second) == [1] and 'rel="next"' not in second
    assert owner.get("/audit/?before=-1&after=x").status_code == 200


def test_a_whole_chain_is_said_to_be_whole(world: World, owner: Client, anchors: Path) -> None:
    wrote(world, "key.created", "key.revoked")
    anchor_heads(now=NOW)
    wrote(world, "key.created")
    page = words_of(owner.get("/audit/?check=1"))
    assert "All 3 entries are unmodified" in page and "confirm 2 of them" in page
    assert "entries are unmodified" not in words_of(owner.get("/audit/")), "verified only on request"


def test_a_changed_entry_is_named(world: World, owner: Client, anchors: Path) -> None:
    wrote(world, "key.created", "key.revoked", "key.created")
    behind_the_guards("UPDATE audit_auditentry SET actor = 'user:0' WHERE seq = 2")
    assert "Entry 2 was modified: it was changed" in words_of(owner.get("/audit/?check=1"))


def test_a_tail_that_is_gone_is_found_by_its_anchor(world: World, owner: Client, anchors: Path) -> None:
    wrote(world, "key.created", "key.revoked", "key.created")
    anchor_heads(now=NOW)
    first = AuditEntry.objects.get(seq=1)
    behind_the_guards(
        "DELETE FROM audit_auditentry WHERE seq > 1",
        f"UPDATE audit_audithead SET seq = 1, hash = '{first.hash}', anchored_seq = 0",
    )
    assert "the end is missing" in words_of(owner.get("/audit/?check=1"))


def test_where_the_anchors_are_not_seen_it_says_so(world: World, owner: Client, anchors: Path) -> None:
    wrote(world, "key.created")
    anchor_heads(now=NOW)
    (anchors / ANCHORS_FILE).unlink()
    page = words_of(owner.get("/audit/?check=1"))
    assert "All 1 entries are unmodified" in page and "were not checked" in page


def test_changed_anchors_are_told(world: World, owner: Client, anchors: Path) -> None:
    wrote(world, "key.created")
    anchor_heads(now=NOW)
    file = anchors / ANCHORS_FILE
    file.write_bytes(file.read_bytes().replace(b'"seq":1', b'"seq":9'))
    assert "The anchor file was modified" in words_of(owner.get("/audit/?check=1"))


def test_a_very_long_log_is_left_to_the_operator(world: World, owner: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.pages.team.audit_views.MOST_CHECKED", 1)
    wrote(world, "key.created", "key.revoked")
    assert "manage.py verify_audit" in words_of(owner.get("/audit/?check=1"))


def test_viewers_and_other_teams_read_nothing(world: World, viewer: Client, outsider: Client) -> None:
    wrote(world, "key.created")
    answer = viewer.get("/audit/")
    assert (
        answer.status_code == 403 and "admins and owners" in words_of(answer) and "key.created" not in words_of(answer)
    )
    assert outsider.get(f"/audit/?team={world.team.pk}").status_code == 404
    assert "No entries yet" in words_of(outsider.get("/audit/"))


def test_strangers_are_sent_to_sign_in(db: None) -> None:
    assert Client().get("/audit/")["Location"] == "/accounts/login/?next=/audit/"
