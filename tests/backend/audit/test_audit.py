"""The audit log: one chain per team, in which every change is detected, even the database owner's."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction

from backend.accounts.models import Team, User
from backend.api.request_context import RequestContext, current_request
from backend.audit.anchoring import anchor_heads, verify_audit_log
from backend.audit.anchors import BrokenAnchors, signing_key
from backend.audit.models import FIRST_HASH, AuditEntry, AuditHead
from backend.audit.places import ANCHORS_FILE
from backend.audit.services import hash_of, record_action
from tests.backend.conftest import NOW
from tests.racing import race


@pytest.fixture(autouse=True)
def anchors(settings: Any, tmp_path: Path) -> Path:
    """The file of anchors, in the test's own folder."""
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, audit_dir=tmp_path, audit_key_file=tmp_path / "keys" / "k.pem")
    return tmp_path / ANCHORS_FILE


@pytest.fixture
def write(team: Team) -> Callable[..., list[AuditEntry]]:
    def write_entries(count: int = 1, *, to: Team = team, **changes: Any) -> list[AuditEntry]:
        entry: dict[str, Any] = {"actor": "user:1", "action": "key.created", "target": "key_a"}
        entry |= {"now": NOW, "data": {"n": 1.5}} | changes
        return [record_action(team_id=to.pk, **entry) for _ in range(count)]

    return write_entries


def behind_the_guards(*statements: str) -> None:
    """As the database's owner, who can disable every trigger."""
    with connection.cursor() as db:
        db.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table in ("audit_auditentry", "audit_audithead"):
            db.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        for statement in statements:
            db.execute(statement)
        for table in ("audit_auditentry", "audit_audithead"):
            db.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def write_anew(team: Team, *, from_seq: int, **changes: Any) -> None:
    """The strongest attack: change an entry and recompute every later hash, including the head's."""
    behind_the_guards()
    with connection.cursor() as db:
        db.execute(
            "ALTER TABLE audit_auditentry DISABLE TRIGGER USER; ALTER TABLE audit_audithead DISABLE TRIGGER USER"
        )
    previous = FIRST_HASH
    for entry in AuditEntry.objects.filter(team=team).order_by("seq"):
        if entry.seq == from_seq:
            for name, value in changes.items():
                setattr(entry, name, value)
        entry.previous_hash = previous
        entry.hash = previous = hash_of(entry)
        entry.save()
    AuditHead.objects.filter(pk=team.pk).update(hash=previous)


def first_bad_row() -> tuple[int, str] | None:
    findings = verify_audit_log().findings
    return (findings[0].seq, findings[0].message) if findings else None


def test_what_was_written_is_as_it_was_written(write: Any, team: Team, other_team: Team) -> None:
    write(3), write(2, to=other_team)
    assert anchor_heads(now=NOW) == 2
    write(2)
    report = verify_audit_log()
    assert (report.findings, report.num_chains, report.num_entries, report.num_anchored) == ((), 2, 7, 5)
    call_command("verify_audit")


@pytest.mark.parametrize(
    "data",
    [
        {"n": 1.0, "big": 1e16, "bigger": 1e300, "small": 1e-7, "whole": 2**80, "minus": -0.0},
        {"text": "nul \0, half \ud800, é, 你", "list": [1, None, True, {"deep": (1, 2)}]},
        {"not a number": float("nan"), "endless": float("inf"), "when": NOW, 7: "a key that is no text"},
    ],
)
def test_any_entry_has_the_same_hash_when_read_back(write: Any, data: Any) -> None:
    write(data=data, target="\0key")
    assert first_bad_row() is None


