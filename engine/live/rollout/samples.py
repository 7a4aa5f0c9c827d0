"""The samples of one replica, from grant to end: they wait for a place and a prompt, decode, and take turns with the
environment.

    granted ──▶ queued for a place ──▶ prompt requested ──▶ decoding ⇄ with the environment ──▶ ended
                                        handed over ──▶ arriving ──┘ (with its pages, or once they fail)

    Between decoding and environment, and after the prompt, a sample waits for its text (`text_work.py`).

Invariants:
- a prompt is rebuilt from its ordinal and a sample's seed from its key, so any replica makes the same request;
- every started sample returns exactly one trajectory, judged or with the reason why not, unless it was taken out:
  then this replica drops it at once;
- a conversation without room for another turn is truncated: its environment judges the turns so far, without the
  observation that did not fit;
- at most `max_batch` samples are open; further granted samples are queued;
- no sample waits for its text while samples are taken out or reported.
"""

# Over budget: a sample's way from grant to end is one state machine.

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from engine.environments.port import Observation, Prompt, Verdict
from engine.inference.port import KvPages, KvRoom, SequenceOutput
from engine.inference.requests import TooLong
from engine.live.environment.turns import Answer, TurnResult
from engine.live.rollout.conversation import Conversation, sampling_of, text_failure
from engine.live.rollout.open_turns import OpenTurns
from engine.live.rollout.places import Arriving, Leaving, Queued
from engine.live.rollout.progress_codec import full_progress, pack_progress, unpack_progress
from engine.live.rollout.text_work import TextWork
from engine.live.rollout.weight_slots import WeightSlot, WeightSlots
from engine.live.rollout.wording import DecodedTurn, Rendered, Wording
from engine.pipeline.records import AcknowledgedProgress, Failure, GroupTask, SampleKey, SampleProgress, Trajectory
from engine.policy.lineage import WeightsId
from engine.spec.job import JobSpec


