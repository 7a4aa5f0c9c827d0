"""The transfer of versions through a relay: from the trainer or the previous relay, into memory, to the next relay.

    offer ─┐                      ┌─ every chunk matches ─▶ assembled ─▶ whole matches ─▶ visible
    coming ┴─▶ arrival ─ chunks ──┴─▶ forwarded at once to relays that requested them

An offer is announced while it arrives, before its hashes are known: each chunk carries its own, the manifest follows.

Invariants:
- a version is visible only when the hashes of every chunk and of the whole match its manifest: no replica ever gets
  torn or mixed weights;
- a chunk that has arrived is not requested again, even if another relay sends the rest;
- beyond the newest visible version, one version arrives at a time: the next may need its deltas.
"""

from dataclasses import replace
from typing import Final

from engine.pipeline.effects import AssembleWeights, DropBuffer, Effect, FetchWeights, Send
from engine.pipeline.messages.addresses import DRIVER, TRAINER, relay_address
from engine.pipeline.messages.to_driver import FaultReported
from engine.pipeline.messages.to_relay import (
    BufferHashed,
    ChunkHashed,
    ChunksWanted,
    DeltaMade,
    FetchFailed,
    RelaySynced,
    VersionComing,
    WeightsHashed,
    WeightsOffered,
)
from engine.pipeline.messages.to_trainer import VersionRefused
from engine.pipeline.relay.arrivals import Arrival, Arrivals, suffix_from, whole_of
from engine.pipeline.relay.members import Members
from engine.pipeline.relay.sending import Sending
from engine.pipeline.relay.shelf import Shelf
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.weights.port import BufferId, WeightManifest

# A transfer without progress for so long is requested again, from the relay that is upstream by then. Chunks are at
# most 16 MB, so 6 MB/s is progress; together with the detection of a death this makes the 5 s of a splice.
ASK_AGAIN_AFTER_S: Final = 2.5
ANNOUNCE_AGAIN_AFTER_S: Final = 1.5
CHANGED_ON_THE_WAY: Final = "a chunk does not match the hash of the leading relay"


