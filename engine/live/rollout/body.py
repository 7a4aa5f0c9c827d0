"""A replica's body: runs its samples, installs weights in place, and hands unfinished samples to another replica.

Invariants:
- bytes are verified against their manifest before they replace weights; an engine that then disagrees with the
  trainer's probe raises;
- samples that were handed over resume from their tokens, whether or not their keys and values follow.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from engine.inference.port import KvPages, SequenceRequest
from engine.live.body.loop import BodyCall
from engine.live.environment.turns import Answer, Ask
from engine.live.kv.fetches import Fetches
from engine.live.kv.offers import Offered, Offers
from engine.live.process.links import Links
from engine.live.rollout.open_turns import OpenTurns
from engine.live.rollout.samples import Samples
from engine.live.rollout.self_report import SelfReport
from engine.live.rollout.text_work import InlineTexts, ThreadedTexts
from engine.live.rollout.weight_slots import WeightSlots
from engine.live.rollout.wording import Wording
from engine.live.weights.offered_bytes import map_version, unmap_in_background
from engine.pipeline.effects import (
    Effect,
    HandOverSequences,
    InstallWeights,
    ReportProgress,
    ResumeSequences,
    StartSequences,
    StopSequences,
)
from engine.pipeline.messages.addresses import Address, rollout_address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_driver import Doing, ReplicaObserved
from engine.pipeline.messages.to_rollout import (
    InstallRefused,
    ProgressReported,
    SequencesHandedOver,
    TrajectoriesEnded,
    WeightsInstalled,
)
from engine.pipeline.records import HeldGroup, SampleKey
from engine.pipeline.rollout.brain import RolloutBrain
from engine.process.progress import working
from engine.spec.job import JobSpec
from engine.weights.chunks import TornWeights, WeightsGone
from engine.weights.probe import compare


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """Where a body sends its messages."""

    post: Callable[[Address, Message], None]
    ask: Callable[[Sequence[Ask]], None]
    observe: Callable[[ReplicaObserved], None]
    on_loop: Callable[[BodyCall], None]
    """Called by other threads than the loop's."""


