"""Findings as stored and served, with the points of their series. Fields may be added, never changed."""

from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, Field

from backend.verdicts.rules.finding import Finding, Tone
from backend.verdicts.rules.observed import Line, Observed

MOST_POINTS: Final = 40  # for a sparkline; a thousand pages may poll it each second


class EvidenceSeries(BaseModel):
    series: str
    points: list[tuple[int, float]] = Field(description="At most 40 [step, value] points, the newest last.")


class FindingOut(BaseModel):
    kind: str = Field(
        description="stalled, environment, untrusted, mismatch, collapsing, stuck, stale; solved, plateau, learning, "
        "early; starved_trainer, starved_rollouts, retold. Expect new kinds."
    )
    word: str = Field(description="Label of the kind.")
    tone: Tone = Field(description="alarm: act now; notice: the run could be faster or cheaper; good; plain.")
    sentence: str
    remedy: str = Field(description="What to do. Empty if nothing is needed.")
    since_step: int | None
    evidence: list[EvidenceSeries] = Field(description="Series that support the finding, the clearest first.")


def findings_out(findings: Sequence[Finding], run: Observed) -> list[FindingOut]:
    return [
        FindingOut(
            kind=each.kind,
            word=each.word,
            tone=each.tone,
            sentence=each.sentence,
            remedy=each.remedy,
            since_step=each.since_step,
            evidence=[
                EvidenceSeries(series=name, points=_points(run, name)) for name in each.evidence if _line(run, name)
            ],
        )
        for each in findings
    ]


def _line(run: Observed, name: str) -> Line:
    return run.whole.get(name) or run.recent.get(name, ())


def _points(run: Observed, name: str) -> list[tuple[int, float]]:
    """Evenly spaced points of the line, including both ends."""
    line = _line(run, name)
    num = min(len(line), MOST_POINTS)
    chosen = (line[round(at * (len(line) - 1) / max(1, num - 1))] for at in range(num))
    return [(step, float(f"{value:.4g}")) for step, value in chosen]
