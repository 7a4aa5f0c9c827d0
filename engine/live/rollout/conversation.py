"""One trajectory while it grows: the model's tokens, the environment's in between, and the state of both.

    prompt ──▶ turn ──▶ environment ──▶ observation ──▶ turn ──▶ … ──▶ verdict

Invariants:
- tokens of an environment are marked as not written by the model and carry log-prob 0; what is left of the longest
  length bounds what the model may still write, observations do not count;
- the state is plain data: a conversation goes on on another replica as if nothing had happened.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import groupby

from engine.environments.port import Prompt, Turn, Verdict
from engine.inference.port import KvPages, SamplingParams, SequenceOutput, SequenceProgress, SequenceRequest
from engine.pipeline.packed import Bytes, Floats, Ints, Marks
from engine.pipeline.records import (
    ALL_WRITTEN,
    Failure,
    SampleKey,
    SampleProgress,
    Trajectory,
    TrajectoryContent,
    VersionRun,
)
from engine.policy.lineage import WeightsId
from engine.spec.job import JobSpec

Named = Callable[[int], WeightsId]
"""The weights that an engine knows by this version."""


@dataclass(slots=True, kw_only=True)
class Conversation:
    key: SampleKey
    prompt: Prompt
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    """Of the whole trajectory."""
    weights: WeightsId
    """Those that it began on, and ends on unless the schedule interrupts it."""
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[WeightsId] = field(default_factory=list)
    written: list[bool] = field(default_factory=list)
    routes: bytes = b""
    """Of the tokens that were read before the last turn ended, each as it was read for the first time."""
    turns: list[Turn] = field(default_factory=list)
    partial: SequenceProgress | None = None
    """Of a turn in progress, while the conversation is between two replicas."""
    text: str = ""
    """Everything said after the prompt, for a person."""
    was_cut: bool = False
    environment_s: float = 0.0

    @property
    def sequence_id(self) -> str:
        return f"{name_of(self.key)}/{len(self.turns)}"

    @property
    def may_go_on(self) -> bool:
        return not self.was_cut and sum(self.written) < self.sampling.max_new_tokens

    @property
    def awaits_answer(self) -> bool:
        """Its last word was a turn, and no observation came after it."""
        return bool(self.turns) and self.partial is None and bool(self.written) and self.written[-1]

    def request(self, kv: KvPages | None = None) -> SequenceRequest:
        """The next turn, or the rest of one that was begun elsewhere."""
        left = self.sampling.max_new_tokens - sum(self.written)
        return SequenceRequest(
            sequence_id=self.sequence_id,
            prompt_ids=(*self.prompt_ids, *self.response_ids),
            sampling=replace(self.sampling, max_new_tokens=left),
            progress=None if self.partial is None else replace(self.partial, kv=kv),
        )

    def add_turn(self, output: SequenceOutput, text: str, named: Named) -> None:
        self.response_ids += output.token_ids
        self.logprobs += output.logprobs
        self.versions += [named(version) for version in output.versions]
        self.written += [True] * len(output.token_ids)
        self.routes += output.routes[len(self.routes) :]
        self.turns.append(Turn(text=text))
        self.partial = None
        self.text += text
        self.was_cut = output.reason == "length"

    def observe(self, ids: Sequence[int], text: str) -> None:
        self.response_ids += ids
        self.logprobs += [0.0] * len(ids)
        self.versions += [self.versions[-1] if self.versions else self.weights] * len(ids)
        self.written += [False] * len(ids)
        self.text += text

    # ── between replicas ──────────────────────────────────────────────────────────────────────────────────────────

    def progress(self, partial: SequenceProgress | None, named: Named | None = None) -> SampleProgress:
        """A copy: this one may go on. `partial`: of the turn in progress, whose writers are `named`."""
        versions = [*self.versions]
        if partial is not None and named is not None:
            versions += map(named, partial.versions)
        state = replace(
            self,
            response_ids=[*self.response_ids],
            logprobs=[*self.logprobs],
            versions=[*self.versions],
            written=[*self.written],
            turns=[*self.turns],
            partial=None if partial is None else replace(partial, kv=None),
        )
        return SampleProgress(key=self.key, num_tokens=len(versions), runs=_runs(versions), state=state)

    # ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def judged(self, verdict: Verdict) -> Trajectory:
        return replace(self._ended(verdict.reward, verdict.remark), trusted=verdict.trusted)

    def failed(self, failure: Failure) -> Trajectory:
        return self._ended(0.0, failure.reason, failure)

    def _ended(self, reward: float, remark: str, failure: Failure | None = None) -> Trajectory:
        oldest = min(self.versions, default=self.weights)
        runs = _runs(self.versions)
        return Trajectory(
            key=self.key,
            weights=oldest,
            runs=runs if len(runs) > 1 else (),
            reward=reward,
            num_tokens=len(self.response_ids),
            cut=self.was_cut,
            environment_s=self.environment_s,
            failure=failure,
            content=TrajectoryContent(
                prompt_ids=Ints.of(self.prompt_ids),
                response_ids=Ints.of(self.response_ids),
                logprobs=Floats.of(self.logprobs),
                written=ALL_WRITTEN if all(self.written) else Marks.of(self.written),
                routes=Bytes(self.routes),
                prompt_text=self.prompt.text,
                response_text=self.text,
                remark=remark,
            ),
        )


def name_of(key: SampleKey) -> str:
    asked_by = "train" if key.group.evaluation is None else f"evaluation-{key.group.evaluation}"
    return f"{asked_by}/{key.group.ordinal}/{key.sample}"


def sampling_of(key: SampleKey, spec: JobSpec) -> SamplingParams:
    """The seed follows from the job's and the sample's name, so any replica draws the same."""
    rollout = spec.rollout
    drawn = sha256(f"{spec.training.seed}/{name_of(key)}".encode()).digest()
    return SamplingParams(
        max_new_tokens=rollout.max_new_tokens,
        temperature=rollout.temperature,
        seed=int.from_bytes(drawn[:4], "big") >> 1,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        stop=tuple(rollout.stop),
    )


def _runs(versions: Sequence[WeightsId]) -> tuple[VersionRun, ...]:
    return tuple(VersionRun(weights=weights, num_tokens=len(list(its))) for weights, its in groupby(versions))
