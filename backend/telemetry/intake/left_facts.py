"""Reads the facts that a driver left in its folder, if a restore of the database lost what it had sent.

Invariants:
- they are ingested like sent facts, each once and in order; facts already stored are skipped;
- nodes write the folder: no link is followed, only complete lines of bounded length are read, and the first refused
  line ends the reading;
- reading starts at the segment of the first missing fact; a gap, including facts that the driver has discarded since
  they were acknowledged, ends the reading: nothing after it is stored;
- their own times are used within limits: after the attempt's last known time, and not in the future. So devices are
  billed until the run's end, not until the restore.
"""

import logging
from bisect import bisect_left
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from django.conf import settings
from pydantic import ValidationError

from backend.errors import Refusal
from backend.jobs.generation.left_behind import spool_of
from backend.jobs.models import JobAttempt
from backend.store.node_files import open_file
from backend.telemetry.intake.ingest import ingest_facts
from engine.spec.control import MAX_FACTS_PER_BATCH, FactBatch
from engine.spec.fact_segments import first_seqs, segment_name
from engine.spec.facts import Fact

log = logging.getLogger(__name__)

LONGEST_LINE: Final = 2 * 2**20  # the limit of a request
BATCHES_AT_ONCE: Final = 50  # ten thousand facts, some seconds; the next round continues


def take_left_facts(attempt: JobAttempt, now: datetime) -> bool:
    """Stores the missing facts and returns whether there were any."""
    attempt.refresh_from_db(fields=["acked_seq", "last_seen_at"])
    before = acked = attempt.acked_seq
    try:
        facts = _facts_after(acked, spool_of(attempt.job_id, attempt.n, attempt.fence))
        for _ in range(BATCHES_AT_ONCE):
            batch = list(islice(facts, MAX_FACTS_PER_BATCH))
            if not batch:
                break
            acked = _store(attempt, batch, now)
    except OSError as error:
        log.warning("cannot read left facts job=%s attempt=%d error=%s", attempt.job_id, attempt.n, error)
    except (Refusal, ValidationError, ValueError) as error:
        log.warning("left facts refused job=%s attempt=%d error=%s", attempt.job_id, attempt.n, error)
    if acked > before:
        log.info("left facts stored job=%s attempt=%d from=%d to=%d", attempt.job_id, attempt.n, before + 1, acked)
    return acked > before


def _store(attempt: JobAttempt, facts: list[Fact], now: datetime) -> int:
    batch = FactBatch(attempt=attempt.n, fence=attempt.fence, facts=facts)
    known = attempt.last_seen_at or attempt.submitted_at or attempt.created_at
    return ingest_facts(attempt, batch, now=min(now, max(known, facts[-1].at)))


def _facts_after(acked: int, spool: Path) -> Iterator[Fact]:
    home = (Path(settings.ENVIRONMENT.store_dir) / "jobs").resolve()
    names = (spool.parent.parent.name, spool.parent.name, spool.name)
    if spool.resolve() != home.joinpath(*names):
        raise ValueError(f"{spool} leads outside the attempt's folder")
    firsts = first_seqs(spool)
    if firsts and firsts[0] > acked + 1:
        raise ValueError(f"fact {acked + 1} was discarded, the oldest left is {firsts[0]}: the backup is too old")
    begin = max((first for first in firsts if first <= acked + 1), default=1)
    for first in firsts[bisect_left(firsts, begin) :]:
        with open_file(home, (*names, segment_name(first))) as segment:
            yield from (fact for fact in _facts_in(segment) if fact.seq > acked)


def _facts_in(segment: BinaryIO) -> Iterator[Fact]:
    while (line := segment.readline(LONGEST_LINE)).endswith(b"\n"):
        yield Fact.model_validate_json(line)
