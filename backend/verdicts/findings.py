"""Findings as they are kept and told: with the points of the series that show them. Adding a field is fine, changing
one is not."""

from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, Field

from backend.verdicts.rules.finding import Finding, Tone
from backend.verdicts.rules.observed import Line, Observed

MOST_POINTS: Final = 40  # of a line as wide as a word; a thousand pages may ask for it each second


class EvidenceSeries(BaseModel):
    series: str
    points: list[tuple[int, float]] = Field(description="At most 40 of its [step, value], the newest last.")


class Found(BaseModel):
    kind: str = Field(
        description="stalled, environment, untrusted, mismatch, collapsing, stuck, stale; solved, plateau, learning, "
        "early; starved_trainer, starved_rollouts, retold. More may come."
    )
    word: str = Field(description="The kind, for people.")
    tone: Tone = Field(description="alarm: act; notice: time or money could be saved; good; plain.")
    sentence: str
    remedy: str = Field(description="What to do. Empty: nothing.")
    since_step: int | None
    evidence: list[EvidenceSeries] = Field(description="The series that show it, the plainest first.")


def found_of(findings: Sequence[Finding], run: Observed) -> list[Found]:
    return [
        Found(
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
    """Evenly of the line, its two ends among them."""
    line = _line(run, name)
    num = min(len(line), MOST_POINTS)
    chosen = (line[round(at * (len(line) - 1) / max(1, num - 1))] for at in range(num))
    return [(step, float(f"{value:.4g}")) for step, value in chosen]
