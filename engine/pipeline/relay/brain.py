"""A relay: holds weight versions, serves them to the replicas of its host, and forwards them to the next relay.

    trainer ──offer──▶ master ══chunks══▶ relay ══chunks══▶ relay      a version is forwarded while it arrives

Invariants:
- the leading relay gets versions from the trainer, every other relay from a relay with the highest known claim:
  messages of a stale master are refused;
- the newest version is kept, a pinned one until it is released, and one that a relay has requested until it is sent; a
  visible version never changes;
- the trainer is notified that a version is stored when every live relay after this one has it too: a version that the
  trainer then frees survives any one death;
- a replica learns that a version is missing only when it can no longer come: not while it arrives at a relay before
  this one, or the trainer has it;
- every replica that has requested weights is notified of each new version; one that misses the message requests again.
"""

# Over budget: one handler for every message to a relay; members, shelf and transfer decide.

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from engine.pipeline.effects import Effect, Send, ServeWeights
from engine.pipeline.messages.addresses import TRAINER, relay_address, rollout_address
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_relay import (
    BufferHashed,
    ChunkHashed,
    ChunksWanted,
    ClaimObserved,
    CoreAwaited,
    DeltaMade,
    FetchFailed,
    RelaysPlaced,
    RelaySynced,
    VersionComing,
    VersionReleased,
    WeightsHashed,
    WeightsOffered,
    WeightsSealed,
    WeightsWanted,
)
from engine.pipeline.messages.to_rollout import VersionAnnounced, VersionMissing
from engine.pipeline.messages.to_trainer import MasterElected, VersionStored
from engine.pipeline.relay.members import DEAD_AFTER_S, Members
from engine.pipeline.relay.seals import Seal, Seals
from engine.pipeline.relay.shelf import Shelf
from engine.pipeline.relay.transfer import Transfer, fault
from engine.policy.awake import AwakeTime
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.policy.relay_chain import chunk_bytes_for, master_of

