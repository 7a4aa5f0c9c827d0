"""Evidence kept of a failed attempt: its end, its progress, and the last lines that its parts logged.

Invariants:
- it is taken in the transaction that gives the attempt up; later lines of the attempt are refused (an attempt that
  exceeded its time may add a few while it shuts down);
- it holds no recognisable secret and no detail of our hosts, and its size is bounded whatever the attempt logged;
- what is unknown is left out, never guessed.
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


class LastLine(BaseModel):
    at: datetime
    component: str
    level: str
    message: str


class Evidence(BaseModel):
    """Evidence of one attempt. Fields are empty if nothing was recorded."""

    exit_reason: str = Field("", description="How the driver's process ended, as the engine reported it.")
    phase: str = ""
    step: int = 0
    last_fact: LastFact | None = None
    faults: list[str] = Field(default_factory=list, description="The last faults that the engine detected.")
    lines: list[LastLine] = Field(
        default_factory=list,
        description="The last errors that each part of the job logged, oldest first; without errors, the last lines. "
        "The full log is at GET /jobs/{job_id}/logs.",
    )
    log_tail: str = Field("", description="The end of the driver's output, if Ray still had it.")

    @property
    def by_component(self) -> dict[str, list[LastLine]]:
        """The part with the newest line comes first."""
        lines: dict[str, list[LastLine]] = {}
        for line in reversed(self.lines):
            lines.setdefault(line.component, []).insert(0, line)
        return lines


LastWords = Callable[[Job, int], Sequence[LastLine]]
"""Takes a job and the number of an attempt."""
last_words: Port[LastWords] = Port("the last lines of an attempt")
"""Telemetry, a layer above, stores the lines and provides this."""


def take_evidence(job: Job, attempt: JobAttempt, *, exit_reason: str, log_tail: str) -> Evidence:
    faults = job.events.filter(type="fault_detected", actor=f"engine:{attempt.n}").order_by("-seq")[:MOST_FAULTS]
    return Evidence(
        exit_reason=for_tenants(exit_reason),
        phase=job.phase,
        step=job.step,
        last_fact=LastFact(seq=attempt.acked_seq, at=attempt.last_seen_at) if attempt.acked_seq else None,
        faults=[f"{event.data.get('component', '')}: {event.message}" for event in faults],
        lines=list(last_words()(job, attempt.n)),
        log_tail=scrub(log_tail)[-LONGEST_TAIL:],
    )


def scrub(text: str) -> str:
    """Removes recognisable secrets, and details of our hosts, processes and code."""
    return _UNPRINTABLE.sub("", for_tenants(_SECRETS.sub(lambda match: f"{match[1] or match[2]}…", text)))
