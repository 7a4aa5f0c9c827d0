"""Several relays and a trainer under a virtual clock, with a network and links that inject every kind of fault.

Invariants asserted here: visible versions are whole; one claim has one master; a live relay's newest version never goes
back; the trainer keeps every copy that it may have to offer again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from engine.pipeline.effects import Effect, ForgetWeights, PublishWeights, RepublishWeights, Send
from engine.pipeline.messages.addresses import TRAINER, Address, relay_address
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_relay import CoreAwaited, VersionComing, WeightsOffered
from engine.pipeline.messages.to_trainer import MasterElected, VersionRefused, VersionStored
from engine.pipeline.plan import Plan
from engine.pipeline.relay.brain import RelayBrain
from engine.pipeline.trainer.offers import Offers
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.policy.schedule import schedule_for
from engine.sim.bodies.relay import CarriedChunk, RelayBody
from engine.sim.chance import Chance
from engine.sim.faults import Faults
from engine.sim.kernel import Kernel
from engine.sim.oracle.pipeline import Oracle, demand
from engine.spec.job import ScheduleSpec
from engine.weights.port import WeightManifest

NUM_CHUNKS = 6
TICK_S = 0.25


def plan_for(num_relays: int) -> Plan:
    return Plan(
        schedule=schedule_for(ScheduleSpec(), weight_slots=1),
        steps=1_000_000,
        groups_per_step=1,
        group_size=2,
        checkpoint_every=1,
        evaluation_prompts=1,
        evaluate_every=7,
        max_batch=1,
        num_relays=num_relays,
    )


def manifest_of(version: WeightsId) -> WeightManifest:
    chunks = tuple(f"{version.epoch}.{version.version}/{index}" for index in range(NUM_CHUNKS))
    return WeightManifest(
        weights=version,
        num_bytes=NUM_CHUNKS,
        chunk_bytes=1,
        identity="+".join(chunks),
        chunk_hashes=chunks,
        tensors=(),
    )


@dataclass(slots=True)
class Relay:
    brain: RelayBrain
    body: RelayBody
    incarnation: int
    is_alive: bool = True
    is_frozen: bool = False
    starved_since: float | None = None
    waiting: list[Callable[[], None]] = field(default_factory=list)
    newest: WeightsId = NO_WEIGHTS


class RelayWorld:
    def __init__(
        self,
        *,
        seed: int,
        num_relays: int,
        faults: Faults | None = None,
        anchor_every: int = 20,
        chunk_s: float = 0.001,
    ) -> None:
        """`chunk_s`: transfer time of a chunk on a link."""
        self.faults = faults or Faults()
        self.kernel = Kernel()
        self._seed, self._num_relays, self._anchor_every, self._chunk_s = seed, num_relays, anchor_every, chunk_s
        self._network = Chance(seed, "network")
        self.cut: set[frozenset[Address]] = set()
        self.is_one_host = True
        """Bodies can see each other's processes."""
        self.relays: dict[int, Relay] = {}
        self.masters: dict[int, tuple[int, int]] = {}
        self.num_chunks_carried = 0
        self.stored: list[WeightsId] = []
        self.trainer_epoch, self.version = 0, 0
        self.offers = Offers(plan_for(num_relays), epoch=0)
        self.kept: dict[WeightsId, WeightManifest] = {}
        self.oracle = Oracle(plan_for(num_relays))
        for host in range(num_relays):
            self.start(host, 0)
        self._tick_trainer()

    # ── actions of tests ──────────────────────────────────────────────────────────────────────────────────────────

    def run_for(self, seconds: float) -> None:
        until = self.kernel.now + seconds
        while self.kernel.now < until:
            assert self.kernel.step()

    def run_until(self, holds: Callable[[], bool], *, within_s: float) -> float:
        start = self.kernel.now
        while not holds():
            assert self.kernel.now - start < within_s, f"not within {within_s} s"
            assert self.kernel.step()
        return self.kernel.now - start

    def publish(self) -> WeightsId:
        self.version += 1
        self._do_trainer(self.offers.publish(self.version, self.kernel.now))
        return WeightsId(self.trainer_epoch, self.version)

    def restart_trainer(self) -> None:
        """Restarts the trainer from a checkpoint two steps back."""
        self.trainer_epoch += 1
        self.version = max(0, self.version - 2)
        self.kept = {}
        self.offers = Offers(plan_for(self._num_relays), epoch=self.trainer_epoch)
        self._do_trainer(self.offers.publish(self.version, self.kernel.now))

    def start(self, host: int, incarnation: int) -> None:
        brain = RelayBrain(
            host=host,
            hosts=tuple(range(self._num_relays)),
            incarnation=incarnation,
            anchor_every=self._anchor_every,
            reach=f"{host}/{incarnation}",
            cut=lambda *size: 1,
        )
        relay = Relay(brain, self._body(host, incarnation), incarnation)
        self.relays[host] = relay
        self.kernel.after(self._network.uniform(0, TICK_S), partial(self._tick, host, relay))

    def kill(self, host: int) -> None:
        self.relays[host].is_alive = False

    def freeze(self, host: int) -> None:
        self.relays[host].is_frozen = True

    def thaw(self, host: int) -> None:
        relay = self.relays[host]
        relay.is_frozen, waiting, relay.waiting = False, relay.waiting, []
        for do in waiting:
            do()

    def starve(self, host: int) -> None:
        """Stops the relay's turns; its process waits for a core."""
        self.freeze(host)
        self.relays[host].starved_since = self.kernel.now

    def give_a_core(self, host: int) -> None:
        relay = self.relays[host]
        assert relay.starved_since is not None
        waited_s, relay.starved_since = self.kernel.now - relay.starved_since, None
        relay.waiting.insert(0, lambda: self._handle(host, relay, CoreAwaited(host=host, waited_s=waited_s)))
        self.thaw(host)

    def heal(self) -> None:
        self.faults = Faults()
        self.cut.clear()
        for host, relay in list(self.relays.items()):
            if not relay.is_alive:
                self.start(host, relay.incarnation + 1)
            elif relay.is_frozen:
                self.thaw(host)

    @property
    def live(self) -> list[Relay]:
        return [relay for relay in self.relays.values() if relay.is_alive and not relay.is_frozen]

    def everyone_has(self, version: WeightsId) -> bool:
        return all(relay.brain.newest == version for relay in self.live)

    @property
    def num_buried(self) -> int:
        return sum(relay.brain.num_buried for relay in self.relays.values())

    @property
    def leaders(self) -> list[int]:
        return [host for host, relay in self.relays.items() if relay.is_alive and relay.brain.leads]

    # ── relays ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _body(self, host: int, incarnation: int) -> RelayBody:
        def later(delay_s: float, message: Message) -> None:
            relay = self.relays[host]
            self.kernel.after(delay_s, lambda: self._handle(host, relay, message))

        def after(delay_s: float, deed: Callable[[], None]) -> None:
            relay = self.relays[host]
            self.kernel.after(delay_s, lambda: deed() if relay.is_alive else None)

        return RelayBody(
            chance=Chance(self._seed, f"relay/{host}/{incarnation}"),
            faults=self.faults,
            oracle=self.oracle,
            later=later,
            work=lambda what, usual_s, then: after(usual_s, then),
            post=lambda to, message: None,
            carry=lambda to, chunk: self._carry(host, to, chunk),
        )

    def _tick(self, host: int, relay: Relay) -> None:
        if relay.is_alive:
            if not relay.is_frozen:
                self._look_at_silent(host, relay)
                self._handle(host, relay, Tick())
            self.kernel.after(TICK_S, partial(self._tick, host, relay))

    def _look_at_silent(self, host: int, relay: Relay) -> None:
        self._handle(host, relay, CoreAwaited(host=host, waited_s=0.0))
        for silent in relay.brain.silent if self.is_one_host else ():
            if self.relays[silent].starved_since is not None:
                self._handle(host, relay, CoreAwaited(host=silent, waited_s=TICK_S))

    def _handle(self, host: int, relay: Relay, message: Message) -> None:
        if not relay.is_alive:
            return
        if relay.is_frozen:
            relay.waiting.append(lambda: self._handle(host, relay, message))
            return
        for effect in relay.brain.handle(message, self.kernel.now):
            if isinstance(effect, Send):
                self._check_master(host, relay, effect.message)
                self._post(relay_address(host), effect.to, effect.message)
            else:
                relay.body.perform(effect)
        self._check_visible(relay)

    def _check_visible(self, relay: Relay) -> None:
        newest = relay.brain.newest
        demand(newest >= relay.newest, f"went back from {relay.newest} to {newest}")
        relay.newest = newest
        for version in relay.brain.visible:
            is_whole = relay.body.chunks_of(version) == manifest_of(version).chunk_hashes
            demand(is_whole, f"version {version} is visible, torn")

    def _check_master(self, host: int, relay: Relay, message: Message) -> None:
        if isinstance(message, VersionComing) and relay.brain.leads:
            known = self.masters.setdefault(message.claim, (host, relay.incarnation))
            demand(known == (host, relay.incarnation), f"claim {message.claim} has two masters")

    # ── network ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _post(self, sender: Address, to: Address, message: Message) -> None:
        if frozenset((sender, to)) in self.cut or (to != TRAINER and to.kind != "relay"):
            return
        copies = 2 if self._network.happens(self.faults.duplicate) else 1
        for _ in range(copies):
            if not self._network.happens(self.faults.drop):
                self.kernel.after(self._network.uniform(0, self.faults.delay_s), partial(self._deliver, to, message))

    def _deliver(self, to: Address, message: Message) -> None:
        if to == TRAINER:
            self._trainer_hears(message)
            return
        self._handle(to.number, self.relays[to.number], message)

    def _carry(self, sender: int, to: int, chunk: CarriedChunk) -> None:
        if frozenset((relay_address(sender), relay_address(to))) in self.cut or self._network.happens(self.faults.drop):
            return
        relay = self.relays[to]
        self.num_chunks_carried += 1

        def arrive() -> None:
            if relay.is_frozen:
                relay.waiting.append(arrive)
            elif relay.is_alive:
                relay.body.on_carried(chunk)

        # One link keeps its order, which is all that matters of it here.
        self.kernel.after(self._chunk_s * (1 + chunk.index), arrive)

    # ── the trainer ───────────────────────────────────────────────────────────────────────────────────────────────

    def _tick_trainer(self) -> None:
        self._do_trainer(self.offers.on_tick(self.kernel.now))
        self.kernel.after(0.5, self._tick_trainer)

    def _trainer_hears(self, message: Message) -> None:
        now = self.kernel.now
        match message:
            case MasterElected():
                self._do_trainer(self.offers.on_elected(message, now))
            case VersionStored():
                self.stored.append(message.weights)
                self._do_trainer(self.offers.on_stored(message.weights, now))
            case VersionRefused():
                self._do_trainer(self.offers.on_refused(message.weights, now))

    def _do_trainer(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case PublishWeights() | RepublishWeights():
                    if isinstance(effect, PublishWeights):
                        self.kept[effect.weights] = manifest_of(effect.weights)
                    manifest = self.kept[effect.weights]
                    payload = manifest.chunk_hashes
                    offer = WeightsOffered(manifest=manifest.cut, pinned=effect.pinned, payload=payload)
                    self._post(TRAINER, effect.to, offer)
                case ForgetWeights():
                    self.kept.pop(effect.weights, None)
                case Send():
                    self._post(TRAINER, effect.to, effect.message)
