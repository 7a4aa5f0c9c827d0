"""A replica's body: decodes what it was granted, takes turns with the environment, installs weights in place, and
hands unfinished samples to another replica.

    granted ──▶ waits for a place ──▶ prompt asked for ──▶ decoding ⇄ with the environment ──▶ ended
                                                             └────── between replicas ──────┘

Invariants:
- a prompt is rebuilt from its ordinal and a sample's seed from its key, so any replica makes the same request of it;
- every sample started comes back as exactly one trajectory, judged or with the reason why not, unless it was stopped
  or handed over: then it is gone from here at once;
- at most `max_batch` samples are begun; what was granted beyond that waits its turn;
- bytes are verified against their manifest before they replace weights.
"""

# Over budget: one life of a sample from grant to end; what could leave it has (lanes, asking, conversation).

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from engine.environments.port import Observation, Prompt, Verdict
from engine.inference.port import KvPages, SequenceRequest
from engine.live.answers import Answer, Ask
from engine.live.asking import Asking
from engine.live.conversation import Conversation, sampling_of
from engine.live.lanes import Lanes
from engine.live.moved_kv import KvBySample, MovedKv
from engine.live.replica_watch import ReplicaWatch
from engine.live.stored_weights import map_version
from engine.models.tokenizer import Tokenizer
from engine.pipeline.effects import (
    Effect,
    HandOverSequences,
    InstallWeights,
    ReportProgress,
    ResumeSequences,
    StartSequences,
    StopSequences,
)
from engine.pipeline.messages import (
    Address,
    InstallRefused,
    Message,
    ProgressReported,
    SequencesHandedOver,
    TrajectoriesEnded,
    WeightsInstalled,
    rollout_address,
)
from engine.pipeline.records import GroupTask, HeldGroup, SampleKey, SampleProgress, Trajectory
from engine.pipeline.reports import Doing, ReplicaObserved
from engine.pipeline.rollout import RolloutBrain
from engine.policy.lineage import WeightsId
from engine.spec.job import JobSpec
from engine.weights.chunks import TornWeights, WeightsGone, verify_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A sample that was granted and has no place yet."""

    progress: SampleProgress
    """What it goes on from; without a token where it is fresh."""
    weights: WeightsId


OUT_OF_TOKENS: Final = "It ran out of tokens before the environment reached a verdict."


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """Where a body's words go."""

    post: Callable[[Address, Message], None]
    ask: Callable[[Sequence[Ask]], None]
    observe: Callable[[ReplicaObserved], None]