class Transfer:
    def __init__(self, members: Members, shelf: Shelf, *, reach: object) -> None:
        self._members, self._shelf, self._reach = members, shelf, reach
        self.arrivals = Arrivals()
        self._next: VersionComing | None = None
        """The newest version announced while an older one arrives."""
        self._sending = Sending()
        self._announced_at: dict[tuple[int, int, WeightsId, bool], float] = {}

    # ── from the trainer ──────────────────────────────────────────────────────────────────────────────────────────

    def on_offered(self, message: WeightsOffered, now: float, *, chunk_bytes: int) -> list[Effect]:
        offered = message.manifest
        manifest = offered if offered.is_hashed else replace(offered, chunk_bytes=chunk_bytes)
        arrival = self.arrivals.get(manifest.weights)
        if arrival is not None and arrival.source is None:
            return []  # a second copy must not overwrite hashed bytes of the first
        if self._shelf.keep_visible(manifest.weights, pinned=message.pinned):
            return []
        pinned = message.pinned and not self._shelf.is_released(manifest.weights)
        if manifest.weights < self._shelf.newest and not pinned:
            return []
        effects = [] if arrival is None else self._give_up(arrival)
        arrival = self.arrivals.open(manifest, pinned=pinned, path=(), source=None, now=now)
        arrival.travels_later = self._shelf.expects_delta and self._members.downstream is not None
        arrival.count_bytes()
        fetch = FetchWeights(
            arrival=arrival.number, manifest=manifest, payload=message.payload, chunk_bytes=chunk_bytes
        )
        return [*effects, fetch]

    # ── bytes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def on_chunk(self, message: ChunkHashed, now: float) -> list[Effect]:
        arrival = self.arrivals.numbered(message.arrival)
        if arrival is None or arrival.has(message.buffer_id, message.index):
            return []
        if not arrival.take(message, now):
            reason = f"chunk {message.index} does not match the hash in its manifest"
            if arrival.source is None:
                return self._refuse(arrival, reason, now)
            wants = ((message.buffer_id, (message.index,)),)
            return [*self._ask(arrival, wants), fault(f"version {arrival.weights}: {reason}")]
        return [*self._sending.on_chunk(message.buffer_id, message.index, now), *self._assemble(arrival)]

    def _assemble(self, arrival: Arrival) -> list[Effect]:
        if arrival.is_assembling or not arrival.manifest.is_hashed or arrival.missing():
            return []
        arrival.is_assembling = True
        return [AssembleWeights(arrival=arrival.number, manifest=arrival.manifest, path=arrival.path)]

    def on_whole(self, message: WeightsHashed | BufferHashed | FetchFailed, now: float) -> list[Effect]:
        arrival = self.arrivals.numbered(message.arrival)
        if arrival is None:
            return []
        match message:
            case WeightsHashed():
                is_right = arrival.learn(message.manifest)
                return self._show(arrival, now) if is_right else self._refuse(arrival, CHANGED_ON_THE_WAY, now)
            case BufferHashed() if arrival.missing():
                return self._refuse(arrival, "not every chunk has arrived", now)
            case BufferHashed():
                if message.identity != arrival.manifest.identity:
                    return self._refuse(arrival, "the whole version does not match the hash in its manifest", now)
                return self._show(arrival, now)
            case FetchFailed() if message.is_gone and arrival.source is None:
                return [*self._give_up(arrival), _report_refused(arrival, message.reason)]
            case FetchFailed() if arrival.source is None:
                return self._refuse(arrival, message.reason, now)
            case FetchFailed():  # announced again once the previous relay has dropped this request
                return [*self._give_up(arrival), fault(f"version {arrival.weights}: {message.reason}")]

    def _show(self, arrival: Arrival, now: float) -> list[Effect]:
        """Makes a complete version visible to replicas."""
        self.arrivals.close(arrival)
        effects = self._shelf.put(arrival)
        effects += self._sending.on_buffer(whole_of(arrival.weights), now)
        effects.append(Send(to=DRIVER, message=arrival.taken_by(self._members.host, now)))
        for older in self.arrivals:
            if older.weights < self._shelf.newest and not older.pinned:
                effects += self._give_up(older)
        return [*effects, *self._start_next(now), *self.evict()]

    def _refuse(self, arrival: Arrival, reason: str, now: float) -> list[Effect]:
        effects = [*self._give_up(arrival), fault(f"version {arrival.weights}: {reason}")]
        if arrival.source is None:
            return [*effects, _report_refused(arrival, reason)]
        again = self.arrivals.open(
            arrival.manifest, pinned=arrival.pinned, path=(), source=arrival.source, now=now
        )  # whole this time: a fault in deltas must not repeat
        again.count_bytes()
        return [*effects, *again.openings(), *self._ask(again, again.missing())]

    def _give_up(self, arrival: Arrival) -> list[Effect]:
        self.arrivals.close(arrival)
        buffer_ids = dict.fromkeys([*arrival.num_chunks, whole_of(arrival.weights)])
        return [DropBuffer(buffer_id=buffer_id) for buffer_id in buffer_ids if not self._shelf.has(buffer_id)]

    # ── from the previous relay ───────────────────────────────────────────────────────────────────────────────────

    def on_coming(self, message: VersionComing, now: float) -> list[Effect]:
        weights = message.manifest.weights
        if self._shelf.keep_visible(weights, pinned=message.pinned):
            return []
        pinned = message.pinned and not self._shelf.is_released(weights)
        if weights < self._shelf.newest and not pinned:
            return []
        arrival = self.arrivals.get(weights)
        if arrival is not None and arrival.source is None:
            return []
        if arrival is not None and arrival.is_of(message.manifest) and arrival.can_come_by(message.path):
            return self._learn(arrival, message.manifest, now) or self._switch(arrival, message.host, now)
        if arrival is not None:  # cut in other chunks, or by deltas that its sender no longer has
            return [*self._give_up(arrival), *self._open(message, pinned, now)]
        if weights > self._shelf.newest and any(other.weights > self._shelf.newest for other in self.arrivals):
            if self._next is None or weights > self._next.manifest.weights:
                self._next = message  # one at a time: they may need the same deltas
            return []
        return self._open(message, pinned, now)

    def _open(self, message: VersionComing, pinned: bool, now: float) -> list[Effect]:
        path = suffix_from(message.path, self._shelf.can_apply, below_bytes=message.manifest.num_bytes)
        arrival = self.arrivals.open(message.manifest, pinned=pinned, path=path, source=message.host, now=now)
        arrival.take_kept(self._shelf.has)
        arrival.count_bytes()
        return [*arrival.openings(), *self._ask(arrival, arrival.missing()), *self._assemble(arrival)]

    def _learn(self, arrival: Arrival, manifest: WeightManifest, now: float) -> list[Effect]:
        if arrival.manifest.is_hashed or not manifest.is_hashed:
            return []
        return self._assemble(arrival) if arrival.learn(manifest) else self._refuse(arrival, CHANGED_ON_THE_WAY, now)

    def _switch(self, arrival: Arrival, host: int, now: float) -> list[Effect]:
        """Another relay can send the rest: used only if the current sender makes no progress, since its chunks are on
        their way."""
        if host == arrival.source or now - arrival.progressed_at < ASK_AGAIN_AFTER_S:
            return []
        arrival.source, arrival.asked_at = host, now
        return self._ask(arrival, arrival.missing())

    def _ask(self, arrival: Arrival, wants: tuple[tuple[BufferId, tuple[int, ...]], ...]) -> list[Effect]:
        if arrival.source is None or not wants:
            return []
        message = ChunksWanted(
            host=self._members.host,
            incarnation=self._members.incarnation,
            claim=self._members.claim,
            weights=arrival.weights,
            wants=wants,
            knows_hashes=arrival.manifest.is_hashed,
            reach=self._reach,
        )
        return [Send(to=relay_address(arrival.source), message=message)]

    def _start_next(self, now: float) -> list[Effect]:
        waiting, self._next = self._next, None
        is_stale = waiting is None or self._members.leads or waiting.claim < self._members.claim
        return [] if waiting is None or is_stale else self.on_coming(waiting, now)

    def on_tick(self, now: float) -> list[Effect]:
        self._sending.forget_idle(now)
        return [*self._ask_again(now), *self.evict()]

    def _ask_again(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for arrival in self.arrivals:
            since = max(arrival.progressed_at, arrival.asked_at)
            is_stuck = now - since >= ASK_AGAIN_AFTER_S and not arrival.is_assembling
            if arrival.source is None or not is_stuck:
                continue
            if self._next is not None and self._next.manifest.weights > arrival.weights > self._shelf.newest:
                effects += [*self._give_up(arrival), *self._start_next(now)]
                continue
            arrival.asked_at = now
            arrival.source = self._members.upstream if self._members.upstream is not None else arrival.source
            effects += self._ask(arrival, arrival.missing())
        return effects

    # ── to the next relay ─────────────────────────────────────────────────────────────────────────────────────────

    def announce_to(self, peer: RelaySynced, now: float) -> list[Effect]:
        """Announces every version that this peer lacks and has not requested."""
        newest = max(peer.held, default=NO_WEIGHTS)
        lacking = {
            (peer.host, peer.incarnation, coming.manifest.weights, coming.manifest.is_hashed): coming
            for coming in self._to_announce()
            if coming.manifest.weights not in peer.held and (coming.manifest.weights > newest or coming.pinned)
            if not self._sending.is_up_to_date(peer.host, coming.manifest)
        }
        before = self._announced_at
        due = [key for key in lacking if now - before.get(key, float("-inf")) >= ANNOUNCE_AGAIN_AFTER_S]
        self._announced_at = {key: now if key in due else before[key] for key in lacking}
        return [Send(to=relay_address(peer.host), message=lacking[key]) for key in due]

    def _to_announce(self) -> list[VersionComing]:
        arriving = [(each.manifest, each.pinned, each.path) for each in self.arrivals if not each.travels_later]
        return [
            VersionComing(
                host=self._members.host,
                incarnation=self._members.incarnation,
                claim=self._members.claim,
                manifest=manifest,
                pinned=pinned,
                path=self._shelf.path_to(manifest.weights, path),
            )
            for manifest, pinned, path in [*self._shelf.to_announce(), *arriving]
        ]

    def on_chunks_wanted(self, message: ChunksWanted, now: float) -> list[Effect]:
        if not all(self._will_be_here(buffer_id) for buffer_id, _ in message.wants):
            offers = [coming for coming in self._to_announce() if coming.manifest.weights == message.weights]
            return [Send(to=relay_address(message.host), message=coming) for coming in offers]
        self._sending.forget_older(message.host, message.weights, self._shelf.is_pinned)
        return [*self._sending.take_order(message, now, self._is_here), *self.evict()]

    def _will_be_here(self, buffer_id: BufferId) -> bool:
        arrives = any(
            buffer_id in arrival.num_chunks or buffer_id == whole_of(arrival.weights) for arrival in self.arrivals
        )
        return arrives or self._shelf.has(buffer_id)

    def _is_here(self, buffer_id: BufferId, index: int) -> bool:
        return self._shelf.has(buffer_id) or any(arrival.has(buffer_id, index) for arrival in self.arrivals)

    # ── storage ───────────────────────────────────────────────────────────────────────────────────────────────────

    def on_delta_made(self, message: DeltaMade) -> list[Effect]:
        return self._shelf.on_delta(message.weights, message.delta)

    def on_peer_synced(self, before: RelaySynced | None, peer: RelaySynced) -> list[Effect]:
        if before is not None and before.incarnation < peer.incarnation:
            self._sending.forget_host(peer.host)
        self._sending.forget_held(peer.host, peer.held)
        return self.release(tuple(weights for weights in peer.released if not self._shelf.is_released(weights)))

    def release(self, versions: tuple[WeightsId, ...]) -> list[Effect]:
        self._shelf.release(versions)
        return self.evict()

    def evict(self) -> list[Effect]:
        bases = {arrival.path[0].base for arrival in self.arrivals if arrival.path}
        return self._shelf.evict(is_needed=lambda weights: weights in bases or self._sending.is_wanted(weights))


def _report_refused(arrival: Arrival, reason: str) -> Send:
    refused = VersionRefused(weights=arrival.weights, reason=reason)
    return Send(to=TRAINER, message=refused)


def fault(message: str) -> Effect:
    return Send(to=DRIVER, message=FaultReported(component="relay", message=message, action="it is requested again"))
