"""A relay's body: carries out its brain's effects with memory, hashes, deltas and links.

    trainer's memory ──adopt──▶ segment ──map──▶ replicas of this host
                                   └──chunks as they arrive, by a sender──▶ link ──▶ the next relay's segment

Invariants:
- the relay holds its own name for the memory of a version, so the version outlives the trainer that made it;
- the loop's thread only decides: workers allocate, hash, encode and copy, so messages between relays are never
  delayed by that work;
- a worker's result for an arrival that was abandoned meanwhile is discarded.
"""

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import get_native_id
from typing import Any, Final

from engine.live.body.loop import BodyCall
from engine.live.process.core_waits import Looks, look_at, own_process, thread_waited_s
from engine.live.relay.assembly import Assembly, all_here
from engine.live.relay.buffers import WeightBuffer, WeightBuffers
from engine.live.relay.memory import RelayMemory
from engine.live.relay.sealing import Sealers
from engine.live.relay.view import RelayView
from engine.live.weights.link import Listener, Senders, receive_chunks
from engine.live.weights.offered_bytes import Reach
from engine.pipeline.effects import (
    AssembleWeights,
    DropBuffer,
    Effect,
    FetchWeights,
    ForwardChunk,
    MakeDelta,
    OpenBuffer,
    SealWeights,
    ServeWeights,
)
from engine.pipeline.messages.addresses import Address
from engine.pipeline.messages.message import Message
from engine.pipeline.messages.to_relay import (
    BufferHashed,
    ChunkHashed,
    CoreAwaited,
    DeltaMade,
    FetchFailed,
    WeightsHashed,
    WeightsSealed,
)
from engine.pipeline.messages.to_rollout import WeightsServed
from engine.pipeline.relay.arrivals import whole_of
from engine.pipeline.relay.brain import RelayBrain
from engine.policy.lineage import WeightsId
from engine.process.progress import worker_progress
from engine.weights.chunks import TornWeights, WeightsGone
from engine.weights.delta import make_delta
from engine.weights.port import BufferId, WeightManifest, WeightVersion

log = logging.getLogger(__name__)

# One for a long task, one for the next version in parallel. Memory has a thread of its own.
WORKERS: Final = 2


