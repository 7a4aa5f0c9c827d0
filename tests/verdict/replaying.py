"""A recorded run replayed, judged as it would have been judged while it ran."""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from backend.verdicts.rules.finding import Finding, Kind
from backend.verdicts.rules.judging import judge
from backend.verdicts.rules.observed import RECENT, WHOLE, Observed
from backend.verdicts.rules.series import OF_THE_LAST_STEPS, OF_THE_WHOLE, PART
from tests.verdict.runs import Run

FOLDER: Final = Path(__file__).parent / "recordings"
LOOKED_AT_EVERY_S: Final = 30.0
"""While no facts arrive, as `backend.verdicts.judging` does it."""


def place_of(run: Run) -> Path:
    return FOLDER / f"{run.name}.json.gz"


def recording_of(run: Run) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(place_of(run).read_bytes())))


def sick_from(run: Run) -> int:
    """The step at which it shows what it is sick of; 0: from its beginning."""
    if run.symptom is None:
        return run.sick_from
    steps = [fact[2:] for fact in recording_of(run)["facts"] if fact[1] == "step"]
    return int(next(step for step, metrics in steps if run.symptom.is_in(metrics)))


def last_step_at(run: Run) -> float:
    return max(float(fact[0]) for fact in recording_of(run)["facts"] if fact[1] == "step")


@dataclass(slots=True, kw_only=True)
class TextFolder:
    """The facts of a run so far."""

    steps: int
    bound: int
    lines: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    step: int = 0
    phase: str = ""
    is_over: bool = False
    changed_at: float = 0.0
    alarms: frozenset[Kind] = frozenset()

    def hear(self, at: float, kind: str, *said: Any) -> None:
        match kind, said:
            case "step", (step, metrics):
                self.step = step
                for name in metrics:
                    if name in OF_THE_LAST_STEPS or name.startswith(PART):
                        self.lines.setdefault(name, []).append((step, metrics[name]))
            case "phase", (phase,):
                self.phase = phase
            case "finished", _:
                self.is_over = True
            case _:
                return
        self.changed_at = at

    def judged(self, at: float) -> Sequence[Finding]:
        found = judge(
            Observed(
                recent={name: line[-RECENT:] for name, line in self.lines.items()},
                whole={
                    name: line for name, line in self.lines.items() if name in OF_THE_WHOLE or name.startswith(PART)
                },
                is_training=self.phase == "training" and self.step < self.steps and not self.is_over,
                is_over=self.is_over,
                silent_s=at - self.changed_at,
                staleness_bound=self.bound,
                alarms=self.alarms,
            )
        )
        assert all(len(line) <= WHOLE for line in self.lines.values()), (
            "longer runs are read in means, which this is not"
        )
        self.alarms = frozenset(each.kind for each in found if each.is_alarm)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    at_s: float
    step: int
    found: Sequence[Finding]

    def names(self, kind: str) -> bool:
        return kind in [each.kind for each in self.found]


def judged_as_told(run: Run) -> Iterator[Look]:
    """After each fact, and in the silence between two."""
    recording = recording_of(run)
    spec = recording["spec"]
    bound = spec["schedule"]["max_staleness"]
    telling = TextFolder(steps=spec["training"]["steps"], bound=8 if bound is None else bound)
    checked_view = 0.0
    for at, *fact in recording["facts"]:
        while at - checked_view > LOOKED_AT_EVERY_S:
            checked_view += LOOKED_AT_EVERY_S
            yield Look(at_s=checked_view, step=telling.step, found=telling.judged(checked_view))
        telling.hear(at, *fact)
        checked_view = at
        yield Look(at_s=at, step=telling.step, found=telling.judged(at))
