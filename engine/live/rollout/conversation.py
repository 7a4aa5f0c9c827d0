"""A growing trajectory: the model's tokens, the environment's tokens between them, and the state of both.

    prompt ──▶ turn ──▶ environment ──▶ observation ──▶ turn ──▶ … ──▶ verdict

    segments   prompt turn observation turn │ prompt turn observation turn observation turn │ …
               a new segment begins where the chat template rewrites the history (wording.py); its tokens do not
               attend to those before it

Invariants:
- every sampled token occurs once, in the segment that it was sampled in;
- tokens of an environment are marked as not written by the model and carry log-prob 0; `max_new_tokens` bounds only
  what the model writes, observations do not count;
- the state is plain data: a conversation resumes on another replica unchanged.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from itertools import groupby
from typing import Any, Final

from engine.environments.border import shown, sound_text
from engine.environments.port import Blame, Observation, Prompt, Turn, Verdict
from engine.inference.port import (
    NOTHING_SAID,
    KvPages,
    SamplingParams,
    SequenceOutput,
    SequenceProgress,
    SequenceRequest,
)
from engine.live.environment.turns import Answer
from engine.live.rollout.wording import DecodedTurn, Rendered
from engine.live.texts.text_process import TextsUnavailable
from engine.pipeline.packed import Bytes, Floats, Ints, Marks
from engine.pipeline.records import (
    ALL_WRITTEN,
    NO_BREAKS,
    AcknowledgedProgress,
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
"""Maps an engine's version number to its weights."""

HISTORY_REWRITTEN: Final = "\n[history rewritten by the chat template]\n"
"""Shown to people where a segment begins."""


