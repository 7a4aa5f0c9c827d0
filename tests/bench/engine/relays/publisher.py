"""A trainer without training: it publishes weights that change like a real trainer's, and measures its stall.

Weights are random bf16; an update adds ±learning rate to every weight of a float32 master copy, which is the most that
Adam moves them, and rounds to bf16 again. Gigabytes of weights repeat the same stretch, so that memory is left for the
measured versions.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import ray
from numpy.typing import NDArray

from engine.live.body.actor import BodyActor
from engine.live.body.loop import Body
from engine.live.process.links import Links
from engine.live.relay.actor import look_into
from engine.live.weights.handover import Handover
from engine.pipeline.effects import Effect, ForgetWeights, PublishWeights, RepublishWeights, Send
from engine.pipeline.messages.addresses import TRAINER
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_relay import WeightsOffered
from engine.pipeline.messages.to_trainer import MasterElected, VersionRefused, VersionStored
from engine.pipeline.plan import Plan
from engine.pipeline.trainer.offers import Offers
from engine.policy.lineage import WeightsId
from engine.spec.job import JobSpec
from engine.weights.chunks import CHUNK_BYTES
from engine.weights.port import TensorEntry, WeightManifest, WeightVersion

LEARNING_RATE: Final = 1e-6
# The spread of a trained transformer's weights, which decides how many of them a small update moves.
WEIGHT_STD: Final = 0.02
NUM_DRAWN: Final = 2**18
# Elements that are really there, which no cache holds.
STRETCH: Final = 2**26
# As many tensors as a model of a few layers has; a manifest of thousands travels no slower.
NUM_TENSORS: Final = 32


def bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even, as bits."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Weights:
    def __init__(self, num_bytes: int, *, seed: int = 0, learning_rate: float = LEARNING_RATE) -> None:
        self._chance = np.random.default_rng(seed)
        self._learning_rate = np.float32(learning_rate)
        each = num_bytes // 2 // NUM_TENSORS // 32 * 32  # tensors begin at multiples of 64 bytes
        drawn = self._chance.standard_normal(NUM_DRAWN, dtype=np.float32) * np.float32(WEIGHT_STD)
        self._num_elements = each * NUM_TENSORS
        self._master = np.resize(drawn, min(self._num_elements, STRETCH))  # the same again and again; updates differ
        self.bits = np.empty(self._master.size, dtype=np.uint16)
        self._round()
        self.tensors = tuple(
            TensorEntry(name=f"w{at}", dtype="bfloat16", shape=(each,), offset=at * each * 2, num_bytes=each * 2)
            for at in range(NUM_TENSORS)
        )

    def update(self) -> None:
        rate = self._learning_rate
        for part in self._parts():
            coins = np.frombuffer(self._chance.bytes(-(-len(self._master[part]) // 8)), dtype=np.uint8)
            is_up = np.unpackbits(coins, count=len(self._master[part])).view(np.bool_)
            self._master[part] += np.where(is_up, rate, -rate)
        self._round()

    @property
    def num_bytes(self) -> int:
        return self._num_elements * 2

    def copy_to(self, room: memoryview) -> None:
        stretch = self.bits.view(np.uint8).data
        for start in range(0, self.num_bytes, len(stretch) or 1):
            room[start : start + len(stretch)] = stretch[: self.num_bytes - start]

    def _round(self) -> None:
        for part in self._parts():
            self.bits[part] = bf16(self._master[part])

    def _parts(self) -> Iterator[slice]:
        """Small enough for the caches."""
        yield from (slice(start, start + NUM_DRAWN) for start in range(0, self._master.size, NUM_DRAWN))


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    stall_s: float
    """The pause of a real trainer."""
    everywhere_s: float
    """Until the trainer received word that every relay has the version, verified and visible."""


@dataclass(slots=True)
class PublisherBrain:
    offers: Offers
    stored: WeightsId
    stored_at: dict[WeightsId, float] = field(default_factory=dict)

    def handle(self, message: Message, now: float) -> list[Effect]:
        match message:
            case MasterElected():
                return self.offers.on_elected(message, now)
            case VersionStored():
                self.stored = max(self.stored, message.weights)
                self.stored_at.setdefault(message.weights, now)
                return self.offers.on_stored(message.weights, now)
            case VersionRefused():
                return self.offers.on_refused(message.weights, now)
            case Tick():
                return self.offers.on_tick(now)
            case _:
                raise TypeError(f"a publisher does not take {type(message).__name__}")


class PublisherBody:
    tick_s = 0.25
    is_busy = False

    def __init__(self, *, plan: Plan, handover: Handover, post: Any) -> None:
        self.brain = PublisherBrain(Offers(plan, epoch=0), WeightsId(0, -1))
        self._handover, self._post = handover, post
        self._manifests: dict[WeightsId, WeightManifest] = {}
        self.weights = Weights(0)
        self._began: dict[WeightsId, tuple[float, float]] = {}
        """When, and how long the stall was."""

    def start(self) -> list[Message]:
        return []

    def work(self) -> list[Message]:
        return []

    def measure(self, now: float) -> list[Message]:
        return []

    def resize(self, num_bytes: int) -> list[Message]:
        self.weights = Weights(num_bytes)
        return []

    def publish(self, version: int) -> list[Message]:
        self.weights.update()
        started = time.monotonic()
        for effect in self.brain.offers.publish(version, started):
            self.perform(effect)
        self._began[WeightsId(0, version)] = (started, time.monotonic() - started)
        return []

    def published(self, version: WeightsId) -> Published | None:
        """None: it is still on its way."""
        stored_at = self.brain.stored_at.get(version)
        if stored_at is None:
            return None
        started, stall_s = self._began[version]
        return Published(stall_s=stall_s, everywhere_s=stored_at - started)

    def perform(self, effect: Effect) -> list[Message]:
        match effect:
            case PublishWeights():
                self._handover.keep(self._snapshot(effect.weights))
                self._offer(effect)
            case RepublishWeights():
                self._offer(effect)
            case ForgetWeights():
                self._handover.forget(effect.weights)
            case Send():
                self._post(effect.to, effect.message)
            case _:
                raise TypeError(f"a publisher does not do {type(effect).__name__}")
        return []

    def _snapshot(self, weights: WeightsId) -> WeightVersion:
        num_bytes = self.weights.num_bytes
        room = self._handover.allocate(num_bytes)
        self.weights.copy_to(room)
        manifest = WeightManifest(
            weights=weights,
            num_bytes=num_bytes,
            chunk_bytes=CHUNK_BYTES,
            identity="",
            chunk_hashes=(),
            tensors=self.weights.tensors,
        )
        self._manifests[weights] = manifest
        return WeightVersion(manifest=manifest, buffer=room.toreadonly())

    def _offer(self, effect: PublishWeights | RepublishWeights) -> None:
        payload = self._handover.payload(effect.weights)
        manifest = self._manifests[effect.weights]
        self._post(effect.to, WeightsOffered(manifest=manifest, pinned=effect.pinned, payload=payload))


class PublisherActor(BodyActor):
    def __init__(self, *, spec: JobSpec, links: Links) -> None:
        self._spec, self._links = spec, links
        self._version = 0
        super().__init__(part=TRAINER)

    def build(self) -> Body:
        handover = Handover(owner=f"{self._links.run}-trainer", listen=self._links.address(), token=self._links.token)
        return PublisherBody(plan=Plan.from_spec(self._spec), handover=handover, post=self._send)

    @ray.method(concurrency_group="inbox")
    def resize(self, num_bytes: int) -> None:
        self._loop.call(lambda body: body.resize(num_bytes))

    @ray.method(concurrency_group="inbox")
    def publish(self) -> WeightsId:
        """The version that will be on its way in a moment: an update after the one before."""
        self._version += 1
        version = self._version
        self._loop.call(lambda body: body.publish(version))
        return WeightsId(0, version)

    @ray.method(concurrency_group="outbox")
    def stored(self) -> WeightsId:
        stored: WeightsId = look_into(self._loop, lambda body: body.brain.stored)
        return stored

    @ray.method(concurrency_group="outbox")
    def published(self, version: WeightsId) -> Published | None:
        published: Published | None = look_into(self._loop, lambda body: body.published(version))
        return published
