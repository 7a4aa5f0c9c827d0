"""One trajectory while it grows: the model's tokens, the environment's in between, and the state of both.

    prompt ──▶ turn ──▶ environment ──▶ observation ──▶ turn ──▶ … ──▶ verdict

    segments   prompt turn observation turn │ prompt turn observation turn observation turn │ …
               a new one begins where a chat template tells what was said before in another way (wording.py); its
               tokens do not see those before it

Invariants:
- every token that was sampled is there once, in the segment that it was sampled in;
- tokens of an environment are marked as not written by the model and carry log-prob 0; what is left of the longest
  length bounds what the model may still write, observations do not count;
- the state is plain data: a conversation goes on on another replica as if nothing had happened.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from itertools import groupby
from typing import Any, Final

from engine.environments.border import shown, sound_text
from engine.environments.port import Observation, Prompt, Turn, Verdict
from engine.inference.port import (
    NOTHING_SAID,
    KvPages,
    SamplingParams,
    SequenceOutput,
    SequenceProgress,
    SequenceRequest,
)
from engine.live.environment.turns import Answer
from engine.live.rollout.wording import Heard, Worded
from engine.pipeline.packed import Bytes, Floats, Ints, Marks
from engine.pipeline.records import (
    ALL_WRITTEN,
    NO_BREAKS,
    Failure,
    SampleKey,
    Trajectory,
    TrajectoryContent,
    Utterance,
    VersionRun,
)
from engine.policy.lineage import WeightsId
from engine.spec.job import JobSpec

Named = Callable[[int], WeightsId]
"""The weights that an engine knows by this version."""

TOLD_ANEW: Final = "\n[what was said before, told anew]\n"
"""To a person, where a segment begins."""


@dataclass(slots=True, kw_only=True)
class Conversation:
    key: SampleKey
    prompt: Prompt
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    """Of the whole trajectory."""
    weights: WeightsId
    """Those of its slot: that it began on, and ends on unless the schedule interrupts it or lays others under it."""
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[WeightsId] = field(default_factory=list)
    written: list[bool] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    """The places in the response at which later segments begin."""
    routes: bytes = b""
    """Of the tokens of the first segment that were read before its last turn ended, each as it was read for the first
    time."""
    asked: str = ""
    """The text of the prompt, as the model read it."""
    said: str = ""
    """The text of the segment, to the last letter."""
    turns: list[Turn] = field(default_factory=list)
    observed: list[Observation] = field(default_factory=list)
    partial: SequenceProgress | None = None
    """Of a turn in progress, while the conversation is between two replicas."""
    text: str = ""
    """Everything said after the prompt, for a person."""
    utterances: list[Utterance] = field(default_factory=list)
    was_cut: bool = False
    is_truncated: bool = False
    """There is no room for another turn: the environment's verdict is pending."""
    environment_s: float = 0.0
    queue_s: float = 0.0
    queue_depth: int = 0

    @property
    def sequence_id(self) -> str:
        return f"{name_of(self.key)}/{len(self.turns)}"

    @property
    def may_go_on(self) -> bool:
        return not self.was_cut and sum(self.written) < self.sampling.max_new_tokens

    @property
    def awaits_answer(self) -> bool:
        """Its last word was a turn, and no observation came after it."""
        return self.is_truncated or (len(self.turns) > len(self.observed) and self.partial is None)

    def request(self, kv: KvPages | None = None) -> SequenceRequest:
        """The next turn, or the rest of one that was begun elsewhere."""
        left = self.sampling.max_new_tokens - sum(self.written)
        partial = self.partial
        if kv is not None:  # it may be of a prompt alone
            partial = replace(partial or NOTHING_SAID, kv=kv)
        return SequenceRequest(
            sequence_id=self.sequence_id,
            prompt_ids=tuple(self._segment_ids()),
            sampling=replace(self.sampling, max_new_tokens=left),
            progress=partial,
        )

    def _segment_ids(self) -> Iterable[int]:
        return self.response_ids[self.breaks[-1] :] if self.breaks else (*self.prompt_ids, *self.response_ids)

    def add_turn(self, output: SequenceOutput, heard: Heard, named: Named) -> None:
        self._note(own=True, letters=(0, len(heard.turn.text)), num_tokens=len(output.token_ids))
        self.response_ids += output.token_ids
        self.logprobs += output.logprobs
        self.versions += [named(version) for version in output.versions]
        self.written += [True] * len(output.token_ids)
        if not self.breaks:
            self.routes += output.routes[len(self.routes) :]
        self.turns.append(heard.turn)
        self.partial = None
        self.text += heard.turn.text
        self.said += heard.exactly
        self.was_cut = output.reason == "length"

    def note_answer(self, answer: Answer) -> None:
        self.environment_s += answer.seconds
        self.queue_s += answer.waited_s
        self.queue_depth = max(self.queue_depth, answer.num_before)

    def observe(self, worded: Worded, *, seconds: float | None = None) -> None:
        """What the last observation came to, in tokens. `seconds`: until it came."""
        num, observation = len(worded.ids), self.observed[-1]
        shown = f"{TOLD_ANEW}{observation.text}" if worded.begins_anew else worded.text
        self._note_observation(observation, shown, num_tokens=num, seconds=seconds)
        self.text += shown
        if worded.begins_anew:
            self.breaks.append(len(self.response_ids))
            self.said = ""
        self.said += worded.text
        self.response_ids += worded.ids
        self.logprobs += [0.0] * num
        self.versions += [self.versions[-1] if self.versions else self.weights] * num
        self.written += [False] * num

    def _note_observation(
        self, observation: Observation, shown: str, *, num_tokens: int, seconds: float | None
    ) -> None:
        if observation.tool and self.utterances:
            calling = replace(self.utterances[-1], tool=observation.tool, arguments=observation.arguments)
            self.utterances[-1] = calling
        of_tool = {"tool": observation.tool, "error": observation.error}
        said = observation.text.strip()
        at = shown.find(said)  # a template may tell it in other words: then these are told
        letters = (at, len(said)) if at >= 0 else (0, len(shown))
        self._note(own=False, letters=letters, num_tokens=num_tokens, seconds=seconds, **of_tool)

    def _note(self, *, own: bool, letters: tuple[int, int], num_tokens: int, **told: Any) -> None:
        """Before its text and tokens are added. `letters`: where in its text it begins, and how many they are."""
        at, num_letters = letters
        start, first = len(self.text) + at, len(self.response_ids)
        self.utterances.append(
            Utterance(
                is_own=own, start=start, num_letters=num_letters, first_token=first, num_tokens=num_tokens, **told
            )
        )

    def copied(self) -> "Conversation":
        """A copy that shares no list with this conversation."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        lists: dict[str, Any] = {name: [*value] for name, value in values.items() if isinstance(value, list)}
        return replace(self, **lists)

    # ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def judged(self, verdict: Verdict) -> Trajectory:
        parts = tuple((name, value) for name, value in verdict.parts.items())
        return replace(self._ended(verdict.reward, verdict.remark, parts=parts), trusted=verdict.trusted)

    def failed(self, failure: Failure, *, seconds: float | None = None) -> Trajectory:
        """`seconds`: until its environment, which was asked, had failed."""
        if self.utterances and self.utterances[-1].is_own:
            self._note(own=False, letters=(0, 0), num_tokens=0, seconds=seconds, error=failure.reason)
        return self._ended(0.0, failure.reason, failure)

    def _ended(
        self,
        reward: float,
        remark: str,
        failure: Failure | None = None,
        parts: tuple[tuple[str, float], ...] = (),
    ) -> Trajectory:
        oldest = min(self.versions, default=self.weights)
        runs = _runs(self.versions)
        return Trajectory(
            key=self.key,
            weights=oldest,
            runs=runs if len(runs) > 1 else (),
            reward=reward,
            num_tokens=len(self.response_ids),
            cut=self.was_cut,
            num_segments=len(self.breaks) + 1,
            environment_s=self.environment_s,
            queue_s=self.queue_s,
            queue_depth=self.queue_depth,
            failure=failure,
            content=self._content(remark, parts) if self.key.group.evaluation is None else None,
        )

    def _content(self, remark: str, parts: tuple[tuple[str, float], ...]) -> TrajectoryContent:
        """Of training samples only: an evaluation's content has no reader, and data would keep all of it to the end."""
        return TrajectoryContent(
            prompt_ids=Ints.of(self.prompt_ids),
            response_ids=Ints.of(self.response_ids),
            logprobs=Floats.of(self.logprobs),
            written=ALL_WRITTEN if all(self.written) else Marks.of(self.written),
            breaks=Ints.of(self.breaks) if self.breaks else NO_BREAKS,
            routes=Bytes(self.routes),
            prompt_text=self.asked or self.prompt.text,
            response_text=self.text,
            remark=remark,
            utterances=tuple(self.utterances) if len(self.utterances) > 1 else (),
            parts=parts,
        )


