"""The verdict line of a job's page: the verdict, its evidence, and the remedy.

Invariant: an alarm takes precedence: while there is one, no number on the page has a good tone.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from backend.jobs.models import Job
from backend.pages.job.panels.charts import CHARTS
from backend.pages.job.panels.tiles import Tiles
from backend.pages.templatetags.laminar import number
from backend.verdicts.findings import EvidenceSeries, FindingOut
from backend.verdicts.rules.finding import Tone
from backend.verdicts.selectors import VerdictOut, verdict_of
from engine.spec.series import label_of

_WIDTH, _HEIGHT, _EDGE = 96.0, 26.0, 2.0

_CHART_OF: Final = {key: chart.slug for chart in reversed(CHARTS) for key in chart.keys}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEvidence:
    series: str
    label: str
    now: str
    spark: str
    """The `points` of an SVG polyline; empty for a single point."""
    chart: str
    """The slug of its chart; empty if no chart has this series: the link then searches all series by name."""

    @property
    def exactly(self) -> str:
        """The regular expression that matches only its name."""
        return f"^{self.series}$"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFinding:
    word: str
    tone: Tone
    sentence: str
    remedy: str
    evidence: Sequence[ShownEvidence]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictLine:
    first: ShownFinding | None
    others: Sequence[ShownFinding]
    is_final: bool
    is_alarm: bool
    stands: str
    """Identifies the displayed verdict, so that scripts notice a new one."""

    def calmed(self, tiles: Tiles) -> Tiles:
        if not self.is_alarm:
            return tiles
        return tiles.model_copy(update={"held_out": tiles.held_out.model_copy(update={"tone": "ill"})})


def verdict_line_of(job: Job) -> VerdictLine:
    verdict = verdict_of(job)
    shown = [_shown(each) for each in verdict.findings]
    return VerdictLine(
        first=shown[0] if shown else None,
        others=shown[1:],
        is_final=verdict.is_final,
        is_alarm=verdict.is_alarm,
        stands=_stands(verdict),
    )


def _stands(verdict: VerdictOut) -> str:
    said = verdict.model_dump_json(include={"findings", "is_final"}).encode()
    return hashlib.sha256(said).hexdigest()[:16]


def _shown(found: FindingOut) -> ShownFinding:
    return ShownFinding(
        word=found.word,
        tone=found.tone,
        sentence=found.sentence,
        remedy=found.remedy,
        evidence=[_line(each) for each in found.evidence if each.points],
    )


def _line(evidence: EvidenceSeries) -> ShownEvidence:
    return ShownEvidence(
        series=evidence.series,
        label=label_of(evidence.series),
        now=number(evidence.points[-1][1]),
        spark=_spark(evidence.points),
        chart=_CHART_OF.get(evidence.series, ""),
    )


def _spark(points: Sequence[tuple[int, float]]) -> str:
    if len(points) < 2:
        return ""
    values = [value for _, value in points]
    low, span = min(values), (max(values) - min(values)) or 1.0
    begins, lasts = points[0][0], (points[-1][0] - points[0][0]) or 1
    return " ".join(
        f"{(step - begins) / lasts * _WIDTH:.1f},{_HEIGHT - _EDGE - (value - low) / span * (_HEIGHT - 2 * _EDGE):.1f}"
        for step, value in points
    )
