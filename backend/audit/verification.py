"""Verification of the audit log: walks every chain and compares it with the anchors.

Invariants:
- a finding names the first entry that is wrong or missing;
- entries are read in one snapshot, after the anchors: concurrent writes cause no finding.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from django.db import connection, transaction

from backend.audit.anchors import Anchor
from backend.audit.models import FIRST_HASH, AuditEntry, AuditHead
from backend.audit.services import hash_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault of a team's chain. `seq`: the first wrong or missing entry."""

    team_id: str
    seq: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainReport:
    num_entries: int
    num_chains: int
    num_anchored: int
    """Entries covered by an anchor."""
    findings: tuple[Finding, ...]


def verify_chains(anchors: Iterable[Anchor]) -> ChainReport:
    """Verifies all chains. `anchors` were checked by `read_anchors`."""
    by_team: dict[str, dict[int, Anchor]] = defaultdict(dict)
    for anchor in anchors:
        by_team[anchor.team][anchor.seq] = anchor
    findings, num_entries, num_anchored = [], 0, 0
    is_nested = connection.in_atomic_block
    with transaction.atomic():
        if not is_nested:
            _read_one_snapshot()
        heads = dict(AuditHead.objects.values_list("team_id", "seq"))
        teams = sorted(heads.keys() | by_team.keys() | set(_teams_with_entries()))
        for team_id in teams:
            num_entries += AuditEntry.objects.filter(team_id=team_id).count()
            num_anchored += max(by_team[team_id], default=0)
            finding = verify_chain(team_id, by_team[team_id])
            findings += [finding] if finding else []
    return ChainReport(
        num_entries=num_entries, num_chains=len(teams), num_anchored=num_anchored, findings=tuple(findings)
    )


def verify_chain(team_id: str, anchors: Mapping[int, Anchor], *, sees_anchors: bool = True) -> Finding | None:
    """Verifies one team's chain; `anchors` by the seq that they cover."""
    seq, digest = 0, FIRST_HASH
    for entry in AuditEntry.objects.filter(team_id=team_id).order_by("seq").iterator(chunk_size=2_000):
        fault = _find_fault(entry, seq + 1, digest, anchors.get(entry.seq))
        if fault:
            return Finding(team_id=team_id, seq=seq + 1, message=fault)
        seq, digest = entry.seq, entry.hash
    missing = [anchor for anchor in anchors.values() if anchor.seq > seq]
    if missing:
        newest = max(anchor.seq for anchor in missing)
        return Finding(
            team_id=team_id, seq=seq + 1, message=f"the end is missing: entries up to {newest} were anchored"
        )
    head = AuditHead.objects.filter(pk=team_id).first()
    if sees_anchors and head and head.anchored_seq > max(anchors, default=0):
        return Finding(team_id=team_id, seq=seq + 1, message=f"the anchor of entry {head.anchored_seq} is missing")
    if (head.seq, head.hash) != (seq, digest) if head else seq > 0:
        return Finding(team_id=team_id, seq=seq + 1, message="the chain does not end at its head")
    return None


def _find_fault(entry: AuditEntry, seq: int, previous_hash: str, anchor: Anchor | None) -> str:
    if entry.seq != seq:
        return f"entries {seq} to {entry.seq - 1} are missing"
    if entry.previous_hash != previous_hash:
        return "it does not follow the previous entry: one of them was inserted, moved or changed"
    if entry.hash != hash_of(entry):
        return "it was changed after it was written"
    if anchor is not None and anchor.hash != entry.hash:
        return "the chain up to here was rewritten: the anchor is for another chain"
    return ""


def _teams_with_entries() -> list[str]:
    return list(AuditEntry.objects.order_by("team_id").values_list("team_id", flat=True).distinct())


def _read_one_snapshot() -> None:
    with connection.cursor() as db:
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