@dataclass(slots=True, kw_only=True)
class Conversation:
    key: SampleKey
    prompt: Prompt
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    """For the whole trajectory."""
    weights: WeightsId
    """The weights of its slot, from begin to end unless the schedule interrupts it or installs others in that slot."""
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[WeightsId] = field(default_factory=list)
    written: list[bool] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    """Positions in the response at which later segments begin."""
    routes: bytes = b""
    """Routes of the first segment's tokens that were read before its last turn ended, each from the token's first
    read."""
    prompt_text: str = ""
    """The prompt's text, as the model read it."""
    segment_text: str = ""
    """The exact text of the current segment."""
    turns: list[Turn] = field(default_factory=list)
    observed: list[Observation] = field(default_factory=list)
    partial: SequenceProgress | None = None
    """The turn in progress, while the conversation moves between two replicas."""
    acknowledged: AcknowledgedProgress | None = None
    """What data had of it at the last report by this replica."""
    text: str = ""
    """The text after the prompt, for people."""
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
        """True if its last message is a turn without an observation."""
        return self.is_truncated or (len(self.turns) > len(self.observed) and self.partial is None)

    def request(self, kv: KvPages | None = None) -> SequenceRequest:
        """The request for the next turn, or for the rest of a turn that another replica began."""
        left = self.sampling.max_new_tokens - sum(self.written)
        partial = self.partial
        if kv is not None:  # the pages may cover only a prompt
            partial = replace(partial or NOTHING_SAID, kv=kv)
        return SequenceRequest(
            sequence_id=self.sequence_id,
            prompt_ids=tuple(self._segment_ids()),
            sampling=replace(self.sampling, max_new_tokens=left),
            progress=partial,
        )

    def _segment_ids(self) -> Iterable[int]:
        return self.response_ids[self.breaks[-1] :] if self.breaks else (*self.prompt_ids, *self.response_ids)

    def add_turn(self, output: SequenceOutput, decoded: DecodedTurn, named: Named) -> None:
        self._note(own=True, letters=(0, len(decoded.turn.text)), num_tokens=len(output.token_ids))
        self.response_ids += output.token_ids
        self.logprobs += output.logprobs
        self.versions += [named(version) for version in output.versions]
        self.written += [True] * len(output.token_ids)
        if not self.breaks:
            self.routes += output.routes[len(self.routes) :]
        self.turns.append(decoded.turn)
        self.partial = None
        self.text += decoded.turn.text
        self.segment_text += decoded.exact_text
        self.was_cut = output.reason == "length"

    def note_answer(self, answer: Answer) -> None:
        self.environment_s += answer.seconds
        self.queue_s += answer.waited_s
        self.queue_depth = max(self.queue_depth, answer.num_before)

    def observe(self, rendered: Rendered, *, seconds: float | None = None) -> None:
        """Adds the last observation, as rendered. `seconds`: how long the environment took."""
        num, observation = len(rendered.ids), self.observed[-1]
        shown = f"{HISTORY_REWRITTEN}{observation.text}" if rendered.starts_segment else rendered.text
        self._note_observation(observation, shown, num_tokens=num, seconds=seconds)
        self.text += shown
        if rendered.starts_segment:
            self.breaks.append(len(self.response_ids))
            self.segment_text = ""
        self.segment_text += rendered.text
        self.response_ids += rendered.ids
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
        text = observation.text.strip()
        at = shown.find(text)  # a template may change the text: then the utterance spans all that is shown
        letters = (at, len(text)) if at >= 0 else (0, len(shown))
        self._note(own=False, letters=letters, num_tokens=num_tokens, seconds=seconds, **of_tool)

    def _note(self, *, own: bool, letters: tuple[int, int], num_tokens: int, **more: Any) -> None:
        """Called before the message's text and tokens are added. `letters`: start and length within that text."""
        at, num_letters = letters
        start, first = len(self.text) + at, len(self.response_ids)
        self.utterances.append(
            Utterance(
                is_own=own, start=start, num_letters=num_letters, first_token=first, num_tokens=num_tokens, **more
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
        return replace(self._end(verdict.reward, verdict.remark, parts=parts), trusted=verdict.trusted)

    def failed(self, failure: Failure, *, seconds: float | None = None) -> Trajectory:
        """`seconds`: until its environment had failed, where the failure is the environment's."""
        if self.utterances and self.utterances[-1].is_own:
            self._note(own=False, letters=(0, 0), num_tokens=0, seconds=seconds, error=failure.reason)
        return self._end(0.0, failure.reason, failure)

    def _end(
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
        """Training samples only: an evaluation's content has no reader, and data would keep all of it to the end."""
        known = self.acknowledged or AcknowledgedProgress(key=self.key, sample_run=0)
        assert known.num_route_bytes <= len(self.routes), f"{self.key} ends with fewer routes than it reported"
        return TrajectoryContent(
            prompt_ids=Ints.of(self.prompt_ids),
            response_ids=Ints.of(self.response_ids),
            logprobs=Floats.of(self.logprobs),
            written=ALL_WRITTEN if all(self.written) else Marks.of(self.written),
            breaks=Ints.of(self.breaks) if self.breaks else NO_BREAKS,
            routes=Bytes(self.routes[known.num_route_bytes :]),
            routes_since=known.num_route_bytes,
            sample_run=known.sample_run if known.num_route_bytes else 0,
            prompt_text=self.prompt_text or self.prompt.text,
            response_text=self.text,
            remark=remark,
            utterances=tuple(self.utterances) if len(self.utterances) > 1 else (),
            parts=parts,
        )


def text_failure(error: Exception, prompt: Prompt, observed: str = "") -> Failure:
    """The failure of a text that cannot be rendered or does not fit the model."""
    blame: Blame = "platform" if isinstance(error, TextsUnavailable) else "user_code"
    message = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    source = f"prompt {prompt.split}/{prompt.ordinal}, {shown(prompt.text)}"
    answered = f", answered {shown(observed)} by its environment" if observed else ""
    return Failure(kind="error", reason=f"{sound_text(message)} ({source}{answered})", blame=blame)


def name_of(key: SampleKey) -> str:
    purpose = "train" if key.group.evaluation is None else f"evaluation-{key.group.evaluation}"
    return f"{purpose}/{key.group.ordinal}/{key.sample}"


def sampling_of(key: SampleKey, spec: JobSpec) -> SamplingParams:
    """The seed derives from the job's seed and the sample's name, so any replica draws the same tokens."""
    rollout = spec.rollout
    sampling = rollout.sampling if key.group.evaluation is None else spec.evaluation_sampling
    digest = sha256(f"{spec.training.seed}/{name_of(key)}".encode()).digest()
    return SamplingParams(
        max_new_tokens=rollout.max_new_tokens,
        temperature=sampling.temperature,
        seed=int.from_bytes(digest[:4], "big") >> 1,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        stop=tuple(rollout.stop),
    )


def _runs(versions: Sequence[WeightsId]) -> tuple[VersionRun, ...]:
    return tuple(VersionRun(weights=weights, num_tokens=len(list(run))) for weights, run in groupby(versions))
