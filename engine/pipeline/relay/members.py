"""One relay's view of the chain: which relays are alive, which one leads, and its neighbours.

    alive ──silence of DEAD_AFTER_S plus its usual waits for a core──▶ dead ──any message──▶ alive
    none alive before this relay ──▶ makes its next claim ──▶ (alone: the trainer must agree) ──▶ leads

Invariants:
- a claim to the lead belongs to one incarnation of one host, so two relays can never lead by the same claim; the
  highest known claim counts;
- one missed heartbeat never makes a relay dead, and a relay that did not run itself (frozen, busy, starved) counts that
  time as no peer's silence;
- a relay that waits for a core is not silent: waits on this host are measured, relays on other hosts report theirs. A
  stopped or dead relay waits for no core;
- only the neighbours are watched: the cost of a relay does not grow with the length of the chain;
- a relay without contact to others leads only if the trainer agrees: cut off, it changes nothing;
- a new incarnation knows nothing: it never leads by a claim of an earlier one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from engine.policy.relay_chain import chain_order, downstream, master_of, next_claim, upstream

BEAT_EVERY_S: Final = 0.5
# Six beats. A relay beats from a thread that never blocks, so silence this long is death, a freeze or a cut cable.
DEAD_AFTER_S: Final = 3.0
# Processes of a job start in parallel, and some machines are slow.
FIRST_BEAT_WITHIN_S: Final = 30.0
# Skipped relays are probed at this interval: nothing announces that a cable was repaired.
PROBE_EVERY_S: Final = 2.0
# Sender and receiver of a beat may each wait as long as the sender did recently, and the next wait may be longer.
SLOWER_THAN_TOLD: Final = 3.0
# Decay per turn of a relay's own waits: half is gone after some ten seconds.
WAITS_FADE: Final = 0.98
# Bounds the time until a relay that stops after long waits counts as dead; the manager has replaced it by then.
LONGEST_WAIT_S: Final = 10.0
NO_CLAIM: Final = -1


@dataclass(slots=True, kw_only=True)
class Peer:
    incarnation: int
    serial: int
    heard_at: float
    waits_s: float = 0.0
    """Longest recent wait for a core, as the peer reports it."""


class Members:
    def __init__(self, *, host: int, hosts: Sequence[int], incarnation: int) -> None:
        self.host, self.incarnation = host, incarnation
        self._hosts = tuple(sorted({*hosts, host}))
        is_first = incarnation == 0
        self.claim = 0 if is_first else NO_CLAIM
        """The highest known claim: its maker leads."""
        self._own_claim: int | None = 0 if is_first and master_of(0) == host else None
        self._is_confirmed = is_first
        self._led_since = float("-inf")
        self._peers: dict[int, Peer] = {}
        self._dead: set[int] = set()
        self.waits_s = 0.0
        """Longest recent wait of this relay for a core."""
        self.num_buried = 0
        """Times that a neighbour was declared dead."""
        self._watched: dict[int, float] = {}
        self._started_at: float | None = None
        self._beat_at = float("-inf")
        self._probed_at = float("-inf")

    # ── the chain ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def leads(self) -> bool:
        return self.has_joined and self.claim == self._own_claim

    @property
    def has_joined(self) -> bool:
        return self.claim != NO_CLAIM

    @property
    def unanswered_claim(self) -> int | None:
        """A claim to repeat to the trainer until it answers."""
        return None if self._is_confirmed else self._own_claim

    @property
    def upstream(self) -> int | None:
        return upstream(self._order, self.host, self._is_alive) if self.has_joined else None

    @property
    def downstream(self) -> int | None:
        return downstream(self._order, self.host, self._is_alive) if self.has_joined else None

    @property
    def is_only_one(self) -> bool:
        return len(self._hosts) == 1

    @property
    def num_hosts(self) -> int:
        return len(self._hosts)

    def set_hosts(self, hosts: Sequence[int]) -> None:
        """Sets the other hosts that have a relay. The state of a relay that is gone is kept: it may return."""
        self._hosts = tuple(sorted({*hosts, self.host}))

    def led_for(self, now: float) -> float:
        """The time for which the trainer has known that this relay leads; 0 if it does not."""
        return now - self._led_since if self.leads and self._is_confirmed else 0.0

    @property
    def _order(self) -> tuple[int, ...]:
        return chain_order(self._hosts, self.claim)

    def _is_alive(self, host: int) -> bool:
        return host not in self._dead

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────

    def notice_time(self, now: float) -> None:
        """Called before each message."""
        if self._started_at is None:
            self._started_at = now

    def excuse(self, host: int, waited_s: float, now: float) -> None:
        """Subtracts a wait for a core from the relay's silence; this relay's own wait, from every peer's silence."""
        if host == self.host:
            self.waits_s = max(min(waited_s, LONGEST_WAIT_S), self.waits_s * WAITS_FADE)
        for each in self._peers if host == self.host else [host]:
            if each in self._peers:
                self._peers[each].heard_at = min(now, self._peers[each].heard_at + waited_s)
            if each in self._watched:
                self._watched[each] = min(now, self._watched[each] + waited_s)

    def silent(self, now: float) -> list[int]:
        """Neighbours that missed a beat, and are not dead yet."""
        neighbours = [host for host in (self.upstream, self.downstream) if host in self._peers]
        return [host for host in neighbours if now - self._heard_at(host) > 2 * BEAT_EVERY_S]

    def receive(
        self,
        host: int,
        *,
        incarnation: int,
        claim: int,
        now: float,
        serial: int | None = None,
        waits_s: float | None = None,
    ) -> bool:
        """False: the message is outdated. Messages without a serial number are always taken."""
        peer = self._peers.get(host)
        if peer is None or incarnation > peer.incarnation:
            peer = self._peers[host] = Peer(incarnation=incarnation, serial=serial or 0, heard_at=now)
        elif incarnation < peer.incarnation or (serial is not None and serial <= peer.serial):
            return False
        else:
            peer.heard_at = now
            peer.serial = peer.serial if serial is None else serial
        peer.waits_s = peer.waits_s if waits_s is None else waits_s
        self._dead.discard(host)
        self._adopt(claim, now)
        return True

    def on_claim_observed(self, claim: int, incarnation: int, now: float) -> None:
        """The trainer's answer: the highest claim that it knows, and the incarnation that made it."""
        if claim != self._own_claim:
            self._adopt(claim, now)
        elif incarnation != self.incarnation:
            self._claim_lead(now, above=claim)
        else:
            self.claim = claim
            if not self._is_confirmed:
                self._is_confirmed, self._led_since = True, now

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> None:
        self._bury(now)
        if not self.has_joined and not self.is_only_one and now - self._since_start < DEAD_AFTER_S:
            return
        if self.upstream is not None and self.claim != self._own_claim:
            self._own_claim, self._is_confirmed = None, True  # a relay before this one is alive after all
        elif not self.leads and self.upstream is None and self._own_claim is None:
            self._claim_lead(now, above=self.claim)

    def to_beat(self, now: float) -> Iterator[tuple[int, bool]]:
        """(host, wants a reply) for each heartbeat that is due."""
        if now - self._beat_at < BEAT_EVERY_S:
            return
        self._beat_at = now
        neighbours = [host for host in (self.upstream, self.downstream) if host is not None]
        yield from ((host, now - self._heard_at(host) > 2 * BEAT_EVERY_S) for host in neighbours)
        if not self.has_joined or now - self._probed_at >= PROBE_EVERY_S:
            self._probed_at = now
            skipped = self._dead.intersection(self._hosts) if self.has_joined else self._hosts
            yield from ((host, True) for host in skipped if host != self.host)

    @property
    def _since_start(self) -> float:
        assert self._started_at is not None, "notice_time comes first"
        return self._started_at

    def _bury(self, now: float) -> None:
        while True:
            neighbours = {host for host in (self.upstream, self.downstream) if host is not None}
            self._watched = {host: self._watched.get(host, now) for host in neighbours}
            overdue = {host for host in neighbours if now > self._due_at(host)}
            if not overdue:
                return
            self._dead |= overdue
            self.num_buried += len(overdue)

    def _due_at(self, host: int) -> float:
        due = max(self._heard_at(host), self._watched[host]) + DEAD_AFTER_S
        peer = self._peers.get(host)
        if peer is None:
            return max(due, self._since_start + FIRST_BEAT_WITHIN_S)
        return due + SLOWER_THAN_TOLD * peer.waits_s

    def _heard_at(self, host: int) -> float:
        peer = self._peers.get(host)
        return float("-inf") if peer is None else peer.heard_at

    # ── leading ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _adopt(self, claim: int, now: float) -> None:
        if claim <= self.claim:
            return
        self.claim = claim
        if self._own_claim is not None and self._own_claim < claim:
            self._own_claim, self._is_confirmed = None, True
        if master_of(claim) == self.host and claim != self._own_claim:
            self._claim_lead(now, above=claim)  # an earlier incarnation made the claim, and its versions are gone

    def _claim_lead(self, now: float, *, above: int) -> None:
        self._own_claim, self._is_confirmed = next_claim(above, self.host, self.incarnation), False
        if any(now - peer.heard_at < DEAD_AFTER_S for host, peer in self._peers.items() if host not in self._dead):
            self.claim = self._own_claim
