"""The trainer's offers of weights to the leading relay, and the copies that it keeps for them.

Invariants:
- the newest version's copy is kept, stored or not: with every relay dead it is the only copy;
- an older copy is kept until it is stored, if an evaluation needs that version, else until it is overtaken;
- only the highest claim of a relay counts, and every claim is answered with the highest;
- base weights that are offered after a resume keep their id, whichever incarnation offers them.
"""

from collections.abc import Sequence
from typing import Final

from engine.pipeline.effects import Effect, ForgetWeights, PublishWeights, RepublishWeights, Send
from engine.pipeline.messages.addresses import Address, relay_address
from engine.pipeline.messages.to_relay import ClaimObserved
from engine.pipeline.messages.to_trainer import MasterElected
from engine.pipeline.plan import Plan
from engine.policy.lineage import BASE_WEIGHTS, WeightsId

# A large version takes a while to fetch and hash; an early repeat of the offer only doubles the work.
OFFER_AGAIN_AFTER_S: Final = 10.0


class Offers:
    def __init__(self, plan: Plan, *, epoch: int) -> None:
        self._plan, self._epoch = plan, epoch
        self._offered_at: dict[int, float] = {}
        """Time of the last offer, of versions not known to be stored."""
        self._first_offered_at: dict[int, float] = {}
        self.broadcast_s: float | None = None
        """For the last version known to be on every live relay: from its first offer to the report of that."""
        self._newest: int | None = None
        self._has_base = False
        """Version 0 means `BASE_WEIGHTS`."""
        self._relays: Sequence[int] = range(plan.num_relays)
        self._host = 0
        self._relay_claim = -1
        self._relay_incarnation: int | None = None

    def publish(self, version: int, now: float) -> list[Effect]:
        overtaken = {older for older in self._offered_at if not self._plan.evaluates(older)}
        if self._newest is not None and self._newest not in self._offered_at:
            overtaken.add(self._newest)  # stored, and kept only as the newest
        effects: list[Effect] = [ForgetWeights(weights=self._weights_of(older)) for older in sorted(overtaken)]
        for older in overtaken:
            self._offered_at.pop(older, None)
            self._first_offered_at.pop(older, None)
        self._offered_at[version], self._newest = now, version
        self._first_offered_at[version] = now
        pinned = self._plan.evaluates(version)
        return [*effects, PublishWeights(weights=self._weights_of(version), pinned=pinned, to=self._to)]

    def offer_base(self, now: float) -> list[Effect]:
        """Offers the body's copy of the base weights. Call it before any `publish`."""
        self._has_base, self._newest = True, BASE_WEIGHTS.version
        self._first_offered_at[self._newest] = now
        self._offered_at[self._newest] = now
        return self._offer_again(self._newest, now)

    def on_stored(self, stored: WeightsId, now: float) -> list[Effect]:
        if stored != self._weights_of(stored.version):
            return []
        offered_at = self._first_offered_at.pop(stored.version, None)
        if offered_at is not None:
            self.broadcast_s = now - offered_at
        done = [
            version
            for version in self._offered_at
            if version == stored.version or (version < stored.version and not self._plan.evaluates(version))
        ]
        for version in done:
            del self._offered_at[version]
            self._first_offered_at.pop(version, None)
        return [ForgetWeights(weights=self._weights_of(version)) for version in done if version != self._newest]

    def on_refused(self, refused: WeightsId, now: float) -> list[Effect]:
        return self._offer_again(refused.version, now) if refused == self._weights_of(refused.version) else []

    def on_elected(self, message: MasterElected, now: float) -> list[Effect]:
        if message.claim < self._relay_claim:
            return self._answer(message.host)
        is_new = (message.claim, message.host) != (self._relay_claim, self._host)
        self._relay_claim, self._host = message.claim, message.host
        if message.incarnation is None:  # another relay names the leader
            unstored = list(self._offered_at) if is_new else []
            return [effect for version in unstored for effect in self._offer_again(version, now)]
        self._relay_incarnation = message.incarnation
        if self._newest is not None:
            self._offered_at.setdefault(self._newest, now)
        lacking = [version for version in self._offered_at if self._weights_of(version) not in message.held]
        again = [effect for version in lacking for effect in self._offer_again(version, now)]
        return [*self._answer(message.host), *again]

    def set_relays(self, relays: Sequence[int], now: float) -> list[Effect]:
        """Sets the relays that have a host; others are offered nothing."""
        self._relays = relays
        if self._host in relays or not relays:
            return []
        self._host = relays[0]
        return [effect for version in list(self._offered_at) for effect in self._offer_again(version, now)]

    def on_tick(self, now: float) -> list[Effect]:
        overdue = [version for version, at in self._offered_at.items() if now - at >= OFFER_AGAIN_AFTER_S]
        if overdue and self._relays:
            after = [relay for relay in self._relays if relay > self._host]
            self._host = (after or self._relays)[0]  # any relay can name the leader
        return [effect for version in overdue for effect in self._offer_again(version, now)]

    def _answer(self, host: int) -> list[Effect]:
        if self._relay_incarnation is None:
            return []
        seen = ClaimObserved(claim=self._relay_claim, incarnation=self._relay_incarnation)
        return [Send(to=relay_address(host), message=seen)]

    def _offer_again(self, version: int, now: float) -> list[Effect]:
        if version not in self._offered_at:
            return []
        self._offered_at[version] = now
        pinned = self._plan.evaluates(version)
        return [RepublishWeights(weights=self._weights_of(version), pinned=pinned, to=self._to)]

    def _weights_of(self, version: int) -> WeightsId:
        is_base = self._has_base and version == BASE_WEIGHTS.version
        return BASE_WEIGHTS if is_base else WeightsId(self._epoch, version)

    @property
    def _to(self) -> Address:
        return relay_address(self._host)
