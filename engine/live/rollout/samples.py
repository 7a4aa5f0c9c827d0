"""The samples of one replica, from grant to end: they wait for a place, for their prompt, decode, and take turns with
the environment.

    granted ──▶ waits for a place ──▶ prompt asked for ──▶ decoding ⇄ with the environment ──▶ ended
                                        handed over ──▶ arriving ──┘ (with its pages, or when they do not come)

Invariants:
- a prompt is rebuilt from its ordinal and a sample's seed from its key, so any replica makes the same request of it;
- every sample started comes back as exactly one trajectory, judged or with the reason why not, unless it was taken
  out: then it is gone from here at once;
- a conversation without room for another turn is truncated: its environment judges what was said, without the
  observation that did not fit;
- at most `max_batch` samples are open; those granted beyond that wait their turn.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from engine.environments.port import Observation, Prompt, Verdict
from engine.inference.port import KvPages, KvRoom
from engine.inference.requests import TooLong
from engine.live.environment.turns import Answer, Said
from engine.live.rollout.conversation import Conversation, of_the_words, sampling_of
from engine.live.rollout.open_turns import OpenTurns
from engine.live.rollout.places import Arriving, Leaving, Queued
from engine.live.rollout.telling import retold, told, told_whole
from engine.live.rollout.weight_slots import WeightSlot, WeightSlots
from engine.live.rollout.wording import Worded, Wording
from engine.pipeline.records import Failure, GroupTask, HeardUpTo, SampleKey, SampleProgress, Trajectory
from engine.policy.lineage import WeightsId
from engine.spec.job import JobSpec


class Samples:
    def __init__(self, *, spec: JobSpec, slots: WeightSlots, wording: Wording, open_turns: OpenTurns) -> None:
        self._spec, self._slots, self._wording, self._open_turns = spec, slots, wording, open_turns
        self._queued: deque[Queued] = deque()
        self._unprompted: dict[SampleKey, WeightsId] = {}
        """On which weights samples begin whose prompts are not here yet."""
        self._arriving: dict[SampleKey, Arriving] = {}
        self._ended: list[Trajectory] = []

    @property
    def num_queued(self) -> int:
        return len(self._queued) + len(self._arriving)

    @property
    def are_arriving(self) -> bool:
        return bool(self._arriving)

    @property
    def have_ended(self) -> bool:
        """Some have, and were not handed in yet."""
        return bool(self._ended)

    # ── they begin and go on ──────────────────────────────────────────────────────────────────────────────────────

    def start(self, tasks: Iterable[GroupTask]) -> None:
        for task in tasks:
            weights = task.exact or self._slots.newest.weights
            begun = {progress.key.sample: progress for progress in task.progress}
            for at in task.samples:
                key = SampleKey(group=task.key, sample=at)
                known = begun.get(at, SampleProgress(key=key, num_tokens=0, runs=()))
                self._queued.append(Queued(progress=known, weights=weights))
        self._fill()

    def resume(self, progress: Iterable[SampleProgress], weights: WeightsId, pages: Mapping[int, KvPages]) -> None:
        """From where they were left, here or by another replica. `pages`: by sample, of those that have some."""
        fresh: list[SampleKey] = []
        asked: list[Conversation] = []
        for each in progress:
            state = retold(each)
            if state is None:  # it has not even its prompt
                fresh.append(each.key)
                self._unprompted[each.key] = weights
            elif state.awaits_answer:
                asked.append(replace(state, weights=weights))
            else:
                self._submit(replace(state, weights=weights), pages.get(each.key.sample))
        self._open_turns.prompts(fresh)
        self._open_turns.turns(asked)

    def await_pages(self, progress: Iterable[SampleProgress], weights: WeightsId, offer: bytes) -> None:
        for each in progress:
            self._arriving[each.key] = Arriving(offer=offer, progress=each, weights=weights)

    def on_pages(self, offer: bytes, sample: int, pages: KvPages) -> None:
        self._arrive(offer, {sample}, {sample: pages})

    def on_pages_ended(self, offer: bytes) -> None:
        """Whatever has not arrived is computed again."""
        self._arrive(offer, {key.sample for key in self._arriving}, {})

    def _arrive(self, offer: bytes, samples: set[int], pages: Mapping[int, KvPages]) -> None:
        its = {key for key, each in self._arriving.items() if each.offer == offer and key.sample in samples}
        for arrived in [self._arriving.pop(key) for key in sorted(its, key=lambda key: key.sample)]:
            self.resume([arrived.progress], arrived.weights, pages)

    def carry_on(self, before: WeightsId, weights: WeightsId) -> None:
        """All that is on the former goes on on these, which lie in their slot."""

        def after(own: WeightsId) -> WeightsId:
            return weights if own == before else own

        self._queued = deque(replace(each, weights=after(each.weights)) for each in self._queued)
        self._unprompted = {key: after(own) for key, own in self._unprompted.items()}
        self._arriving = {key: replace(each, weights=after(each.weights)) for key, each in self._arriving.items()}
        decoding = [each for slot in self._slots for each in slot.decoding.values()]
        for conversation in (*decoding, *self._open_turns.conversations()):
            conversation.weights = after(conversation.weights)

    def decode(self) -> None:
        """One step of every engine; whose turn has ended is asked about."""
        said: list[Conversation] = []
        for slot, output in self._slots.step():
            conversation = slot.decoding.pop(output.sequence_id)
            conversation.add_turn(output, self._wording.heard(output.token_ids), slot.named)
            said.append(conversation)
        self._open_turns.turns(said)

    def on_answers(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            keys = self._open_turns.awaited_prompt(answer)
            if keys:
                self._begin(keys, answer.said)
            conversation = self._open_turns.awaited_turn(answer)
            if conversation is not None:
                self._go_on(conversation, answer)

    def _fill(self) -> None:
        """The places that are free, from the queue."""
        if not self._queued:
            return
        num_open = self._slots.num_decoding + self._open_turns.num_samples + len(self._arriving)
        room = self._spec.rollout.max_batch - num_open
        begun: dict[WeightsId, list[SampleProgress]] = {}
        for _ in range(min(room, len(self._queued))):
            queued = self._queued.popleft()
            begun.setdefault(queued.weights, []).append(queued.progress)
        for weights, progress in begun.items():
            self.resume(progress, weights, {})

    def _begin(self, keys: Iterable[SampleKey], said: Said) -> None:
        """Samples of one group, which have their prompt in common."""
        failure = replace(said, reason=f"no prompt: {said.reason}") if isinstance(said, Failure) else None
        opening = Worded(ids=(), text="")
        if isinstance(said, Prompt):
            try:
                opening = self._wording.opened(said)
            except Exception as error:  # noqa: BLE001 - of this prompt, whatever template and tokenizer raise of it
                failure = of_the_words(error, said)
        for key in keys:
            conversation = Conversation(
                key=key,
                prompt=_of_sample(said, key) if isinstance(said, Prompt) else _no_prompt(key),
                prompt_ids=opening.ids,
                sampling=sampling_of(key, self._spec),
                weights=self._unprompted.pop(key),
                asked=opening.text,
                said=opening.text,
            )
            if failure is not None:
                self._ended.append(conversation.failed(failure))
            else:
                self._submit(conversation)

    def _go_on(self, conversation: Conversation, answer: Answer) -> None:
        conversation.note_answer(answer)
        match answer.said:
            case Verdict():
                self._ended.append(conversation.judged(answer.said))
            case Observation() if conversation.may_go_on:
                self._next_turn(conversation, answer.said, answer.seconds)
            case Observation():
                self._truncate(conversation)
            case Failure():
                self._ended.append(conversation.failed(answer.said, seconds=answer.seconds))

    def _next_turn(self, conversation: Conversation, observation: Observation, seconds: float) -> None:
        before = conversation.copied()
        conversation.observed.append(observation)
        try:
            worded = self._wording.went_on(
                conversation.prompt, conversation.said, conversation.turns, conversation.observed
            )
        except Exception as error:  # noqa: BLE001 - of this observation, as above
            self._ended.append(conversation.failed(of_the_words(error, conversation.prompt, observation.text)))
            return
        conversation.observe(worded, seconds=seconds)
        self._submit(conversation, before=before)

    def _truncate(self, conversation: Conversation) -> None:
        conversation.was_cut = conversation.is_truncated = True
        self._open_turns.turns([conversation])

    def _submit(
        self, conversation: Conversation, pages: KvPages | None = None, *, before: Conversation | None = None
    ) -> None:
        """`before`: the conversation without its last observation."""
        slot = self._slots.of(conversation.weights)
        request = conversation.request(pages)
        try:
            slot.engine.submit([request])
        except TooLong as error:
            if conversation.turns:
                self._truncate(before or conversation)
            else:  # of this prompt alone: other prompts fit the model
                self._ended.append(conversation.failed(of_the_words(error, conversation.prompt)))
            return
        except ValueError as error:
            if pages is not None:  # or these are torn: then it goes on without them
                self._submit(conversation)
                return
            self._ended.append(conversation.failed(of_the_words(error, conversation.prompt)))
            return
        slot.decoding[request.sequence_id] = conversation

    # ── they leave ────────────────────────────────────────────────────────────────────────────────────────────────

    def take_out(self, keys: set[SampleKey]) -> list[SampleProgress]:
        """They are gone from here."""
        left = self._not_decoding(keys)
        for slot, names in self._decoding(keys):
            for request in slot.engine.export(names, leave=True, with_kv=False):
                conversation = slot.decoding.pop(request.sequence_id)
                left.append(told_whole(conversation, request.progress, slot.named))
        self._fill()
        return left

    def leaving(self, keys: set[SampleKey]) -> Leaving:
        """What they said, which takes no time; next they `leave`."""
        progress, decoding = self._not_decoding(keys), []
        for slot, names in self._decoding(keys):
            for request in slot.engine.export(names, leave=False, with_kv=False):
                conversation = slot.decoding[request.sequence_id]
                progress.append(told_whole(conversation, request.progress, slot.named))
                decoding.append((slot, request.sequence_id, conversation.key.sample))
        return Leaving(progress=progress, decoding=decoding)

    def leave(self, leaving: Leaving, room: Callable[[int], KvRoom]) -> None:
        """They are gone from here. `room`: for the pages of each sample, one after the other."""
        for slot, name, sample in leaving.decoding:
            slot.engine.export([name], leave=True, with_kv=True, room=room(sample))
            del slot.decoding[name]
        self._fill()

    def _not_decoding(self, keys: set[SampleKey]) -> list[SampleProgress]:
        """Of those that wait for something, which they do no longer."""
        left = [queued.progress for queued in self._queued if queued.progress.key in keys]
        self._queued = deque(queued for queued in self._queued if queued.progress.key not in keys)
        left += [self._arriving.pop(key).progress for key in list(self._arriving) if key in keys]
        unprompted = self._open_turns.forget_prompts(keys)
        left += [SampleProgress(key=key, num_tokens=0, runs=()) for key in unprompted]
        for key in unprompted:
            del self._unprompted[key]
        named = self._slots.newest.named  # nobody's, between turns
        return left + [told_whole(each, None, named) for each in self._open_turns.forget_turns(keys)]

    def _decoding(self, keys: set[SampleKey]) -> Iterator[tuple[WeightSlot, list[str]]]:
        """Their sequences, by the slot that decodes them."""
        for slot in self._slots:
            names = [name for name, conversation in slot.decoding.items() if conversation.key in keys]
            if names:
                yield slot, names

    def look_at(self, heard: Iterable[HeardUpTo]) -> list[SampleProgress]:
        """What is new of those that have their prompt."""
        by_key = {each.key: each for each in heard}
        seen = [
            told(each, None, self._slots.newest.named, heard=by_key[each.key])
            for each in self._open_turns.open_turns(set(by_key))
        ]
        for slot, names in self._decoding(set(by_key)):
            for request in slot.engine.export(names, leave=False, with_kv=False):
                conversation = slot.decoding[request.sequence_id]
                seen.append(told(conversation, request.progress, slot.named, heard=by_key[conversation.key]))
        return seen

    def hand_in(self) -> tuple[Trajectory, ...]:
        """Those that have ended; others take their places."""
        self._fill()
        ended, self._ended = self._ended, []
        return tuple(ended)


def _of_sample(prompt: Prompt, key: SampleKey) -> Prompt:
    """The environment may treat the samples of a group differently: waits are drawn for each."""
    return replace(prompt, facts={**prompt.facts, "sample": key.sample})


def _no_prompt(key: SampleKey) -> Prompt:
    return Prompt(split=key.group.split, ordinal=key.group.ordinal, text="", facts={})
