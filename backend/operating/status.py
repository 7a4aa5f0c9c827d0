"""The last examination of the site, stored for every web process.

Invariants:
- one examination runs at a time, however many processes ask: a conditional UPDATE of the row decides, and the others
  get the previous result;
- results are reused for seconds, those of nodes for a minute, which bounds the load;
- an interrupted examination blocks others no longer than `GIVEN_UP`.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db.models import F, Q

from backend.clock import database_now
from backend.operating.checks.doctor import NEAR, NODES, Part, examine
from backend.operating.checks.findings import Check, Finding, Verdict
from backend.operating.checks.store import check_store
from backend.operating.models import Examination

GIVEN_UP: Final = timedelta(minutes=4)  # longer than the longest examination, that of the nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    name: str
    checks: dict[str, Check]
    lasts: timedelta


OF_THE_SITE: Final = Kind(name="site", checks=NEAR, lasts=timedelta(seconds=10))
OF_THE_STORE: Final = Kind(name="store", checks={"Store": check_store}, lasts=timedelta(seconds=20))
"""For /readyz and /metrics, on a worker's tick; `backend.surroundings` reads the result."""
OF_THE_NODES: Final = Kind(name="nodes", checks=NODES, lasts=timedelta(minutes=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    at: datetime
    parts: tuple[Part, ...]


def last_seen(kind: Kind) -> Seen | None:
    row = Examination.objects.filter(pk=kind.name, ended_at__isnull=False).first()
    if row is None or row.ended_at is None:
        return None
    return Seen(at=row.ended_at, parts=tuple(_to_part(each) for each in row.parts))


def check_again(kind: Kind) -> bool:
    """False: an examination is running, or has just ended."""
    now = database_now()
    Examination.objects.get_or_create(pk=kind.name)
    is_idle = Q(began_at=None) | Q(ended_at__gte=F("began_at")) | Q(began_at__lt=now - GIVEN_UP)
    is_old = Q(ended_at=None) | Q(ended_at__lt=now - kind.lasts)
    row = Examination.objects.filter(pk=kind.name)
    if row.filter(is_idle, is_old).update(began_at=now) != 1:
        return False
    parts = _to_document(examine(settings.ENVIRONMENT, kind.checks))
    row.filter(began_at=now).update(ended_at=database_now(), parts=parts)
    return True


def _to_document(parts: Iterable[Part]) -> list[dict[str, Any]]:
    return [asdict(part) for part in parts]


def _to_part(document: dict[str, Any]) -> Part:
    findings = (Finding(**(each | {"verdict": Verdict(each["verdict"])})) for each in document["findings"])
    return Part(title=document["title"], findings=tuple(findings))