CLAIM_AGAIN_AFTER_S: Final = 1.5
# In this time the trainer repeats its offers to a new master, which does not know earlier what is missing.
SURE_AFTER_S: Final = 5.0
# Every so many versions is sent whole, which bounds the deltas kept for relays that are behind.
ANCHOR_EVERY: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A version that the trainer has offered to the leading relay."""

    first_at: float
    pinned: bool


class RelayBrain:
    def __init__(
        self,
        *,
        host: int = 0,
        hosts: Sequence[int] = (0,),
        incarnation: int = 0,
        anchor_every: int = ANCHOR_EVERY,
        reach: object = None,
        process: object = None,
        cut: Callable[[int, int], int] = chunk_bytes_for,
    ) -> None:
        """`anchor_every` 1: no deltas, always whole versions. `reach`: how other relays' bodies reach this one's.
        `process`: identifies its process to bodies on its host. `cut`: chunk size for a version of so many bytes and so
        many relays."""
        self._members = Members(host=host, hosts=hosts, incarnation=incarnation)
        self._incarnation, self._process, self._cut = incarnation, process, cut
        self._awake = AwakeTime(absent_after_s=DEAD_AFTER_S / 2)
        self._shelf = Shelf(anchor_every=anchor_every)
        self._transfer = Transfer(self._members, self._shelf, reach=reach)
        self._seals = Seals()
        self._peers: dict[int, RelaySynced] = {}
        self._offered: dict[WeightsId, Offer] = {}
        """The versions that the trainer awaits confirmation for."""
        self._replicas: dict[int, int] = {}
        """Replica → incarnation."""
        self._serial = 0
        self._synced_state: object = None
        self._claimed_at = self._now = float("-inf")

    @property
    def newest(self) -> WeightsId:
        return self._shelf.newest

    @property
    def visible(self) -> frozenset[WeightsId]:
        return frozenset(self._shelf.visible)

    @property
    def claim(self) -> int:
        return self._members.claim

    @property
    def leads(self) -> bool:
        return self._members.leads

    @property
    def seals(self) -> tuple[Seal, ...]:
        return self._seals.own

    @property
    def num_buried(self) -> int:
        return self._members.num_buried

    @property
    def host(self) -> int:
        return self._members.host

    @property
    def silent(self) -> dict[int, object]:
        """Neighbours that missed a beat → their processes, as reported."""
        return {host: self._peers[host].process for host in self._members.silent(self._now) if host in self._peers}

    def handle(self, message: Message, now: float) -> list[Effect]:
        now = self._now = self._awake.at(now)
        self._members.notice_time(now)
        before = self.newest
        effects = [*self._dispatch(message, now), *self._discard_broken()]
        if self.newest > before:
            effects += self._notify_replicas()
        seals = self._seals.due(self._settled())
        return [*effects, *self._sync_neighbours(), *self._announce(now), *self._confirm(now), *seals]

    def _dispatch(self, message: Message, now: float) -> list[Effect]:
        match message:
            case ChunkHashed():
                return self._transfer.on_chunk(message, now)
            case WeightsHashed() | BufferHashed():
                return self._transfer.on_whole(message, now)
            case FetchFailed():
                return self._on_fetch_failed(message, now)
            case WeightsSealed():
                self._seals.take(message.weights, message.sha256)
                return []
            case DeltaMade():
                return self._transfer.on_delta_made(message)
            case WeightsOffered():
                return self._on_offered(message, now)
            case ClaimObserved():
                self._members.on_claim_observed(message.claim, message.incarnation, now)
                return []
            case CoreAwaited():
                self._members.excuse(message.host, message.waited_s, now)
                return []
            case RelaysPlaced():
                self._members.set_hosts(message.relays)
                return []
            case RelaySynced():
                return self._on_synced(message, now)
            case VersionComing():
                return self._on_coming(message, now)
            case ChunksWanted():
                return self._transfer.on_chunks_wanted(message, now) if self._receive(message, now) else []
            case WeightsWanted():
                return self._on_wanted(message, now)
            case VersionReleased():
                return self._transfer.release((message.weights,))
            case Tick():
                return self._on_tick(now)
            case _:
                raise TypeError(f"a relay does not take {type(message).__name__}")

    # ── from and to the trainer ───────────────────────────────────────────────────────────────────────────────────

    def _on_offered(self, message: WeightsOffered, now: float) -> list[Effect]:
        if not self._members.leads:
            return self._name_leader()
        weights = message.manifest.weights
        before = self._offered.get(weights)
        self._offered[weights] = Offer(first_at=now if before is None else before.first_at, pinned=message.pinned)
        chunk_bytes = self._cut(message.manifest.num_bytes, self._members.num_hosts)
        return self._transfer.on_offered(message, now, chunk_bytes=chunk_bytes)

    def _on_fetch_failed(self, message: FetchFailed, now: float) -> list[Effect]:
        arrival = self._transfer.arrivals.numbered(message.arrival)
        if message.is_gone and arrival is not None:
            self._offered.pop(arrival.weights, None)  # the trainer repeats the offer if it still has the version
        return self._transfer.on_whole(message, now)

    def _name_leader(self) -> list[Effect]:
        if not self._members.has_joined:
            return []
        leader = MasterElected(host=master_of(self.claim), incarnation=None, claim=self.claim, held=())
        return [Send(to=TRAINER, message=leader)]

    def _confirm(self, now: float) -> list[Effect]:
        if not self._members.leads:
            return []  # offers from its time as master may be only here; the new master confirms versions
        settled = set(self._settled())
        stored = [
            weights
            for weights in self._offered
            if weights in settled or self._is_overtaken(weights)
            if self._transfer.arrivals.get(weights) is None
        ]
        for weights in stored:
            self._shelf.note_stored(weights, after_s=now - self._offered.pop(weights).first_at)
        return [Send(to=TRAINER, message=VersionStored(weights=weights)) for weights in stored]

    def _is_overtaken(self, weights: WeightsId) -> bool:
        return weights not in self._shelf.visible and weights < self.newest and not self._is_due(weights)

    def _is_due(self, weights: WeightsId) -> bool:
        """True for an offered version that an evaluation needs, whose trainer lives."""
        return (
            self._offered[weights].pinned
            and weights.epoch == self.newest.epoch
            and not self._shelf.is_released(weights)
        )

    # ── among relays ──────────────────────────────────────────────────────────────────────────────────────────────

    def _receive(self, message: VersionComing | ChunksWanted, now: float) -> bool:
        return self._members.receive(message.host, incarnation=message.incarnation, claim=message.claim, now=now)

    def _on_synced(self, message: RelaySynced, now: float) -> list[Effect]:
        is_news = self._members.receive(
            message.host,
            incarnation=message.incarnation,
            claim=message.claim,
            now=now,
            serial=message.serial,
            waits_s=message.waits_s,
        )
        if not is_news:
            return []
        before = self._peers.get(message.host)
        self._peers[message.host] = message
        if message.host == self._members.upstream:
            self._seals.receive(message.seals)
        effects = self._transfer.on_peer_synced(before, message)
        if message.wants_reply or message.claim < self.claim:
            effects.append(self._sync(message.host, wants_reply=False))
        return effects

    def _on_coming(self, message: VersionComing, now: float) -> list[Effect]:
        if not self._receive(message, now) or self._members.leads:
            return []
        if message.claim < self.claim:
            return [self._sync(message.host, wants_reply=False)]  # the sender does not know the new master yet
        return self._transfer.on_coming(message, now)

    def _discard_broken(self) -> list[Effect]:
        effects: list[Effect] = []
        for weights in self._seals.broken(self._shelf.visible):
            report = fault(f"version {weights}: its memory differs from that of the previous relay")
            effects += [report, *self._shelf.discard(weights)]
        return effects

    def _announce(self, now: float) -> list[Effect]:
        host = self._members.downstream
        peer = None if host is None else self._peers.get(host)
        return [] if peer is None else self._transfer.announce_to(peer, now)

    def _sync(self, host: int, *, wants_reply: bool) -> Effect:
        self._serial += 1
        message = RelaySynced(
            host=self._members.host,
            incarnation=self._incarnation,
            serial=self._serial,
            claim=self.claim,
            held=tuple(sorted(self._shelf.visible)),
            settled=self._settled(),
            released=self._shelf.released,
            wants_reply=wants_reply,
            coming=tuple(sorted(self._coming())),
            seals=self._seals.own,
            waits_s=self._members.waits_s,
            process=self._process,
        )
        return Send(to=relay_address(host), message=message)

    def _coming(self) -> frozenset[WeightsId]:
        """The versions that will be visible here, unless a process dies first."""
        if self._members.leads:
            promised = {weights for weights in self._offered if self._is_due(weights)}
        else:
            before = None if self._members.upstream is None else self._peers.get(self._members.upstream)
            promised = set() if before is None else {*before.held, *before.coming}
        arriving = {arrival.weights for arrival in self._transfer.arrivals}
        return frozenset((arriving | promised) - self._shelf.visible.keys())

    def _settled(self) -> tuple[WeightsId, ...]:
        """The versions that this relay and every live relay after it hold, or no longer need."""
        held = sorted(self._shelf.visible)
        if not self._members.has_joined:
            return ()
        host = self._members.downstream
        if host is None:
            return tuple(held)
        peer = self._peers.get(host)
        after = set() if peer is None else set(peer.settled)
        newest = max(after, default=NO_WEIGHTS)
        return tuple(
            weights for weights in held if weights in after or (weights < newest and not self._shelf.is_pinned(weights))
        )

    def _sync_neighbours(self) -> list[Effect]:
        """Syncs at once after a change; otherwise heartbeats do."""
        hosts = [host for host in (self._members.upstream, self._members.downstream) if host is not None]
        state = (self.claim, self.visible, self._settled(), self._shelf.released, self._coming(), tuple(hosts))
        if state == self._synced_state:
            return []
        self._synced_state = state
        return [self._sync(host, wants_reply=False) for host in hosts]

    def _on_tick(self, now: float) -> list[Effect]:
        members = self._members
        members.tick(now)
        effects: list[Effect] = [self._sync(host, wants_reply=asks) for host, asks in members.to_beat(now)]
        return [*effects, *self._repeat_claim(now), *self._transfer.on_tick(now)]

    def _repeat_claim(self, now: float) -> list[Effect]:
        claim = self._members.unanswered_claim
        if claim is None or now - self._claimed_at < CLAIM_AGAIN_AFTER_S:
            return []
        self._claimed_at = now
        held = tuple(sorted(self._shelf.visible))
        elected = MasterElected(host=self._members.host, incarnation=self._incarnation, claim=claim, held=held)
        return [Send(to=TRAINER, message=elected)]

    # ── to the replicas ───────────────────────────────────────────────────────────────────────────────────────────

    def _notify_replicas(self) -> list[Effect]:
        announced = VersionAnnounced(weights=self.newest)
        return [Send(to=rollout_address(replica), message=announced) for replica in self._replicas]

    def _on_wanted(self, message: WeightsWanted, now: float) -> list[Effect]:
        known = self._replicas.get(message.replica, -1)
        self._replicas[message.replica] = max(known, message.incarnation)
        address = rollout_address(message.replica)
        if message.exact is None:
            return [ServeWeights(to=address, weights=self.newest)] if self.newest > message.held else []
        if message.exact in self._shelf.visible:
            return [ServeWeights(to=address, weights=message.exact)]
        if self._may_still_come(message.exact, now):
            return []
        return [Send(to=address, message=VersionMissing(weights=message.exact))]

    def _may_still_come(self, weights: WeightsId, now: float) -> bool:
        """`weights`: not visible here. A version beyond the newest one here is on its way, or about to be offered."""
        if weights > self.newest or weights in self._coming():
            return True
        if self._members.leads:
            is_sure = self._incarnation == 0 and self.claim == 0
            return not is_sure and self._members.led_for(now) < SURE_AFTER_S
        return self._members.upstream is None or self._members.upstream not in self._peers
