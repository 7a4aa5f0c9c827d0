"""The samples of a bench's replica: the engine's request for each, and the versions of its tokens.

Invariant: a sample is as long as it was drawn, and the samples of a group have one prompt.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.inference.port import SamplingParams, SequenceRequest
from engine.pipeline.records import GroupKey, GroupTask, HeldGroup, SampleKey, VersionRun
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.sim.fleet.setup import Setup
from tests.bench.engine.deciding.engine import CountingEngine
from tests.bench.engine.deciding.machine import VOCABULARY


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    key: SampleKey
    begun_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A sample about to enter an engine: a new one, or one from another replica."""

    live: Live
    request: SequenceRequest


@dataclass(slots=True, kw_only=True)
class Slot:
    engine: CountingEngine
    weights: WeightsId = NO_WEIGHTS
    live: dict[str, Live] = field(default_factory=dict)

    def names_of(self, group: HeldGroup) -> list[str]:
        wanted = {SampleKey(group=group.key, sample=sample) for sample in group.samples}
        return [name for name, live in self.live.items() if live.key in wanted]


def begun(task: GroupTask, setup: Setup, *, at: float) -> Iterator[Moved]:
    assert not task.progress, "nobody dies here"
    for sample in task.samples:
        key = SampleKey(group=task.key, sample=sample)
        work = setup.work(key)
        assert not work.calls, "no tools: waits are not measured here"
        request = SequenceRequest(
            sequence_id=f"{key.group.evaluation}/{key.group.ordinal}/{sample}/{task.lease}",
            prompt_ids=_prompt(task.key, work.prompt),
            sampling=SamplingParams(max_new_tokens=work.turns[0], temperature=1.0, seed=sample),
        )
        yield Moved(live=Live(key=key, begun_at=at), request=request)


def runs_of(versions: Sequence[int], known: Mapping[int, WeightsId]) -> tuple[VersionRun, ...]:
    """`known`: the weights that a version's number names; epochs never change here."""
    runs: list[VersionRun] = []
    for version in versions:
        weights = known.get(version, WeightsId(0, version))
        if runs and runs[-1].weights == weights:
            runs[-1] = replace(runs[-1], num_tokens=runs[-1].num_tokens + 1)
        else:
            runs.append(VersionRun(weights=weights, num_tokens=1))
    return tuple(runs)


def _prompt(group: GroupKey, num_tokens: int) -> tuple[int, ...]:
    """A group's samples share it."""
    chance = random.Random(f"{group.evaluation}/{group.ordinal}")
    return tuple(chance.randrange(3, VOCABULARY) for _ in range(num_tokens))