def test_an_entry_names_its_request_and_address(api: Any, write: Any) -> None:
    before = current_request.set(RequestContext(request_id="req_1", ip="192.0.2.1"))
    try:
        entry = write()[0]
    finally:
        current_request.reset(before)
    assert (entry.request_id, entry.ip) == ("req_1", "192.0.2.1")
    api.get("/me")
    assert write()[0].request_id == "", "outside a request there is none"


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE audit_auditentry SET actor = 'nobody'",
        "DELETE FROM audit_auditentry",
        "DELETE FROM audit_audithead",
        "UPDATE audit_audithead SET seq = 0",
        "UPDATE audit_audithead SET hash = repeat('1', 64)",
        "UPDATE audit_audithead SET anchored_seq = 9",
        "DELETE FROM accounts_team",
    ],
)
def test_the_database_refuses_to_change_the_log(write: Any, sql: str) -> None:
    write(2)
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as db:
        db.execute(sql)
        db.execute("SET CONSTRAINTS ALL IMMEDIATE")


@pytest.mark.parametrize(
    ("table", "trigger"),
    [("audit_auditentry", "laminar_guard_audit_truncate"), ("audit_audithead", "laminar_guard_audit_head_truncate")],
)
def test_the_database_refuses_to_empty_the_log(db: None, table: str, trigger: str) -> None:
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER {trigger}")
        cursor.execute(f"TRUNCATE {table}")


class TestAttacks:
    """By the database's owner."""

    @pytest.fixture(autouse=True)
    def _ten_entries(self, write: Any) -> None:
        write(8)
        anchor_heads(now=NOW)
        write(2)

    def test_an_edited_entry_is_named(self) -> None:
        behind_the_guards("UPDATE audit_auditentry SET actor = 'user:2' WHERE seq = 4")
        assert first_bad_row() == (4, "it was changed after it was written")

    def test_edited_details_are_named(self) -> None:
        behind_the_guards("""UPDATE audit_auditentry SET data = '{"n": 2.5}' WHERE seq = 9""")
        assert first_bad_row() == (9, "it was changed after it was written")

    def test_a_hole_is_named(self) -> None:
        behind_the_guards("DELETE FROM audit_auditentry WHERE seq IN (5, 6)")
        assert first_bad_row() == (5, "entries 5 to 6 are missing")

    def test_a_dropped_tail_is_found_by_the_head(self) -> None:
        behind_the_guards("DELETE FROM audit_auditentry WHERE seq = 10")
        assert first_bad_row() == (10, "the chain does not end at its head")

    def test_anchor_reveals_dropped_tail_with_reset_head(self) -> None:
        behind_the_guards(
            "DELETE FROM audit_auditentry WHERE seq > 6",
            "UPDATE audit_audithead SET anchored_seq = 0, seq = 6,"
            " hash = (SELECT hash FROM audit_auditentry WHERE seq = 6)",
        )
        assert first_bad_row() == (7, "the end is missing: entries up to 8 were anchored")

    def test_a_log_that_is_gone_is_found(self) -> None:
        behind_the_guards("DELETE FROM audit_auditentry", "DELETE FROM audit_audithead")
        assert first_bad_row() == (1, "the end is missing: entries up to 8 were anchored")

    def test_two_swapped_entries_are_found(self) -> None:
        behind_the_guards(
            "UPDATE audit_auditentry SET seq = 99 WHERE seq = 3",
            "UPDATE audit_auditentry SET seq = 3 WHERE seq = 4",
            "UPDATE audit_auditentry SET seq = 4 WHERE seq = 99",
        )
        row = first_bad_row()
        assert row is not None and row[0] == 3

    def test_anchor_reveals_a_rewritten_log(self, team: Team) -> None:
        write_anew(team, from_seq=2, actor="user:2")
        row = first_bad_row()
        assert row is not None and row[0] == 8 and "rewritten" in row[1]

    def test_rewrite_before_the_first_anchor_is_not_detected(self, team: Team) -> None:
        write_anew(team, from_seq=9, actor="user:2")
        assert first_bad_row() is None, "entries 9 and 10 are not anchored yet"

    @pytest.mark.parametrize("kept", [slice(1, None), slice(0, 0)])
    def test_anchors_that_were_taken_out_are_missed(self, write: Any, anchors: Path, kept: slice) -> None:
        anchor_heads(now=NOW)
        anchors.write_bytes(b"".join(anchors.read_bytes().splitlines(keepends=True)[kept]))
        try:
            assert first_bad_row() == (11, "the anchor of entry 10 is missing")
        except BrokenAnchors as error:
            assert "before line 1" in str(error)

    def test_an_anchor_of_another_key_is_no_anchor(self, settings: Any, anchors: Path, tmp_path: Path) -> None:
        settings.ENVIRONMENT = replace(settings.ENVIRONMENT, audit_key_file=tmp_path / "theirs.pem")
        with pytest.raises(BrokenAnchors, match=r"line 1 .* unknown key"):
            verify_audit_log()

    def test_an_edited_anchor_is_found(self, anchors: Path) -> None:
        line = json.loads(anchors.read_bytes())
        anchors.write_text(json.dumps(line | {"seq": 7}) + "\n")
        with pytest.raises(BrokenAnchors, match="invalid signature"):
            verify_audit_log()

    def test_the_command_fails_and_names_the_entry(self, capsys: Any) -> None:
        behind_the_guards("UPDATE audit_auditentry SET actor = 'user:2' WHERE seq = 4")
        with pytest.raises(CommandError, match="1 of 1 chains"):
            call_command("verify_audit")
        assert "seq=4: it was changed" in capsys.readouterr().err


