"""The outcomes of all samples of a run, from the engine's ledger.

Invariant: the counts are exactly the ledger's. The ends add up to all requested samples; samples that failed and were
replaced, or were trained on and then lost, are listed separately, since they were requested again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend.jobs.models import Job
from backend.pages.trajectories.meanings import ENDS, REQUESTED_AGAIN, Meaning, meaning_of_end
from backend.telemetry.ledger import ledger_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EndShare:
    meaning: Meaning
    num_samples: int
    share: float

    @property
    def can_be_read(self) -> bool:
        """Whether stored trajectories have this end."""
        return self.meaning.word in ENDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    ends: Sequence[EndShare]
    num_samples: int
    requested_again: Sequence[tuple[Meaning, int]]
    """Samples that do not count among the ends, by their kind."""
    step: int | None
    """Counts as of the end of this step; None: as last reported."""


def whereabouts_of_job(job: Job) -> Whereabouts | None:
    ledger = ledger_of(job)
    if ledger is not None:
        return whereabouts_of(ledger.counts, step=None if ledger.is_final else ledger.step)
    # Jobs of earlier releases have their last counts among the events.
    last_word = job.events.filter(type="run_finished").order_by("-seq").values_list("data", flat=True).first()
    return whereabouts_of((last_word or {}).get("ledger") or {}, step=None)


def whereabouts_of(ledger: Mapping[str, int], *, step: int | None) -> Whereabouts | None:
    """None: not reported."""
    counts = {end: num for end, num in ledger.items() if end not in REQUESTED_AGAIN}
    if not counts:
        return None
    total = sum(counts.values())
    order = [*(end for end in (*ENDS, "open") if end in counts), *(end for end in counts if end not in (*ENDS, "open"))]
    return Whereabouts(
        ends=[
            EndShare(meaning=meaning_of_end(end), num_samples=counts[end], share=counts[end] / total if total else 0.0)
            for end in order
        ],
        num_samples=total,
        requested_again=[(meaning_of_end(kind), num) for kind in REQUESTED_AGAIN if (num := ledger.get(kind, 0))],
        step=step,
    )
