"""The work of each sample of a kept run: its tokens as written, its waits as drawn.

Tokens are read from the messages to data. A wait follows from the seed alone, so that it is known even for a sample
that never ended; its tokens are drawn from those that ended. The time of a turn beyond its wait (`turn_overhead`) is no
part of the trace: it is a cost of the machine, to be fitted to another run.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, pstdev
from typing import Final

from engine.environments.port import Prompt
from engine.environments.tools.tool_sums import ToolSums
from engine.live.body.recording import read_recording
from engine.pipeline.messages.to_data import ReplicaSynced
from engine.pipeline.records import SampleKey, Trajectory, Utterance
from engine.scorecard.kept import KeptRun
from engine.sim.costs.environment import Call
from engine.sim.fleet.work import Recorded, Work
from engine.spec.job import JobSpec

DATA_RECORDINGS: Final = "data.*.jsonl"


def ended(recordings: Path) -> Iterator[Trajectory]:
    """Every training trajectory sent to data, once; a replica resends a trajectory until data has it on disk."""
    known = set[SampleKey]()
    for path in sorted(recordings.glob(DATA_RECORDINGS)):
        for received in read_recording(path)[2]:
            for each in received.message.finished if isinstance(received.message, ReplicaSynced) else ():
                if each.key not in known and each.key.group.evaluation is None and each.content is not None:
                    known.add(each.key)
                    yield each


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The work of a run's samples, as it was drawn and written."""

    tokens: Recorded
    environment: ToolSums
    overhead_s: float = 0.0
    """Of each turn, beyond its wait."""

    def work(self, seed: int, key: SampleKey) -> Work:
        drawn = self.tokens.work(seed, key)
        if key.group.evaluation is not None:
            return replace(drawn, turns=(1,), calls=())
        calls = (
            Call(wait_s(self.environment, key, turn) + self.overhead_s, call.tokens)
            for turn, call in enumerate(drawn.calls)
        )
        return replace(drawn, calls=tuple(calls))


def trace_of(run: KeptRun, *, overhead_s: float) -> Trace:
    """Raises `ValueError` for a run of another environment, or without ended trajectories."""
    samples = {each.key: _work(each) for each in ended(run.recordings)}
    if not samples:
        raise ValueError(f"{run.recordings}: no trajectory ended")
    return Trace(tokens=Recorded(samples), environment=environment_of(run.spec), overhead_s=overhead_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Of a turn, beyond its wait."""

    mean_s: float
    spread_s: float
    num_turns: int


def turn_overhead(run: KeptRun) -> Overhead:
    environment = environment_of(run.spec)
    beyond = [
        said.seconds - wait_s(environment, each.key, turn)
        for each in ended(run.recordings)
        for turn, said in enumerate(said for said in _utterances_of(each) if not said.is_own)
        if said.seconds is not None
    ]
    if not beyond:
        raise ValueError(f"{run.recordings}: no turn with its environment")
    return Overhead(mean_s=mean(beyond), spread_s=pstdev(beyond), num_turns=len(beyond))


def environment_of(spec: JobSpec) -> ToolSums:
    if spec.environment.name != ToolSums.name:
        raise ValueError(f"a trace of waits is {ToolSums.name}'s, got {spec.environment.name}")
    return ToolSums.from_params(spec.training.seed, spec.environment.params)


def wait_s(environment: ToolSums, key: SampleKey, turn: int) -> float:
    facts: dict[str, str | int] = {"sample": key.sample}
    return environment.waits.seconds(
        Prompt(split=key.group.split, ordinal=key.group.ordinal, text="", facts=facts), turn
    )


def _utterances_of(trajectory: Trajectory) -> tuple[Utterance, ...]:
    assert trajectory.content is not None
    return trajectory.content.utterances


def _work(trajectory: Trajectory) -> Work:
    assert trajectory.content is not None
    utterances = trajectory.content.utterances
    own = tuple(max(1, each.num_tokens) for each in utterances if each.is_own) or (max(1, trajectory.num_tokens),)
    answers = tuple(Call(each.seconds or 0.0, each.num_tokens) for each in utterances if not each.is_own)
    return Work(prompt=len(trajectory.content.prompt_ids), turns=own, calls=answers[: len(own) - 1])
