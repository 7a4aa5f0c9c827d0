"""Whole jobs on this machine's own Ray, for benches that measure the engine as it runs.

Invariants:
- Ray is started once for all runs of a bench, so no figure holds its start;
- a figure is taken between ends of steps, after a warm-up: loading is never part of it.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from engine.scorecard.kept import FACTS_FILE, RECORDINGS, SPEC_FILE
from engine.sinks.jsonl import JsonlSink
from engine.sinks.port import EventSink
from engine.spec.facts import Evaluated, FactBody, PipelineReady, RunFinished, StepTrained
from engine.spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    facts: tuple[tuple[float, FactBody], ...]
    """Moments (seconds of a clock that never goes back), and the facts."""

    @property
    def steps(self) -> list[tuple[float, StepTrained]]:
        return [(at, body) for at, body in self.facts if isinstance(body, StepTrained)]

    @property
    def ready_at(self) -> float:
        return next(at for at, body in self.facts if isinstance(body, PipelineReady))

    @property
    def evaluations(self) -> list[tuple[float, Evaluated]]:
        return [(at, body) for at, body in self.facts if isinstance(body, Evaluated)]

    def windows(self, *, warm_up: int, steps: int) -> list[tuple[float, list[StepTrained]]]:
        """Seconds and steps of each window of steps; the last steps are left out, since no further batch is prepared
        while they train."""
        ends = self.steps[warm_up - 1 :: steps]
        taken = [body for _, body in self.steps]
        return [
            (to - since, taken[warm_up + at * steps : warm_up + (at + 1) * steps])
            for at, ((since, _), (to, _)) in enumerate(pairwise(ends))
        ]


class TimedSink:
    def __init__(self, at_step: Callable[[int], None], kept: EventSink | None = None) -> None:
        """`kept` also receives each fact."""
        self.facts: list[tuple[float, FactBody]] = []
        self._at_step, self._kept = at_step, kept

    def record(self, body: FactBody) -> None:
        self.facts.append((time.monotonic(), body))
        if self._kept is not None:
            self._kept.record(body)
        if isinstance(body, StepTrained):
            self._at_step(body.step)

    def close(self, timeout_s: float) -> bool:
        return self._kept is None or self._kept.close(timeout_s)


@contextmanager
def own_ray() -> Iterator[None]:
    from engine.live.process.ray_session import disconnect, start_own

    start_own()
    try:
        yield
    finally:
        disconnect()


def run_job(spec: JobSpec, *, at_step: Callable[[int], None] = lambda step: None, keep_in: Path | None = None) -> Run:
    """`at_step` is called when a step has been trained. `keep_in`: a folder for spec, facts and recordings."""
    from engine.live.run.attempt import Attempt, AttemptPlan

    kept, recordings = None, None
    if keep_in is not None:
        keep_in.mkdir(parents=True)
        (keep_in / SPEC_FILE).write_text(spec.model_dump_json(indent=1))
        kept, recordings = JsonlSink(keep_in / FACTS_FILE), (keep_in / RECORDINGS).resolve()
    sink = TimedSink(at_step, kept)
    with tempfile.TemporaryDirectory() as folder:
        plan = AttemptPlan(spec=spec, checkpoints=Path(folder) / "checkpoints", recordings=recordings)
        finished: RunFinished = Attempt(plan, sink).run(lambda: None)
    sink.close(timeout_s=0)
    if finished.outcome != "succeeded":
        raise RuntimeError(f"{spec.name}: {finished.outcome}: {finished.message}")
    return Run(facts=tuple(sink.facts))