def test_only_what_has_grown_is_anchored_again(write: Any, anchors: Path) -> None:
    write(2)
    assert [anchor_heads(now=NOW), anchor_heads(now=NOW)] == [1, 0]
    write()
    assert anchor_heads(now=NOW + timedelta(minutes=5)) == 1
    assert [json.loads(line)["seq"] for line in anchors.read_text().splitlines()] == [2, 3]


def test_the_signing_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key.pem"
    keys = {key.private_bytes_raw() for key in race(*[lambda: signing_key(path)] * 8)}
    assert len(keys) == 1 and path.stat().st_mode & 0o077 == 0


@pytest.mark.django_db(transaction=True)
def test_sixty_four_writers_at_once_keep_one_chain(team: Team, in_own_connection: Callable[..., Any]) -> None:
    def write_two(n: int) -> None:
        for actor in (f"user:{n}", f"user:{64 + n}"):
            record_action(team_id=team.pk, actor=actor, action="key.created", target="key_a", now=NOW)

    race(*(partial(in_own_connection(write_two), n) for n in range(64)))
    assert list(AuditEntry.objects.order_by("seq").values_list("seq", flat=True)) == list(range(1, 129))
    assert first_bad_row() is None


class TestReading:
    def test_the_team_reads_its_own_log_newest_first(self, api_of: Any, alice: User, other_team: Team, write: Any,
                                                     make_key: Any) -> None:  # fmt: skip
        write(3), write(2, to=other_team, actor="user:secret")
        reader = api_of(alice)
        reader.key = make_key(alice, scopes=("audit:read",))
        page = reader.get("/audit-log", limit=2).json()
        assert [entry["seq"] for entry in page["data"]] == [3, 2] and page["has_more"] is True
        rest = reader.get("/audit-log", limit=2, cursor=page["next_cursor"]).json()
        assert [entry["seq"] for entry in rest["data"]] == [1] and rest["has_more"] is False
        assert "secret" not in json.dumps([page, rest])

    def test_it_is_searched_by_actor_action_target_and_time(self, alice: User, api_of: Any, write: Any,
                                                            make_key: Any) -> None:  # fmt: skip
        write(actor="user:7"), write(action="key.revoked"), write(target="key_b"), write(now=NOW + timedelta(days=1))
        reader = api_of(alice)
        reader.key = make_key(alice, scopes=("audit:read",))

        def seqs(**query: Any) -> list[int]:
            return [entry["seq"] for entry in reader.get("/audit-log", **query).json()["data"]]

        assert seqs(actor="user:7") == [1] and seqs(action="key.revoked") == [2] and seqs(target="key_b") == [3]
        assert seqs(since=(NOW + timedelta(hours=1)).isoformat()) == [4] and seqs(after=2) == [4, 3]
        assert reader.get("/audit-log", cursor="x").status_code == 422
