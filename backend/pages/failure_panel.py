"""The panel of a failed job: cause, advice and evidence, without repeated text."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from backend.jobs.attempts.failures import FailureExplained, explain_failure
from backend.jobs.models import Job
from backend.pages.said import Said, Telling


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelLine:
    at: datetime
    level: str
    said: Said


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePanel:
    why: FailureExplained
    message: Said | None
    parts: Sequence[tuple[str, Sequence[PanelLine]]]
    """The part that logged last comes first; a part without new text is left out."""
    faults: Sequence[Said]
    printed: Said | None


def failure_panel_of(job: Job) -> FailurePanel:
    why, telling = explain_failure(job), Telling()
    seen = why.evidence
    message = telling.tell(job.message)
    parts = []
    for component, lines in seen.by_component.items():
        told = [(line, telling.tell(line.message)) for line in lines]
        new = [PanelLine(at=line.at, level=line.level, said=said) for line, said in told if said is not None]
        parts += [(component, new)] if new else []
    faults = [said for fault in seen.faults if (said := telling.tell(fault)) is not None]
    printed = telling.tell(seen.log_tail, is_printed=True)
    return FailurePanel(why=why, message=message, parts=parts, faults=faults, printed=printed)
