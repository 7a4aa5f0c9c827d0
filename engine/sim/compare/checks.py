"""Published figures that need their own runs, in the set-ups of their authors.

KV use without repack     `paper`, whose replicas are not emptied, in every math cell of one size
DORA (arXiv 2604.26256)   64 H800, 32B, 30K, updates of 512: a step of sync and its rollouts
verl's documentation      32 H20, 7B, 28K: a step of sync and its generation; the step of 16 + 16 side by side

The lengths of verl's answers are not published: they are drawn as everywhere here. DORA's own figures (12 % of exposed
rollout, 1.17 × of partial) are of a design that is not simulated here.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from engine.sim.compare.cluster import ClusterFile
from engine.sim.compare.grid import Ran
from engine.sim.compare.published import KV_USED, Published
from engine.sim.costs.calibration import DORA_STEP_S
from engine.sim.fleet.fleet import Fleet
from engine.sim.fleet.outcome import Outcome
from engine.sim.fleet.setup import Setup

DORA_SHARE: Final = 0.65
VERL_SYNC_S: Final = 790.1
VERL_GENERATION_S: Final = 357.4
VERL_ASYNC_S: Final = 294.8
KV_AT: Final = 256
"""Devices; the publication names no cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    what: str
    source: str
    published: float
    read: Callable[[Outcome], float]
    likely_cause: str

    def of(self, outcomes: Sequence[Outcome]) -> Published:
        ours = [self.read(outcome) for outcome in outcomes]
        return Published(
            what=self.what,
            source=self.source,
            published=self.published,
            ours=(min(ours), max(ours)),
            kind="checked",
            likely_cause=self.likely_cause,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    setups: Sequence[Setup]
    """The set-ups that the published figures may be of."""
    figures: Sequence[Figure]


def checked(grid: Sequence[Ran], *, processes: int) -> Iterator[Published]:
    checks = [check for check in (_kv_without_repack(grid), _dora_sync(), _verl_sync(), _verl_async()) if check.setups]
    with ProcessPoolExecutor(processes) as pool:
        futures = [[pool.submit(_run, setup) for setup in check.setups] for check in checks]
        for check, runs in zip(checks, futures, strict=True):
            outcomes = [run.result() for run in runs]
            yield from (figure.of(outcomes) for figure in check.figures)


def _run(setup: Setup) -> Outcome:
    return Fleet(setup).run()


def _kv_without_repack(grid: Sequence[Ran]) -> Check:
    found = [
        replace(ran.setup, schedule=replace(ran.setup.schedule, repack=False))
        for ran in grid
        if ran.setup is not None and (ran.cell.workload, ran.cell.gpus, ran.cell.schedule) == ("math", KV_AT, "paper")
    ]
    figure = Figure(
        what="KV use of paper without repack",
        source="Laminar",
        published=KV_USED,
        read=lambda outcome: outcome.kv_used,
        likely_cause="the cell, the split and the most sequences at once are not named; fewer replicas would be fuller",
    )
    return Check(setups=found, figures=[figure])


def _dora_sync() -> Check:
    cluster = ClusterFile(
        device="H800", model="32B", schedule="sync", training=64, rollout=0, longest=30 * 1_024, mini_batch=512,
        steps=2, warm_steps=1,
    )  # fmt: skip
    share = Figure(
        what="rollout of a step of sync, 64 H800, 32B",
        source="DORA",
        published=DORA_SHARE,
        read=lambda outcome: outcome.generation_share,
        likely_cause="`simulate dora` takes it apart",
    )
    step = Figure(
        what="seconds of that step",
        source="DORA",
        published=DORA_STEP_S,
        read=lambda outcome: outcome.step_s,
        likely_cause="its rollouts; what is trained was fitted to it",
    )
    return Check(setups=[cluster.setup()], figures=[share, step])


def _verl(schedule: str, *, training: int, rollout: int) -> Setup:
    return ClusterFile(
        device="H20", model="7B", schedule=schedule, training=training, rollout=rollout, longest=28 * 1_024,
        steps=2, warm_steps=2,
    ).setup()  # fmt: skip


def _verl_sync() -> Check:
    cause = "what is not generation: half_tokens was fitted on H800, of whose flops an H20 has a seventh"
    step = Figure(
        what="seconds of a step of sync, 32 H20, 7B",
        source="verl",
        published=VERL_SYNC_S,
        read=lambda outcome: outcome.step_s,
        likely_cause=cause,
    )
    generation = Figure(
        what="seconds of its generation",
        source="verl",
        published=VERL_GENERATION_S,
        read=lambda outcome: outcome.generation_share * outcome.step_s,
        likely_cause="the mean of its answers is not published: ours are as long as DORA's",
    )
    return Check(setups=[_verl("sync", training=32, rollout=0)], figures=[step, generation])


def _verl_async() -> Check:
    step = Figure(
        what="seconds of a step of partial, 16 + 16 H20, 7B",
        source="verl",
        published=VERL_ASYNC_S,
        read=lambda outcome: outcome.step_s,
        likely_cause="its update on 16 takes 1.16 x that on 32: it is hardly of as many samples",
    )
    return Check(setups=[_verl("partial", training=16, rollout=16)], figures=[step])
