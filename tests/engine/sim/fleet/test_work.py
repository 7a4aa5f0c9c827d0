"""How a sample's work is drawn, and which version writes each of its tokens when."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from engine.pipeline.records import GroupKey, GroupTask, SampleKey
from engine.policy.lineage import WeightsId
from engine.sim.compare.contestants import CONTESTANTS
from engine.sim.costs.environment import Call
from engine.sim.fleet import replica_body
from engine.sim.fleet.decoding import Decoding
from engine.sim.fleet.fleet import Fleet
from engine.sim.fleet.sequence import Sequence
from engine.sim.fleet.setup import Setup
from engine.sim.fleet.work import Drawing, Recorded, Work
from tests.engine.sim.fleet.fleets import NotingFleet, outcome_of, setup_of

SPLIT = [name for name in CONTESTANTS if not CONTESTANTS[name].is_colocated]


@dataclass
class Noting:
    """Delegates drawing and records the result."""

    wrapped: Drawing
    drawn: dict[SampleKey, Work] = field(default_factory=dict)

    def work(self, seed: int, key: SampleKey) -> Work:
        self.drawn[key] = self.wrapped.work(seed, key)
        return self.drawn[key]


class ByVersion(Decoding):
    """Counts what each version writes independently: by rows of the batch instead of sequences."""

    written: Counter[WeightsId] = Counter()

    def _leap(self, steps: int) -> None:
        for weights, rows in self.residents.num_rows.items():
            ByVersion.written[weights] += rows * max(0, steps)
        super()._leap(steps)


class TracingFleet(NotingFleet):
    """Keeps every sequence ever started, including moving and stopped ones."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.begun: list[Sequence] = []
        for replica in self.replicas:
            replica.body._begun = self._noted(replica.body._begun)

    def _noted(self, begun: Callable[[GroupTask, float], list[Sequence]]) -> Callable[..., list[Sequence]]:
        def noted(task: GroupTask, now: float) -> list[Sequence]:
            sequences = begun(task, now)
            self.begun += sequences
            return sequences

        return noted


@pytest.mark.long_except(
    "bounded-math", "paper-math", "laminar_cap-math", "laminar_delta-math", "laminar_delta_cap-math", "adapter-math"
)
@pytest.mark.parametrize("workload", ["math", "tools"])
@pytest.mark.parametrize("schedule", CONTESTANTS)
def test_written_tokens_equal_decoded_tokens_by_version(
    schedule: str, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_body, "Decoding", ByVersion)
    monkeypatch.setattr(ByVersion, "written", Counter())
    fleet = TracingFleet(setup_of(schedule, workload=workload))
    fleet.run()
    of_runs: Counter[WeightsId] = Counter()
    for sequence in fleet.begun:
        assert sum(run.num_tokens for run in sequence.runs) == sequence.num_written
        assert all(run.num_tokens > 0 for run in sequence.runs)
        for run in sequence.runs:
            of_runs[run.weights] += run.num_tokens
    for replica in fleet.replicas:  # what those that run wrote since they joined
        decoding = replica.body.decoding
        for sequence in decoding._running.values():
            of_runs[sequence.weights] += decoding._step - sequence.joined_at
    assert +of_runs == +ByVersion.written
    assert sum(of_runs.values()) == sum(replica.body.decoding.num_written for replica in fleet.replicas)


@pytest.mark.parametrize("schedule", SPLIT)
def test_token_staleness_is_the_mean_over_trained_tokens(schedule: str) -> None:
    fleet = NotingFleet(setup_of(schedule))
    outcome = fleet.run()
    sum_of_ages = num_tokens = 0
    for batch in fleet.batches[fleet.setup.warm_steps : fleet.setup.warm_steps + fleet.setup.steps]:
        for group in batch.groups:
            for trajectory in group.trajectories:
                ages = [batch.step - 1 - run.weights.version for run in trajectory.runs for _ in range(run.num_tokens)]
                sum_of_ages, num_tokens = sum_of_ages + sum(ages), num_tokens + len(ages)
    assert outcome.staleness_of_tokens == pytest.approx(sum_of_ages / num_tokens)
    assert outcome.staleness_of_tokens <= outcome.staleness_max


@pytest.mark.parametrize("workload", ["math", "tools"])
def test_a_drawing_that_wraps_the_usual_one_changes_nothing(workload: str) -> None:
    usual = setup_of("partial", workload=workload)
    noting = Noting(usual._drawing)
    assert outcome_of("partial", workload=workload, drawn=noting) == Fleet(usual).run()
    assert noting.drawn


@pytest.mark.parametrize("schedule", ["sync", "paper", "laminar"])
def test_a_recorded_run_is_drawn_again_as_it_was(schedule: str) -> None:
    noting = Noting(setup_of(schedule, workload="tools")._drawing)
    first = outcome_of(schedule, workload="tools", drawn=noting)
    again = Recorded(noting.drawn)
    # Another seed and other models of lengths: what is recorded counts.
    assert outcome_of(schedule, drawn=again, seed=99) == first


def test_unrecorded_sample_is_drawn_from_recorded_ones() -> None:
    def key(ordinal: int, sample: int) -> SampleKey:
        return SampleKey(group=GroupKey(ordinal=ordinal), sample=sample)

    recorded = {key(at, sample): Work(prompt=10 + at, turns=(1 + at,)) for at in range(5) for sample in (0, 1)}
    recorded[key(3, 2)] = Work(prompt=13, turns=(2, 5), calls=(Call(0.5, 4),))
    drawn = Recorded(recorded)
    assert drawn.work(1, key(3, 2)).num_tokens == 13 + 7 + 4
    assert drawn.work(1, key(2, 3)) == recorded[key(2, 1)]  # of its own group
    for ordinal in range(100, 140):
        works = [drawn.work(7, key(ordinal, sample)) for sample in range(4)]
        assert len({work.prompt for work in works}) == 1
        assert all(work in recorded.values() for work in works)
        assert works == [Recorded(recorded).work(7, key(ordinal, sample)) for sample in range(4)]
    assert len({drawn.work(7, key(ordinal, 0)).prompt for ordinal in range(100, 140)}) == 5


@pytest.mark.long_except("sync_split", "one_step", "bounded")
@pytest.mark.parametrize("schedule", SPLIT)
def test_updates_keep_their_interval_or_wait_for_answers(schedule: str) -> None:
    late = outcome_of(schedule, train_every_s=0.5)
    assert late.step_s > 0.5  # answers take seconds
    fleet = Fleet(setup_of(schedule, train_every_s=300.0))
    fleet.run()
    ends = [step.ended_at for step in fleet.steps]
    gaps = [after - before for before, after in pairwise(ends)]
    if fleet.setup.schedule.lead_steps >= 1:
        assert gaps == pytest.approx([300.0] * len(gaps), rel=1e-4)  # except for message delays
    else:
        assert all(gap > 301.0 for gap in gaps)  # some of the batch is generated in between


def test_a_time_between_updates_that_cannot_be_is_refused() -> None:
    assert "devices that only train" in setup_of("sync", train_every_s=10.0).why_not
    assert setup_of("laminar", train_every_s=0.01).why_not.startswith("a hand-over takes")
