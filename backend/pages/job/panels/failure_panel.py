"""The panel of a failed job: cause, advice and evidence, without repeated text."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from backend.jobs.attempts.failures import FailureExplained, explain_failure
from backend.jobs.models import Job
from backend.pages.job.panels.folded_texts import FoldedText, TextFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelLine:
    at: datetime
    level: str
    text: FoldedText


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePanel:
    why: FailureExplained
    message: FoldedText | None
    parts: Sequence[tuple[str, Sequence[PanelLine]]]
    """The part that logged last comes first; a part without new text is left out."""
    faults: Sequence[FoldedText]
    printed: FoldedText | None


def failure_panel_of(job: Job) -> FailurePanel:
    why, folder = explain_failure(job), TextFolder()
    seen = why.evidence
    message = folder.fold(job.message)
    parts = []
    for component, lines in seen.by_component.items():
        folded = [(line, folder.fold(line.message)) for line in lines]
        new = [PanelLine(at=line.at, level=line.level, text=text) for line, text in folded if text is not None]
        parts += [(component, new)] if new else []
    faults = [text for fault in seen.faults if (text := folder.fold(fault)) is not None]
    printed = folder.fold(seen.log_tail, is_printed=True)
    return FailurePanel(why=why, message=message, parts=parts, faults=faults, printed=printed)