def of_the_words(error: Exception, prompt: Prompt, observed: str = "") -> Failure:
    """Of a text that cannot be put to the model."""
    told = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    of = f"prompt {prompt.split}/{prompt.ordinal}, {shown(prompt.text)}"
    answered = f", answered {shown(observed)} by its environment" if observed else ""
    return Failure(kind="error", reason=f"{sound_text(told)} ({of}{answered})", blame="user_code")


def name_of(key: SampleKey) -> str:
    asked_by = "train" if key.group.evaluation is None else f"evaluation-{key.group.evaluation}"
    return f"{asked_by}/{key.group.ordinal}/{key.sample}"


def sampling_of(key: SampleKey, spec: JobSpec) -> SamplingParams:
    """The seed follows from the job's and the sample's name, so any replica draws the same."""
    rollout = spec.rollout
    asked = rollout.sampling if key.group.evaluation is None else spec.evaluation_sampling
    drawn = sha256(f"{spec.training.seed}/{name_of(key)}".encode()).digest()
    return SamplingParams(
        max_new_tokens=rollout.max_new_tokens,
        temperature=asked.temperature,
        seed=int.from_bytes(drawn[:4], "big") >> 1,
        top_p=asked.top_p,
        top_k=asked.top_k,
        min_p=asked.min_p,
        stop=tuple(rollout.stop),
    )


def _runs(versions: Sequence[WeightsId]) -> tuple[VersionRun, ...]:
    return tuple(VersionRun(weights=weights, num_tokens=len(list(its))) for weights, its in groupby(versions))