class RolloutBody:
    tick_s = 0.05

    def __init__(
        self,
        *,
        spec: JobSpec,
        brain: RolloutBrain,
        replica: int,
        incarnation: int,
        slots: WeightSlots,
        wording: Wording,
        wires: Wires,
        links: Links,
    ) -> None:
        self.brain = brain
        self._slots, self._post = slots, wires.post
        self._open_turns = OpenTurns(
            by=rollout_address(replica), ask=wires.ask, timeout_s=spec.environment.turn_timeout_s
        )
        text_work = ThreadedTexts(wires.on_loop) if wording.is_bounded else InlineTexts()
        self._samples = Samples(
            spec=spec, slots=slots, wording=wording, text_work=text_work, open_turns=self._open_turns
        )
        self._offers = Offers(owner=f"{links.run}-replica{replica}", links=links)
        self._fetches = Fetches(token=links.token, on_loop=wires.on_loop)
        self._self_report = SelfReport(replica=replica, incarnation=incarnation, observe=wires.observe)

    @property
    def is_busy(self) -> bool:
        return bool(self._slots.num_decoding or self._samples.have_ended)

    @property
    def is_awaiting_pages(self) -> bool:
        return self._samples.are_arriving

    def start(self) -> list[Message]:
        return []

    def perform(self, effect: Effect) -> list[Message]:
        match effect:
            case StartSequences():
                self._samples.start(effect.tasks)
            case InstallWeights():
                return [self._install(effect)]
            case StopSequences():
                stopped = self._samples.take_out(_keys(effect.groups))
                return [ProgressReported(progress=tuple(stopped), is_stopped=True)] if effect.reports else []
            case HandOverSequences():
                self._hand_on(effect)
            case ResumeSequences():
                self._take_over(effect.handed)
            case ReportProgress():
                return [ProgressReported(progress=tuple(self._samples.look_at(effect.acknowledged)))]
            case _:
                raise TypeError(f"a rollout's body does not support {type(effect).__name__}")
        self._send_asks()
        return []

    def work(self) -> list[Message]:
        self._self_report.turn_to("decode" if self._slots.num_decoding else self._idle_state)
        with self._self_report.decoding(lambda: self._slots.num_steps):
            self._samples.decode()
            return self._hand_in()

    def measure(self, now: float) -> list[Message]:
        if not self._slots.num_decoding:
            self._self_report.turn_to(self._idle_state)
        self._send_asks()
        self._offers.expire(now)
        if not self._self_report.is_due(now):
            return []
        load = self._self_report.measure(
            now,
            self._slots.view(),
            num_queued=self._samples.num_queued,
            num_with_environment=self._open_turns.num_open + self._samples.num_in_text,
        )
        self._open_turns.again(lost_only=True)
        return [replace(load, kv_by_weights=self._slots.kv_by_weights())]

    def on_answers(self, answers: Sequence[Answer]) -> list[Message]:
        self._samples.on_answers(answers)
        return self._hand_in()

    def on_texts(self) -> list[Message]:
        self._samples.finish_texts()
        return self._hand_in()

    def ask_again(self) -> list[Message]:
        self._open_turns.again(lost_only=False)
        self._send_asks()
        return []

    def _install(self, effect: InstallWeights) -> Message:
        self._self_report.turn_to("weights")
        manifest = effect.manifest
        try:
            weights = map_version(manifest, effect.payload)
        except TornWeights as error:
            is_gone = isinstance(error, WeightsGone)
            return InstallRefused(weights=manifest.weights, reason=str(error), is_gone=is_gone)
        slot = self._slots.taking(manifest.weights, effect.keeps, over=effect.over)
        interrupted: list[SequenceRequest] = []
        if effect.in_flight == "reprefill":  # export and resubmit: their keys and values belong to the old weights
            interrupted = slot.engine.export(list(slot.decoding), leave=True, with_kv=False)
        with self._self_report.installing(), working("install"):
            slot.install(weights, manifest.weights)
        unmap_in_background(weights)
        if manifest.probe is not None:
            compare(manifest, slot.engine.probe(manifest.probe.token_ids))
        self._slots.newest = slot
        if effect.over is not None:
            self._samples.carry_on(effect.over, manifest.weights)
        if interrupted:
            slot.engine.submit(interrupted)
        return WeightsInstalled(weights=manifest.weights)

    def _hand_on(self, effect: HandOverSequences) -> None:
        self._self_report.turn_to("move")
        leaving = self._samples.leaving(_keys([effect.group]))
        offer = self._offers.open(leaving.samples)
        handed = SequencesHandedOver(
            incarnation=effect.host_incarnation,
            key=effect.group.key,
            lease=effect.group.lease,
            weights=effect.weights,
            progress=tuple(leaving.progress),
            payload=offer.offered,
        )
        self._post(rollout_address(effect.host), handed)
        self._samples.leave(leaving, offer.room)
        offer.close()

    def _take_over(self, handed: SequencesHandedOver) -> None:
        offered = handed.payload
        arriving = offered.samples if isinstance(offered, Offered) else ()
        without_pages = [each for each in handed.progress if each.key.sample not in arriving]
        self._samples.resume(without_pages, handed.weights, {})
        if isinstance(offered, Offered):
            with_pages = [each for each in handed.progress if each.key.sample in arriving]
            self._samples.await_pages(with_pages, handed.weights, offered.name)
            self._fetches.fetch(offered)

    def on_pages(self, offer: bytes, sample: int, pages: KvPages) -> list[Message]:
        self._samples.on_pages(offer, sample, pages)
        return self._hand_in()

    def on_pages_ended(self, offer: bytes) -> list[Message]:
        self._samples.on_pages_ended(offer)
        return self._hand_in()

    def _hand_in(self) -> list[Message]:
        ended = self._samples.hand_in()
        self._send_asks()
        return [TrajectoriesEnded(trajectories=ended)] if ended else []

    def _send_asks(self) -> None:
        self._open_turns.send(at_once=not self._slots.num_decoding)

    @property
    def _idle_state(self) -> Doing:
        if self._open_turns.num_open or self._samples.num_in_text:
            return "environment"
        return "move" if self.is_awaiting_pages else "idle"


def _keys(groups: Iterable[HeldGroup]) -> set[SampleKey]:
    return {SampleKey(group=group.key, sample=sample) for group in groups for sample in group.samples}