class RelayBody:
    tick_s = 0.25
    is_busy = False

    def __init__(
        self,
        *,
        brain: Callable[..., RelayBrain],
        owner: str,
        listen: str | None,
        token: bytes,
        post: Callable[[Address, Message], None],
        on_loop: Callable[[BodyCall], None],
    ) -> None:
        """`brain` is called with this body's address. `listen`: an address of this host, if there are other relays."""
        self._owner = owner
        self._post, self._on_loop = post, on_loop
        progress = [worker_progress() for _ in range(WORKERS)]
        self._workers = ThreadPoolExecutor(
            max_workers=WORKERS,
            thread_name_prefix="relay-worker",
            initializer=lambda: progress.pop().attach_thread(),
        )
        self._memory = RelayMemory(owner)
        self.buffers = WeightBuffers(
            notify=self._notify,
            submit=lambda job: self._memory.submit(self._guard(job)),
            free=self._memory.free_here,
        )
        self._assembly = Assembly(owner=owner, token=token, memory=self._memory, buffers=self.buffers)
        self._sealers = Sealers()
        self._listener = None if listen is None else Listener(listen, token, self._receive)
        self._senders = Senders(token)
        self._manifests: dict[WeightsId, WeightManifest] = {}
        self._expected: dict[BufferId, int] = {}
        """Buffers that workers are assembling → the arrival that each belongs to."""
        self._looks, self._waited_s = Looks(), thread_waited_s(get_native_id())
        self.brain = brain(reach=None if self._listener is None else self._listener.reach, process=own_process())

    def start(self) -> list[Message]:
        return []

    def work(self) -> list[Message]:
        return []

    def measure(self, now: float) -> list[Message]:
        """Measures how long this loop, and silent neighbours on this host, waited for a core."""
        before, self._waited_s = self._waited_s, thread_waited_s(get_native_id())
        waits = {self.brain.host: max(0.0, self._waited_s - before)}
        silent = self.brain.silent
        self._looks.keep_only(lambda host: host in silent)
        waits |= {host: self._looks.waited_s(host, look_at(str(process or ""))) for host, process in silent.items()}
        return [CoreAwaited(host=host, waited_s=waited_s) for host, waited_s in waits.items()]

    def view(self) -> RelayView:
        return RelayView(
            pid=os.getpid(),
            claim=self.brain.claim,
            leads=self.brain.leads,
            visible=self.brain.visible,
            seals=dict(self.brain.seals),
            num_chunks=self.buffers.num_chunks,
            num_bytes=self.buffers.num_bytes,
            num_useless_chunks=self.buffers.num_useless_chunks,
            num_buried=self.brain.num_buried,
        )

    def end(self) -> list[Message]:
        self.buffers.drop_all()
        self._memory.close()
        return []

    def perform(self, effect: Effect) -> list[Message]:
        match effect:
            case FetchWeights():
                self._expected[whole_of(effect.manifest.weights)] = effect.arrival
                self._submit(lambda: self._fetch(effect))
            case OpenBuffer():
                self.buffers.expect(effect)
                self._memory.submit(self._guard(lambda: self._open(effect)))
            case ForwardChunk():
                self._forward(effect)
            case AssembleWeights():
                self._expected[whole_of(effect.manifest.weights)] = effect.arrival
                self._submit(lambda: self._assemble(effect))
            case MakeDelta():
                self._make_delta(effect)
            case SealWeights():
                self._seal(effect.weights)
            case ServeWeights():
                self._serve(effect)
            case DropBuffer():
                self._expected.pop(effect.buffer_id, None)
                self.buffers.drop(effect.buffer_id)
            case _:
                raise TypeError(f"a relay's body does not support {type(effect).__name__}")
        return []

    # ── on the loop's thread ──────────────────────────────────────────────────────────────────────────────────────

    def _forward(self, effect: ForwardChunk) -> None:
        content = self.buffers.get(effect.buffer_id)
        if content is not None and isinstance(effect.reach, Reach):
            sender = self._senders.to(effect.to, effect.reach)
            sender.send(effect.buffer_id, effect.index, content.chunk(effect.index), content.digests[effect.index])

    def _serve(self, effect: ServeWeights) -> None:
        content = self.buffers.get(whole_of(effect.weights))
        assert content is not None and content.segment is not None, f"version {effect.weights} is visible but absent"
        manifest = self._manifests[effect.weights]
        self._post(effect.to, WeightsServed(manifest=manifest, payload=content.segment.shared))

    def _seal(self, weights: WeightsId) -> None:
        content = self.buffers.get(whole_of(weights))
        if content is not None:
            self._sealers.seal(
                content,
                is_here=lambda: self.buffers.get(whole_of(weights)) is content,
                sealed=lambda digest: self._notify(WeightsSealed(weights=weights, sha256=digest)),
            )

    def _make_delta(self, effect: MakeDelta) -> None:
        base, new = self._version(effect.base), self._version(effect.weights)
        self._submit(lambda: self._encode(effect, base, new))

    def _version(self, version: WeightsId) -> WeightVersion:
        content = self.buffers.get(whole_of(version))
        assert content is not None, f"a delta needs version {version}, which is not in memory"
        return WeightVersion(manifest=self._manifests[version], buffer=content.memory)

    def _put_begun(self, buffer_id: BufferId, content: WeightBuffer) -> list[Message]:
        """Its chunks arrive from now on and may be forwarded."""
        if self._expected.get(buffer_id) == content.arrival:
            self.buffers.put(buffer_id, content)
        return []

    def _put_complete(
        self, buffer_id: BufferId, content: WeightBuffer, manifest: WeightManifest, message: Message
    ) -> list[Message]:
        if self._expected.get(buffer_id) != content.arrival:
            if content.segment is not None and self.buffers.get(buffer_id) is not content:
                self._memory.free(content.segment)
            return []
        del self._expected[buffer_id]
        self._manifests[manifest.weights] = manifest
        if self.buffers.get(buffer_id) is not content:
            self.buffers.put(buffer_id, content)
        return [message]

    # ── on other threads ──────────────────────────────────────────────────────────────────────────────────────────

    def _submit(self, job: Callable[[], None]) -> None:
        self._workers.submit(self._guard(job))

    def _guard(self, job: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                job()
            except Exception:  # a bug: it ends the loop, as a bug of the loop does
                log.exception("a worker of %s failed", self._owner)
                self._on_loop(_raise_failure)

        return run

    def _receive(self, link: Any) -> None:
        receive_chunks(link, self.buffers)

    def _open(self, effect: OpenBuffer) -> None:
        if effect.buffer_id.base is not None:
            self.buffers.open(effect, memoryview(bytearray(effect.num_bytes)), None)
            return
        try:
            segment = self._memory.take_here(effect.num_bytes)
        except OSError as error:
            self.buffers.expect_no_more(effect)
            self._notify(FetchFailed(arrival=effect.arrival, reason=f"no memory: {error}"))
            return
        self.buffers.open(effect, segment.buffer, segment)

    def _fetch(self, effect: FetchWeights) -> None:
        buffer_id = whole_of(effect.manifest.weights)

        def begun(content: WeightBuffer) -> None:
            self._on_loop(lambda body: body._put_begun(buffer_id, content))

        def hashed(index: int, digest: str) -> None:
            self._notify(ChunkHashed(arrival=effect.arrival, buffer_id=buffer_id, index=index, digest=digest))

        try:
            content, manifest = self._assembly.fetched(effect, begun, hashed)
        except (OSError, TornWeights) as error:
            self._notify(_make_failure(effect.arrival, error))
            return
        message = WeightsHashed(arrival=effect.arrival, manifest=manifest)
        self._on_loop(lambda body: body._put_complete(buffer_id, content, manifest, message))

    def _assemble(self, effect: AssembleWeights) -> None:
        try:
            content, identity = self._assembly.assembled(effect)
        except (OSError, TornWeights) as error:
            self._notify(_make_failure(effect.arrival, error))
            return
        message = BufferHashed(arrival=effect.arrival, identity=identity)
        buffer_id = whole_of(effect.manifest.weights)
        self._on_loop(lambda body: body._put_complete(buffer_id, content, effect.manifest, message))

    def _encode(self, effect: MakeDelta, base: WeightVersion, new: WeightVersion) -> None:
        delta = make_delta(base, new, chunk_bytes=effect.chunk_bytes)
        if delta is None:
            self._notify(DeltaMade(weights=effect.weights, delta=None))
            return
        manifest = delta.manifest
        content = all_here(delta.buffer, manifest)

        def put(body: "RelayBody") -> list[Message]:
            body.buffers.put(manifest.buffer_id, content)
            return [DeltaMade(weights=effect.weights, delta=manifest)]

        self._on_loop(put)

    def _notify(self, message: Message) -> None:
        self._on_loop(lambda body: [message])


def _make_failure(arrival: int, error: Exception) -> FetchFailed:
    return FetchFailed(arrival=arrival, reason=str(error), is_gone=isinstance(error, WeightsGone))


def _raise_failure(body: Any) -> list[Message]:
    raise RuntimeError("a relay worker failed; its traceback is in the log")
