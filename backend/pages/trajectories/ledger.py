"""Where all samples of a run went, by the engine's own ledger.

Invariant: the counts are the ledger's, to the sample. The ends add up to all that were asked; what was trained on and
then lost stands beside them, since it was asked again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from backend.jobs.models import Job
from backend.pages.trajectories.meanings import ENDS, Meaning, meaning_of_end
from backend.telemetry.ledger import ledger_of

_BESIDE: Final = "rolled_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Went:
    meaning: Meaning
    num_samples: int
    share: float

    @property
    def can_be_read(self) -> bool:
        """Some of them are kept to be read."""
        return self.meaning.word in ENDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    ends: Sequence[Went]
    num_samples: int
    num_lost: int
    lost: Meaning
    step: int | None
    """By the last word before this step's end; None: by the run's last word."""


def whereabouts_of_job(job: Job) -> Whereabouts | None:
    told = ledger_of(job)
    if told is not None:
        return whereabouts_of(told.counts, step=None if told.is_final else told.step)
    # Of a job of before: its last word is among its events.
    last_word = job.events.filter(type="run_finished").order_by("-seq").values_list("data", flat=True).first()
    return whereabouts_of((last_word or {}).get("ledger") or {}, step=None)


def whereabouts_of(ledger: Mapping[str, int], *, step: int | None) -> Whereabouts | None:
    """None: it was not told."""
    counts = {end: num for end, num in ledger.items() if end != _BESIDE}
    if not counts:
        return None
    total = sum(counts.values())
    order = [*(end for end in (*ENDS, "open") if end in counts), *(end for end in counts if end not in (*ENDS, "open"))]
    return Whereabouts(
        ends=[
            Went(meaning=meaning_of_end(end), num_samples=counts[end], share=counts[end] / total if total else 0.0)
            for end in order
        ],
        num_samples=total,
        num_lost=ledger.get(_BESIDE, 0),
        lost=meaning_of_end(_BESIDE),
        step=step,
    )
