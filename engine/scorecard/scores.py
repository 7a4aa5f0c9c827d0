"""The scorecard: the simulator's predictions of live runs next to the measurements, misses included.

Invariants:
- constants are fitted to one run, and that run is not scored;
- every other run of the folder is scored: a row for each spec, over all of its runs;
- a prediction counts as right within a bound that was agreed on beforehand, whatever the live runs' own spread.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Final

from engine.live.process.code_version import code_version
from engine.scorecard.kept import KeptRun, kept_run, kept_runs, read_about
from engine.scorecard.recording import trace_of, turn_overhead
from engine.scorecard.simulation import DEVICE, Figures, measured, simulated
from engine.scorecard.tables import Row, Spread, Value, rounded, table
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.grading import GRADING_S
from engine.sim.recorded.facts import observed, read_facts
from engine.sim.recorded.fit import DeviceFit, Fitted, fit

BOUNDS: Final[Mapping[str, float]] = {"trajectories_per_s": 0.15, "staleness_mean": 0.25}
"""Shares of the measurement. A figure without a bound is shown, but not judged."""
LEAST_STALENESS: Final = 0.05
"""Below this a relative error is meaningless: a prediction also below it does not count, any other is a miss."""
QUIET_LOAD: Final = 0.5
FIGURES: Final = ("trajectories_per_s", "staleness_mean", "trainer_waits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    name: str
    figure: str
    predicted: Spread
    measured: Spread

    @property
    def off_by(self) -> float | None:
        """The relative error; None: the measurement is zero."""
        if self.measured.median < LEAST_STALENESS and self.figure == "staleness_mean":
            return None
        return self.predicted.median / self.measured.median - 1 if self.measured.median else None

    @property
    def verdict(self) -> str:
        bound = BOUNDS.get(self.figure)
        if bound is None:
            return ""
        if self.off_by is None:
            return "" if self.predicted.median < LEAST_STALENESS else "missed"
        return f"within {bound:.0%}" if abs(self.off_by) <= bound else "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    fit: DeviceFit
    overhead_s: float
    num_turns: int
    name: str


def calibrated(folder: Path) -> Calibrated:
    """Constants fitted to one kept run. A turn's time beyond its wait is used for grading too: same worker."""
    run = kept_run(folder)
    overhead = turn_overhead(run)
    overhead_s = max(0.0, overhead.mean_s)
    found = fit(observed(read_facts(run.facts)), DEVICES[DEVICE])
    grading = Fitted(
        constant=GRADING_S,
        value=overhead_s,
        num_observations=overhead.num_turns,
        residual=overhead.spread_s / max(overhead_s, 1e-9),
        error=overhead.spread_s / max(overhead_s, 1e-9) / sqrt(overhead.num_turns),
    )
    others = tuple(each for each in found.constants if each.constant is not GRADING_S)
    return Calibrated(
        fit=DeviceFit(found.model, (*others, grading)),
        overhead_s=overhead_s,
        num_turns=overhead.num_turns,
        name=folder.name,
    )


def scores(folder: Path, using: Calibrated) -> list[Score]:
    by_spec: dict[str, list[tuple[Figures, Figures]]] = {}
    for run in kept_runs(folder):
        if run.folder.name != using.name:
            by_spec.setdefault(run.spec.name, []).append(_pair(run, using))
    if not by_spec:
        raise ValueError(f"{folder}: no run other than the one that constants are fitted to")
    return [
        Score(
            name=name,
            figure=figure,
            predicted=Spread.of([getattr(predicted, figure) for predicted, _ in pairs]),
            measured=Spread.of([getattr(live, figure) for _, live in pairs]),
        )
        for name, pairs in by_spec.items()
        for figure in FIGURES
    ]


def _pair(run: KeptRun, using: Calibrated) -> tuple[Figures, Figures]:
    return simulated(run, trace_of(run, overhead_s=using.overhead_s), using.fit), measured(run)


def document(folder: Path, using: Calibrated, found: Sequence[Score], *, command: str) -> str:
    machine = read_about(folder).machine
    judged = [score for score in found if score.verdict]
    num_missed = sum(score.verdict == "missed" for score in judged)
    return "\n".join(
        (
            "# The simulator compared with live runs",
            "",
            f"Made by `{command}`, code {code_version()}. Do not edit: run the command again.",
            "",
            *_warning(machine),
            f"{len(judged) - num_missed} of {len(judged)} predictions are within their bounds "
            f"({BOUNDS['trajectories_per_s']:.0%} on throughput, {BOUNDS['staleness_mean']:.0%} on staleness); "
            f"{num_missed} missed. Figures are medians, with the lowest and the highest of the runs; the trace of "
            "waits and tokens is each live run's own, the constants are those of another run.",
            "",
            *table([_row(score) for score in found]),
            "",
            f"## Constants, fitted to `{using.name}`",
            "",
            *table([_constant(each) for each in using.fit.constants]),
            "",
            f"A turn takes {1e3 * using.overhead_s:.1f} ms beyond its wait, by {using.num_turns:,} turns; grading is "
            "taken to cost the same. Not simulated: cores that parts share, checkpoints, evaluations.",
            "",
            ", ".join(f"{name} {value}" for name, value in machine.items()),
            "",
        )
    )


def _warning(machine: Mapping[str, Value]) -> Iterator[str]:
    load = machine.get("load_before")
    if isinstance(load, float) and load > QUIET_LOAD:
        yield f"**Measured on a machine that was busy with other work (load {load:g}): a trial, and no result.**"
        yield ""


def _row(score: Score) -> Row:
    return {
        "run": score.name,
        "figure": score.figure.replace("_", " "),
        "predicted": _format_spread(score.predicted),
        "measured": _format_spread(score.measured),
        "runs": score.measured.num,
        "off by": "" if score.off_by is None else f"{score.off_by:+.0%}",
        "": score.verdict,
    }


def _format_spread(spread: Spread) -> str:
    median, low, high = (rounded(each) for each in (spread.median, spread.lowest, spread.highest))
    return f"{median:.4g}" if spread.num == 1 else f"{median:.4g} ({low:.4g} to {high:.4g})"


def _constant(each: Fitted) -> Row:
    return {
        "constant": each.constant.name,
        "value": float(f"{each.value:.4g}"),
        "unit": each.constant.unit,
        "observations": each.num_observations,
        "error": "" if each.why_not or not each.value else f"± {each.error:.0%}",
        "residual": "" if each.why_not else f"{each.residual:.0%}",
        "stands, because": each.why_not,
    }
