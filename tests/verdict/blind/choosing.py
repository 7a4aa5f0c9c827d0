"""Which runs are shown, and when.

Invariants:
- every kind that has a recorded run is shown at least once, healthy ones among them; the rest is drawn;
- a sick run is shown at a moment between the step by which it is to be named and its last one, a healthy one at any
  after its first window;
- of what is hidden (names, settings) nothing is in a choice but the run's name, which is in the key alone.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.verdict.replaying import place_of, recording_of, sick_from
from tests.verdict.runs import RUNS, STALLED_WITHIN_S, WITHIN, Run, run_called

NUM: Final = 12
HEALTHY: Final = "healthy"
TWO_ANSWERS: Final = {"slowest-of-all"}
"""Healthy, and its trainer waits for a slow tool: two answers would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    name: str
    until_s: float

    @property
    def run(self) -> Run:
        return run_called(self.name)

    @property
    def kind(self) -> str:
        return self.run.kind or HEALTHY


def choose(seed: str) -> list[Shown]:
    rng = random.Random(seed)
    runs = [run for run in RUNS if place_of(run).exists() and run.name not in TWO_ANSWERS]
    kinds = sorted({run.kind for run in runs})
    chosen = [rng.choice([run for run in runs if run.kind == kind]) for kind in kinds]
    chosen += rng.sample([run for run in runs if run not in chosen], NUM - len(chosen))
    rng.shuffle(chosen)
    return [Shown(name=run.name, until_s=_moment(run, rng)) for run in chosen]


def _moment(run: Run, rng: random.Random) -> float:
    steps = [(fact[2], fact[0]) for fact in recording_of(run)["facts"] if fact[1] == "step"]
    if run.kind == "stalled":
        return float(steps[-1][1] + STALLED_WITHIN_S)
    named_by = sick_from(run) + WITHIN[run.kind] if run.kind else 10
    return float(rng.choice(_from(steps, named_by)))


def _from(steps: Sequence[tuple[int, float]], named_by: int) -> list[float]:
    """The moments of those steps; the last one's of a run that ended earlier. The last step is followed by the run's
    end, so it is not one of them."""
    return [at for step, at in steps[:-1] if step >= named_by] or [steps[-2][1]]