class Samples:
    def __init__(
        self, *, spec: JobSpec, slots: WeightSlots, wording: Wording, text_work: TextWork, open_turns: OpenTurns
    ) -> None:
        self._spec, self._slots, self._wording, self._open_turns = spec, slots, wording, open_turns
        self._text_work = text_work
        self._queued: deque[Queued] = deque()
        self._unprompted: dict[SampleKey, WeightsId] = {}
        """Samples without a prompt yet → the weights that they will begin on."""
        self._num_opening = 0
        """Those of them that wait for the text of their prompt."""
        self._in_text: dict[SampleKey, Conversation] = {}
        """Samples that wait for the text of a turn or of an observation."""
        self._arriving: dict[SampleKey, Arriving] = {}
        self._ended: list[Trajectory] = []

    @property
    def num_queued(self) -> int:
        return len(self._queued) + len(self._arriving)

    @property
    def are_arriving(self) -> bool:
        return bool(self._arriving)

    @property
    def num_in_text(self) -> int:
        return self._num_opening + len(self._in_text)

    @property
    def have_ended(self) -> bool:
        """True if ended trajectories were not handed in yet."""
        return bool(self._ended)

    # ── start and resume ──────────────────────────────────────────────────────────────────────────────────────────

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
        """Resumes samples from their progress, made here or on another replica. `pages`: by sample, where present."""
        fresh: list[SampleKey] = []
        awaiting: list[Conversation] = []
        for each in progress:
            state = unpack_progress(each)
            if state is None:  # no prompt yet
                fresh.append(each.key)
                self._unprompted[each.key] = weights
            elif state.awaits_answer:
                awaiting.append(replace(state, weights=weights))
            else:
                self._submit(replace(state, weights=weights), pages.get(each.key.sample))
        self._open_turns.prompts(fresh)
        self._open_turns.turns(awaiting)

    def await_pages(self, progress: Iterable[SampleProgress], weights: WeightsId, offer: bytes) -> None:
        for each in progress:
            self._arriving[each.key] = Arriving(offer=offer, progress=each, weights=weights)

    def on_pages(self, offer: bytes, sample: int, pages: KvPages) -> None:
        self._arrive(offer, {sample}, {sample: pages})

    def on_pages_ended(self, offer: bytes) -> None:
        """Samples whose pages have not arrived recompute them."""
        self._arrive(offer, {key.sample for key in self._arriving}, {})

    def _arrive(self, offer: bytes, samples: set[int], pages: Mapping[int, KvPages]) -> None:
        keys = {key for key, each in self._arriving.items() if each.offer == offer and key.sample in samples}
        for arrived in [self._arriving.pop(key) for key in sorted(keys, key=lambda key: key.sample)]:
            self.resume([arrived.progress], arrived.weights, pages)

    def carry_on(self, before: WeightsId, weights: WeightsId) -> None:
        """Moves every sample on the weights `before` to `weights`, which now occupy their slot."""

        def after(own: WeightsId) -> WeightsId:
            return weights if own == before else own

        self._queued = deque(replace(each, weights=after(each.weights)) for each in self._queued)
        self._unprompted = {key: after(own) for key, own in self._unprompted.items()}
        self._arriving = {key: replace(each, weights=after(each.weights)) for key, each in self._arriving.items()}
        decoding = [each for slot in self._slots for each in slot.decoding.values()]
        for conversation in (*decoding, *self._in_text.values(), *self._open_turns.conversations()):
            conversation.weights = after(conversation.weights)

    def decode(self) -> None:
        """Runs one step of every engine; sends ended turns to the environment."""
        for slot, output in self._slots.step():
            conversation = slot.decoding.pop(output.sequence_id)
            named = {version: slot.named(version) for version in set(output.versions)}
            self._in_text[conversation.key] = conversation
            self._text_work.begin(
                partial(self._wording.decode, output.token_ids),
                partial(self._on_decoded, conversation, output, named),
            )
        self._text_work.finish()

    def _on_decoded(
        self,
        conversation: Conversation,
        output: SequenceOutput,
        named: Mapping[int, WeightsId],
        decoded: DecodedTurn | Exception,
    ) -> None:
        del self._in_text[conversation.key]
        if isinstance(decoded, Exception):
            self._ended.append(conversation.failed(text_failure(decoded, conversation.prompt)))
            return
        conversation.add_turn(output, decoded, named.__getitem__)
        self._open_turns.turns([conversation])

    def finish_texts(self) -> None:
        self._text_work.finish()

    def on_answers(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            keys = self._open_turns.awaited_prompt(answer)
            if keys:
                self._begin(keys, answer.result)
            conversation = self._open_turns.awaited_turn(answer)
            if conversation is not None:
                self._handle_answer(conversation, answer)

    def _fill(self) -> None:
        """Starts queued samples on the free places."""
        if not self._queued:
            return
        num_open = self._slots.num_decoding + self._open_turns.num_samples + self.num_in_text + len(self._arriving)
        room = self._spec.rollout.max_batch - num_open
        begun: dict[WeightsId, list[SampleProgress]] = {}
        for _ in range(min(room, len(self._queued))):
            queued = self._queued.popleft()
            begun.setdefault(queued.weights, []).append(queued.progress)
        for weights, progress in begun.items():
            self.resume(progress, weights, {})

    def _begin(self, keys: set[SampleKey], answer: TurnResult) -> None:
        """Begins samples of one group, which share their prompt."""
        if isinstance(answer, Prompt):
            self._num_opening += len(keys)
            opened = partial(self._on_opened, keys, answer)
            self._text_work.begin(partial(self._wording.render_prompt, answer), opened)
        else:
            failure = replace(answer, reason=f"no prompt: {answer.reason}") if isinstance(answer, Failure) else None
            self._open(keys, answer, Rendered(ids=(), text=""), failure)

    def _on_opened(self, keys: set[SampleKey], prompt: Prompt, opening: Rendered | Exception) -> None:
        self._num_opening -= len(keys)
        if isinstance(opening, Exception):
            self._open(keys, prompt, Rendered(ids=(), text=""), text_failure(opening, prompt))
        else:
            self._open(keys, prompt, opening, None)

    def _open(self, keys: set[SampleKey], answer: TurnResult, opening: Rendered, failure: Failure | None) -> None:
        for key in keys:
            conversation = Conversation(
                key=key,
                prompt=_add_sample(answer, key) if isinstance(answer, Prompt) else _no_prompt(key),
                prompt_ids=opening.ids,
                sampling=sampling_of(key, self._spec),
                weights=self._unprompted.pop(key),
                prompt_text=opening.text,
                segment_text=opening.text,
            )
            if failure is not None:
                self._ended.append(conversation.failed(failure))
            else:
                self._submit(conversation)

    def _handle_answer(self, conversation: Conversation, answer: Answer) -> None:
        conversation.note_answer(answer)
        match answer.result:
            case Verdict():
                self._ended.append(conversation.judged(answer.result))
            case Observation() if conversation.may_go_on:
                self._next_turn(conversation, answer.result, answer.seconds)
            case Observation():
                self._truncate(conversation)
            case Failure():
                self._ended.append(conversation.failed(answer.result, seconds=answer.seconds))

    def _next_turn(self, conversation: Conversation, observation: Observation, seconds: float) -> None:
        observed = [*conversation.observed, observation]
        self._in_text[conversation.key] = conversation
        self._text_work.begin(
            partial(
                self._wording.render_observation,
                conversation.prompt,
                conversation.segment_text,
                conversation.turns,
                observed,
            ),
            partial(self._on_rendered, conversation, observation, seconds),
        )

    def _on_rendered(
        self, conversation: Conversation, observation: Observation, seconds: float, rendered: Rendered | Exception
    ) -> None:
        del self._in_text[conversation.key]
        if isinstance(rendered, Exception):
            self._ended.append(conversation.failed(text_failure(rendered, conversation.prompt, observation.text)))
            return
        before = conversation.copied()
        conversation.observed.append(observation)
        conversation.observe(rendered, seconds=seconds)
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
            else:  # only this prompt is too long: others fit the model
                self._ended.append(conversation.failed(text_failure(error, conversation.prompt)))
            return
        except ValueError as error:
            if pages is not None:  # perhaps torn pages: retry without them
                self._submit(conversation)
                return
            self._ended.append(conversation.failed(text_failure(error, conversation.prompt)))
            return
        slot.decoding[request.sequence_id] = conversation

    # ── leave ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def take_out(self, keys: set[SampleKey]) -> list[SampleProgress]:
        """Removes these samples and returns their progress."""
        self._text_work.settle()
        left = self._remove_not_decoding(keys)
        for slot, names in self._decoding(keys):
            for request in slot.engine.export(names, leave=True, with_kv=False):
                conversation = slot.decoding.pop(request.sequence_id)
                left.append(full_progress(conversation, request.progress, slot.named))
        self._fill()
        return left

    def leaving(self, keys: set[SampleKey]) -> Leaving:
        """Snapshots the progress of these samples, which is fast; `leave` then removes those that decode."""
        self._text_work.settle()
        progress, decoding = self._remove_not_decoding(keys), []
        for slot, names in self._decoding(keys):
            for request in slot.engine.export(names, leave=False, with_kv=False):
                conversation = slot.decoding[request.sequence_id]
                progress.append(full_progress(conversation, request.progress, slot.named))
                decoding.append((slot, request.sequence_id, conversation.key.sample))
        return Leaving(progress=progress, decoding=decoding)

    def leave(self, leaving: Leaving, room: Callable[[int], KvRoom]) -> None:
        """Removes these samples. `room`: memory for the pages of each sample, one after the other."""
        for slot, name, sample in leaving.decoding:
            slot.engine.export([name], leave=True, with_kv=True, room=room(sample))
            del slot.decoding[name]
        self._fill()

    def _remove_not_decoding(self, keys: set[SampleKey]) -> list[SampleProgress]:
        """Removes the samples that wait for a place, pages, a prompt or an answer; returns their progress."""
        left = [queued.progress for queued in self._queued if queued.progress.key in keys]
        self._queued = deque(queued for queued in self._queued if queued.progress.key not in keys)
        left += [self._arriving.pop(key).progress for key in list(self._arriving) if key in keys]
        unprompted = self._open_turns.forget_prompts(keys)
        left += [SampleProgress(key=key, num_tokens=0, runs=()) for key in unprompted]
        for key in unprompted:
            del self._unprompted[key]
        named = self._slots.newest.named  # unused: there is no partial turn
        return left + [full_progress(each, None, named) for each in self._open_turns.forget_turns(keys)]

    def _decoding(self, keys: set[SampleKey]) -> Iterator[tuple[WeightSlot, list[str]]]:
        """The sequences of these samples, by the slot that decodes them."""
        for slot in self._slots:
            names = [name for name, conversation in slot.decoding.items() if conversation.key in keys]
            if names:
                yield slot, names

    def look_at(self, acknowledged: Iterable[AcknowledgedProgress]) -> list[SampleProgress]:
        """Returns the new progress of samples that have their prompt."""
        self._text_work.settle()
        by_key = {each.key: each for each in acknowledged}
        progress: list[SampleProgress] = []
        for each in self._open_turns.open_turns(set(by_key)):
            each.acknowledged = by_key[each.key]
            progress.append(pack_progress(each, None, self._slots.newest.named, acknowledged=each.acknowledged))
        for slot, names in self._decoding(set(by_key)):
            for request in slot.engine.export(names, leave=False, with_kv=False):
                conversation = slot.decoding[request.sequence_id]
                conversation.acknowledged = by_key[conversation.key]
                progress.append(
                    pack_progress(conversation, request.progress, slot.named, acknowledged=conversation.acknowledged)
                )
        return progress

    def hand_in(self) -> tuple[Trajectory, ...]:
        """Returns ended trajectories; queued samples take their places."""
        self._fill()
        ended, self._ended = self._ended, []
        return tuple(ended)


def _add_sample(prompt: Prompt, key: SampleKey) -> Prompt:
    """Adds the sample's number: the environment may treat samples of a group differently, and draws waits for each."""
    return replace(prompt, facts={**prompt.facts, "sample": key.sample})


def _no_prompt(key: SampleKey) -> Prompt:
    return Prompt(split=key.group.split, ordinal=key.group.ordinal, text="", facts={})
