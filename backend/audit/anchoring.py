"""Signs the heads of grown chains, every few minutes."""

from datetime import datetime

from django.db.models import F

from backend.audit.anchors import append_anchors, read_anchors, signing_key
from backend.audit.key_rotation import former_keys
from backend.audit.models import AuditHead
from backend.audit.places import anchors_and_key
from backend.audit.verification import ChainReport, Finding, verify_chain, verify_chains

MOST_AT_ONCE = 1_000


def anchor_heads(*, now: datetime) -> int:
    """Returns the number of signed heads. A head that grows meanwhile is signed in the next round."""
    grown = AuditHead.objects.filter(seq__gt=F("anchored_seq")).order_by("team_id")
    heads = list(grown.values_list("team_id", "seq", "hash")[:MOST_AT_ONCE])
    if heads:
        path, key_file = anchors_and_key()
        append_anchors(path, heads, key=signing_key(key_file), now=now)
    for team_id, seq, _ in heads:
        AuditHead.objects.filter(pk=team_id, anchored_seq__lt=seq).update(anchored_seq=seq)
    return len(heads)


def verify_audit_log() -> ChainReport:
    """Verifies every chain against every anchor. Raises `BrokenAnchors`."""
    path, key_file = anchors_and_key()
    return verify_chains(read_anchors(path, key=signing_key(key_file).public_key(), former=former_keys(key_file)))


def verify_log_of(team_id: str) -> tuple[Finding | None, int | None]:
    """Verifies one team's chain: the finding, and the number of entries covered by an anchor; None if this process
    cannot read the anchors, which only some processes may. Raises `BrokenAnchors`."""
    path, key_file = anchors_and_key()
    if not (path.exists() and key_file.exists()):
        return verify_chain(team_id, {}, sees_anchors=False), None
    key = signing_key(key_file).public_key()
    anchors = {anchor.seq: anchor for anchor in read_anchors(path, key=key, former=former_keys(key_file), of=team_id)}
    return verify_chain(team_id, anchors), max(anchors, default=0)