class RolloutBody:
    tick_s = 0.05

    def __init__(
        self,
        *,
        spec: JobSpec,
        brain: RolloutBrain,
        replica: int,
        incarnation: int,
        lanes: Lanes,
        tokenizer: Tokenizer,
        wires: Wires,
    ) -> None:
        self.brain = brain
        self._spec = spec
        self._lanes, self._tokenizer, self._wires = lanes, tokenizer, wires
        self._asking = Asking(by=rollout_address(replica), ask=wires.ask, timeout_s=spec.environment.turn_timeout_s)
        self._queued: deque[Queued] = deque()
        self._unprompted: dict[SampleKey, WeightsId] = {}
        """On which weights samples begin whose prompts are not here yet."""
        self._ended: list[Trajectory] = []
        self._watch = ReplicaWatch(replica=replica, incarnation=incarnation, observe=wires.observe)

    @property
    def is_busy(self) -> bool:
        return bool(self._lanes.num_decoding or self._ended)

    def start(self) -> list[Message]:
        return []

    def perform(self, effect: Effect) -> list[Message]:
        match effect:
            case StartSequences():
                self._start(effect.tasks)
            case InstallWeights():
                return [self._install(effect)]
            case StopSequences():
                stopped = self._take_out(_keys(effect.groups))
                self._begin_queued()
                return [ProgressReported(progress=tuple(stopped), is_stopped=True)] if effect.reports else []
            case HandOverSequences():
                self._hand_on(effect)
                self._begin_queued()
            case ResumeSequences():
                handed = effect.handed
                assert isinstance(handed.payload, dict)
                self._resume(handed.progress, handed.weights, handed.payload)
            case ReportProgress():
                return [ProgressReported(progress=tuple(self._look_at(_keys(effect.groups))))]
            case _:
                raise TypeError(f"a rollout's body does not do {type(effect).__name__}")
        return []

    def work(self) -> list[Message]:
        self._watch.turn_to("decode" if self._lanes.num_decoding else self._resting)
        said: list[Conversation] = []
        for lane, output in self._lanes.step():
            conversation = lane.decoding.pop(output.sequence_id)
            conversation.add_turn(output, self._tokenizer.decode(output.token_ids), lane.named)
            said.append(conversation)
        self._asking.turns(said)
        return self._hand_in()

    def measure(self, now: float) -> list[Message]:
        if not self._lanes.num_decoding:
            self._watch.turn_to(self._resting)
        if not self._watch.is_due(now):
            return []
        load = self._watch.measure(
            now, self._lanes.view(), num_queued=len(self._queued), num_with_environment=self._asking.num_open
        )
        self._asking.again(lost_only=True)
        return [replace(load, kv_by_weights=self._lanes.kv_by_weights())]

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _install(self, effect: InstallWeights) -> Message:
        self._watch.turn_to("weights")
        manifest = effect.manifest
        try:
            weights = map_version(manifest, effect.payload)
            verify_weights(weights)
        except TornWeights as error:
            is_gone = isinstance(error, WeightsGone)
            return InstallRefused(version=manifest.version, epoch=manifest.epoch, reason=str(error), is_gone=is_gone)
        lane = self._lanes.free_for(manifest.id, effect.keeps)
        interrupted: list[SequenceRequest] = []
        if effect.in_flight == "reprefill":  # out and in again: their keys and values are of the old weights
            interrupted = lane.engine.export(list(lane.decoding), leave=True, with_kv=False)
        lane.install(weights, manifest.id)
        self._lanes.newest = lane
        if interrupted:
            lane.engine.submit(interrupted)
        return WeightsInstalled(version=manifest.version, epoch=manifest.epoch)

    # ── samples begin and go on ───────────────────────────────────────────────────────────────────────────────────

    def _start(self, tasks: Iterable[GroupTask]) -> None:
        for task in tasks:
            weights = task.exact or self._lanes.newest.weights
            begun = {progress.key.sample: progress for progress in task.progress}
            for at in task.samples:
                key = SampleKey(group=task.key, sample=at)
                known = begun.get(at, SampleProgress(key=key, num_tokens=0, runs=()))
                self._queued.append(Queued(progress=known, weights=weights))
        self._begin_queued()

    def _begin_queued(self) -> None:
        if not self._queued:
            return
        room = self._spec.rollout.max_batch - self._lanes.num_decoding - self._asking.num_samples
        begun: dict[WeightsId, list[SampleProgress]] = {}
        for _ in range(min(room, len(self._queued))):
            queued = self._queued.popleft()
            begun.setdefault(queued.weights, []).append(queued.progress)
        for weights, progress in begun.items():
            self._resume(progress, weights, {})

    def _resume(self, progress: Iterable[SampleProgress], weights: WeightsId, moved: KvBySample) -> None:
        """From where they were left, here or by another replica."""
        fresh: list[SampleKey] = []
        asked: list[Conversation] = []
        for each in progress:
            state = each.state
            if not isinstance(state, Conversation):  # it has not even its prompt
                fresh.append(each.key)
                self._unprompted[each.key] = weights
            elif state.awaits_answer:
                asked.append(replace(state, weights=weights))
            else:
                self._submit(replace(state, weights=weights), moved)
        self._asking.prompts(fresh)
        self._asking.turns(asked)

    def on_answers(self, answers: Sequence[Answer]) -> list[Message]:
        for answer in answers:
            for key in self._asking.awaited_prompt(answer):
                self._begin(key, answer)
            conversation = self._asking.awaited_turn(answer)
            if conversation is not None:
                self._go_on(conversation, answer)
        return self._hand_in()

    def ask_again(self) -> list[Message]:
        self._asking.again(lost_only=False)
        return []

    def _begin(self, key: SampleKey, answer: Answer) -> None:
        is_there = isinstance(answer.said, Prompt)
        prompt = _of_sample(answer.said, key) if isinstance(answer.said, Prompt) else _no_prompt(key)
        conversation = Conversation(
            key=key,
            prompt=prompt,
            prompt_ids=tuple(self._tokenizer.encode(prompt.text)),
            sampling=sampling_of(key, self._spec),
            weights=self._unprompted.pop(key),
        )
        if is_there:
            self._submit(conversation, {})
        else:
            self._ended.append(conversation.failed(f"no prompt: {answer.failure}"))

    def _go_on(self, conversation: Conversation, answer: Answer) -> None:
        conversation.environment_s += answer.seconds
        match answer.said:
            case Verdict():
                self._ended.append(conversation.judged(answer.said))
            case Observation() if conversation.may_go_on:
                ids = self._tokenizer.encode(answer.said.text)
                conversation.observe(ids, answer.said.text)
                self._submit(conversation, {})
            case Observation():
                conversation.was_cut = True
                verdict = Verdict(reward=0.0, parts={}, trusted=True, remark=OUT_OF_TOKENS)
                self._ended.append(conversation.judged(verdict))
            case _:
                self._ended.append(conversation.failed(answer.failure))

    def _submit(self, conversation: Conversation, moved: KvBySample) -> None:
        lane = self._lanes.of(conversation.weights)
        request = conversation.request(_opened(moved.get(conversation.key.sample)))
        try:
            lane.engine.submit([request])
        except ValueError as error:  # this prompt does not fit the model; others do
            self._ended.append(conversation.failed(str(error)))
            return
        lane.decoding[request.sequence_id] = conversation

    # ── samples leave ─────────────────────────────────────────────────────────────────────────────────────────────

    def _hand_on(self, effect: HandOverSequences) -> None:
        self._watch.turn_to("move")
        moved: KvBySample = {}
        progress = self._take_out(_keys([effect.group]), moved=moved)
        handed = SequencesHandedOver(
            incarnation=effect.host_incarnation,
            key=effect.group.key,
            lease=effect.group.lease,
            weights=effect.weights,
            progress=tuple(progress),
            payload=moved,
        )
        self._wires.post(rollout_address(effect.host), handed)

    def _take_out(self, keys: set[SampleKey], *, moved: KvBySample | None = None) -> list[SampleProgress]:
        """They are gone from here. `moved` gathers their keys and values."""
        left = [queued.progress for queued in self._queued if queued.progress.key in keys]
        self._queued = deque(queued for queued in self._queued if queued.progress.key not in keys)
        unprompted = self._asking.forget_prompts(keys)
        left += [SampleProgress(key=key, num_tokens=0, runs=()) for key in unprompted]
        for key in unprompted:
            del self._unprompted[key]
        left += [each.progress(None) for each in self._asking.forget_turns(keys)]
        return left + self._exported(keys, leave=True, moved=moved)

    def _look_at(self, keys: set[SampleKey]) -> list[SampleProgress]:
        seen = [each.progress(None) for each in self._asking.open_turns(keys)]
        return seen + self._exported(keys, leave=False, moved=None)

    def _exported(self, keys: set[SampleKey], *, leave: bool, moved: KvBySample | None) -> list[SampleProgress]:
        exported: list[SampleProgress] = []
        for lane in self._lanes:
            wanted = [name for name, conversation in lane.decoding.items() if conversation.key in keys]
            for request in lane.engine.export(wanted, leave=leave, with_kv=moved is not None) if wanted else ():
                conversation = lane.decoding.pop(request.sequence_id) if leave else lane.decoding[request.sequence_id]
                partial = request.progress
                exported.append(conversation.progress(partial, lane.named))
                if moved is not None and partial is not None and partial.kv is not None:
                    moved[conversation.key.sample] = MovedKv.of(partial.kv)
        return exported

    def _hand_in(self) -> list[Message]:
        self._begin_queued()
        ended, self._ended = self._ended, []
        return [TrajectoriesEnded(trajectories=tuple(ended))] if ended else []

    @property
    def _resting(self) -> Doing:
        return "environment" if self._asking.num_open else "idle"


def _of_sample(prompt: Prompt, key: SampleKey) -> Prompt:
    """The environment may treat the samples of a group differently: waits are drawn for each."""
    return replace(prompt, facts={**prompt.facts, "sample": key.sample})


def _no_prompt(key: SampleKey) -> Prompt:
    return Prompt(split=key.group.split, ordinal=key.group.ordinal, text="", facts={})


def _keys(groups: Iterable[HeldGroup]) -> set[SampleKey]:
    return {SampleKey(group=group.key, sample=sample) for group in groups for sample in group.samples}


def _opened(moved: MovedKv | None) -> KvPages | None:
    return None if moved is None else moved.opened()
