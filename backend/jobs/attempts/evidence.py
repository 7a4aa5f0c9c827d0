"""The traces kept of an attempt that failed: its end, its progress, and the last words of its parts.

Invariants:
- it is taken in the transaction that gives the attempt up, after which no line of that attempt is let in (one that
  is out of time may add a few while it lets go);
- it holds no secret that we can recognise and nothing of our hosts, and is small whatever the attempt said;
- what cannot be seen is left out, never made up.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from pydantic import BaseModel, Field

from backend.jobs.models import Job, JobAttempt
from backend.ports import Port
from engine.spec.for_tenants import for_tenants

LONGEST_TAIL: Final = 4_000
MOST_FAULTS: Final = 3
_SECRETS = re.compile(r"(lam_(?:live|run)_)[0-9A-Za-z_-]+|(?i:(bearer\s+))\S+")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class LastFact(BaseModel):
    seq: int
    at: datetime | None


class SaidLine(BaseModel):
    at: datetime
    component: str
    level: str
    message: str


class Evidence(BaseModel):
    """The traces of one attempt. Empty where nothing was seen."""

    exit_reason: str = Field("", description="How the driver's process ended, in the engine's words.")
    phase: str = ""
    step: int = 0
    last_fact: LastFact | None = None
    faults: list[str] = Field(default_factory=list, description="The last faults that the engine noticed.")
    lines: list[SaidLine] = Field(
        default_factory=list,
        description="The last errors that each part of the job logged, oldest first; if none logged any, the last "
        "lines of all. From GET /jobs/{job_id}/logs, where the rest is.",
    )
    log_tail: str = Field("", description="The end of what the driver's process printed, while Ray had it.")

    @property
    def by_component(self) -> dict[str, list[SaidLine]]:
        """The part that spoke last comes first."""
        found: dict[str, list[SaidLine]] = {}
        for line in reversed(self.lines):
            found.setdefault(line.component, []).insert(0, line)
        return found


LastWords = Callable[[Job, int], Sequence[SaidLine]]
"""Of an attempt by its number."""
last_words: Port[LastWords] = Port("the last lines of an attempt")
"""They are kept by telemetry, which is above jobs and fills this."""


def take_evidence(job: Job, attempt: JobAttempt, *, exit_reason: str, log_tail: str) -> Evidence:
    faults = job.events.filter(type="fault_detected", actor=f"engine:{attempt.n}").order_by("-seq")[:MOST_FAULTS]
    return Evidence(
        exit_reason=for_tenants(exit_reason),
        phase=job.phase,
        step=job.step,
        last_fact=LastFact(seq=attempt.acked_seq, at=attempt.last_seen_at) if attempt.acked_seq else None,
        faults=[f"{event.data.get('component', '')}: {event.message}" for event in faults],
        lines=list(last_words()(job, attempt.n)),
        log_tail=scrubbed(log_tail)[-LONGEST_TAIL:],
    )


def scrubbed(text: str) -> str:
    """No secret that we can recognise, no path of a host, no line of our own code."""
    return for_tenants(_UNPRINTABLE.sub("", _SECRETS.sub(lambda found: f"{found[1] or found[2]}…", text)))
