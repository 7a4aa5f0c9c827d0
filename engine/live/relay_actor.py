"""A relay's actor: versions as byte arrays in the host's object store; every replica on the host maps them for nothing.

Invariants:
- the relay holds its own copy: a version outlives the trainer that made it;
- what is served is the very object whose hashes were taken.
"""

from collections.abc import Callable
from hashlib import sha256

from engine.live.actor import BodyActor
from engine.live.body import Body
from engine.live.stored_weights import StoredBytes, map_bytes, store_bytes
from engine.pipeline.effects import DropWeights, Effect, FetchWeights, ServeWeights
from engine.pipeline.messages import RELAY, Address, BufferHashed, ChunkHashed, Message, WeightsServed
from engine.pipeline.relay import RelayBrain
from engine.weights.chunks import hash_chunks
from engine.weights.port import WeightManifest


class RelayBody:
    tick_s = 1.0
    is_busy = False

    def __init__(self, post: Callable[[Address, Message], None]) -> None:
        self.brain = RelayBrain()
        self._post = post
        self._held: dict[int, tuple[WeightManifest, StoredBytes]] = {}

    def start(self) -> list[Message]:
        return []

    def perform(self, effect: Effect) -> list[Message]:
        match effect:
            case FetchWeights():
                return self._fetch(effect)
            case ServeWeights():
                manifest, payload = self._held[effect.version]
                self._post(effect.to, WeightsServed(manifest=manifest, payload=payload))
            case DropWeights():
                self._held.pop(effect.version, None)
            case _:
                raise TypeError(f"a relay's body does not do {type(effect).__name__}")
        return []

    def work(self) -> list[Message]:
        return []

    def measure(self, now: float) -> list[Message]:
        return []

    def _fetch(self, effect: FetchWeights) -> list[Message]:
        version = effect.manifest.version
        own_copy = store_bytes(map_bytes(effect.payload))
        self._held[version] = (effect.manifest, own_copy)
        buffer = map_bytes(own_copy)
        chunks = hash_chunks(buffer, effect.manifest.chunk_bytes)
        return [
            *(ChunkHashed(version=version, index=index, sha256=digest) for index, digest in enumerate(chunks)),
            BufferHashed(version=version, sha256=sha256(buffer).hexdigest()),
        ]


class RelayActor(BodyActor):
    def __init__(self) -> None:
        super().__init__(name=RELAY)

    def build(self) -> Body:
        return RelayBody(self._send)
