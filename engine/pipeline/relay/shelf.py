"""The shelf of a relay: visible versions, and the deltas that lead to the newest.

Invariants:
- the newest version stays, and a pinned one until it is released; a release may arrive before its version;
- the deltas are consecutive and end at the newest version; an anchor, which is sent whole, starts over.
"""

from collections.abc import Callable
from typing import Final

from engine.pipeline.effects import DropBuffer, Effect, MakeDelta
from engine.pipeline.relay.arrivals import Arrival, Path, whole_of
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.policy.travel import Kind, Travel
from engine.weights.port import BufferId, DeltaManifest, WeightManifest

# Releases are remembered for relays to pass on; far more than evaluations can be in progress.
RELEASES_KEPT: Final = 64


class Shelf:
    def __init__(self, *, anchor_every: int) -> None:
        self._anchor_every = anchor_every
        self.visible: dict[WeightsId, bool] = {}
        """Version → pinned."""
        self._manifests: dict[WeightsId, WeightManifest] = {}
        self._line: Path = ()
        self._since_anchor = 0
        self._travel = Travel(again_after=anchor_every)
        self._undecided: set[WeightsId] = set()
        """Versions to which a delta is being made."""
        self._released: dict[WeightsId, None] = {}

    @property
    def newest(self) -> WeightsId:
        return max(self.visible, default=NO_WEIGHTS)

    @property
    def released(self) -> tuple[WeightsId, ...]:
        return tuple(self._released)

    # ── versions ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def expects_delta(self) -> bool:
        """True if the next version should be sent as a delta."""
        is_anchor = self._since_anchor + 1 >= self._anchor_every
        return self.newest != NO_WEIGHTS and not is_anchor and self._travel.prefers_delta

    def note_stored(self, weights: WeightsId, *, after_s: float) -> None:
        manifest = self._manifests.get(weights)
        if manifest is not None:
            is_delta = any(delta.weights == weights for delta in self._line)
            kind: Kind = "delta" if is_delta else "whole"
            self._travel.record(kind, num_bytes=manifest.num_bytes, seconds=after_s)

    def put(self, arrival: Arrival) -> list[Effect]:
        before, manifest = self.newest, arrival.manifest
        self.visible[arrival.weights] = arrival.pinned
        self._manifests[arrival.weights] = manifest
        if arrival.weights < before:
            return []  # an older version, for an evaluation, is not part of the line of deltas
        if arrival.path:
            return self._extend(arrival.path)
        if not arrival.travels_later:
            return self._start_over()
        self._since_anchor += 1
        self._undecided.add(arrival.weights)
        return [MakeDelta(weights=arrival.weights, base=before, chunk_bytes=manifest.chunk_bytes)]

    def on_delta(self, weights: WeightsId, delta: DeltaManifest | None) -> list[Effect]:
        if weights not in self._undecided:
            return []
        self._undecided.discard(weights)
        return self._start_over() if delta is None else self._extend((delta,))

    def keep_visible(self, weights: WeightsId, *, pinned: bool) -> bool:
        """False: the version is not here."""
        if weights not in self.visible:
            return False
        self.visible[weights] |= pinned and weights not in self._released
        return True

    def is_pinned(self, weights: WeightsId) -> bool:
        return self.visible.get(weights, False)

    def is_released(self, weights: WeightsId) -> bool:
        return weights in self._released

    def release(self, versions: tuple[WeightsId, ...]) -> None:
        for weights in versions:
            self._released[weights] = None
            if weights in self.visible:
                self.visible[weights] = False
        for oldest in list(self._released)[:-RELEASES_KEPT]:
            del self._released[oldest]

    def evict(self, *, is_needed: Callable[[WeightsId], bool]) -> list[Effect]:
        newest = self.newest
        gone = [
            weights
            for weights, pinned in self.visible.items()
            if not pinned and weights != newest and not is_needed(weights)
        ]
        for weights in gone:
            del self.visible[weights], self._manifests[weights]
        return [DropBuffer(buffer_id=whole_of(weights)) for weights in gone]

    def discard(self, weights: WeightsId) -> list[Effect]:
        """Drops a corrupt version, which must be fetched again, and the deltas."""
        del self.visible[weights], self._manifests[weights]
        self._undecided.discard(weights)
        return [DropBuffer(buffer_id=whole_of(weights)), *self._start_over()]

    # ── buffers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def has(self, buffer_id: BufferId) -> bool:
        if buffer_id.base is None:
            return buffer_id.weights in self.visible
        return any(delta.buffer_id == buffer_id for delta in self._line)

    def can_apply(self, delta: DeltaManifest) -> bool:
        base = self._manifests.get(delta.base)
        return base is not None and base.identity == delta.base_identity

    def to_announce(self) -> list[tuple[WeightManifest, bool, Path]]:
        newest = self.newest
        return [
            (self._manifests[weights], pinned, ())
            for weights, pinned in self.visible.items()
            if (pinned or weights == newest) and weights not in self._undecided
        ]

    def path_to(self, weights: WeightsId, arriving: Path) -> Path:
        """The deltas that lead to a version: held ones, then arriving ones."""
        ends_at = arriving[0].base if arriving else weights
        kept = self._line if self._line and self._line[-1].weights == ends_at else ()
        return (*kept, *arriving)

    def _extend(self, path: Path) -> list[Effect]:
        before = self._line
        is_continued = bool(before) and before[-1].weights == path[0].base
        line = (*before, *path) if is_continued else path
        # Deltas of more than half the whole version save little for relays that are behind.
        room = self._manifests[path[-1].weights].num_bytes // 2 if path[-1].weights in self._manifests else 0
        while len(line) > 1 and (len(line) > self._anchor_every or sum(delta.num_bytes for delta in line) > room):
            line = line[1:]
        self._line = line
        return [DropBuffer(buffer_id=delta.buffer_id) for delta in before if delta not in line]

    def _start_over(self) -> list[Effect]:
        before, self._line, self._since_anchor = self._line, (), 0
        return [DropBuffer(buffer_id=delta.buffer_id) for delta in before]
