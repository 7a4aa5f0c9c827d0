"""Weights side by side: a rollout engine for each version that a replica holds, and what decodes on it.

    fresh ──▶ lane of version 7 ──▶ ended          a lane whose last conversation has ended takes the next version
              lane of version 5 ──▶ ended

Invariants:
- a conversation decodes on the lane of its weights, from its first word to its last;
- a lane with weights that are to be kept is never overwritten, and there are no more lanes than slots;
- a second engine is made when it is needed first: a replica that holds one version pays for one.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from engine.inference.port import EngineView, RolloutEngine, SequenceOutput
from engine.live.rollout.conversation import Conversation
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.weights.port import WeightVersion


@dataclass(slots=True, kw_only=True)
class Lane:
    engine: RolloutEngine
    weights: WeightsId = NO_WEIGHTS
    decoding: dict[str, Conversation] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    """Of the versions that this engine has held."""

    def install(self, version: WeightVersion, weights: WeightsId) -> None:
        self.engine.install(version)
        self.weights, self.epochs[weights.version] = weights, weights.epoch

    def named(self, version: int) -> WeightsId:
        return WeightsId(self.epochs.get(version, self.weights.epoch), version)


class Lanes:
    def __init__(self, make_engine: Callable[[], RolloutEngine], *, num_slots: int) -> None:
        self._make_engine, self._num_slots = make_engine, num_slots
        self._lanes = [Lane(engine=make_engine())]
        self.newest = self._lanes[0]
        """The one that took weights last."""

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    @property
    def num_decoding(self) -> int:
        return sum(len(lane.decoding) for lane in self._lanes)

    def of(self, weights: WeightsId) -> Lane:
        """With one slot there is one, whose weights may have changed under what runs."""
        if self._num_slots == 1:
            return self.newest
        return next(lane for lane in self._lanes if lane.weights == weights)

    def free_for(self, weights: WeightsId, keeps: Collection[WeightsId]) -> Lane:
        """Where these weights go; what nobody needs any more is overwritten first."""
        if self._num_slots == 1:
            return self.newest
        free = [lane for lane in self._lanes if lane.weights not in keeps]
        if not free:
            assert len(self._lanes) < self._num_slots, f"no slot for {weights} beside {sorted(keeps)}"
            free = [Lane(engine=self._make_engine())]
            self._lanes += free
        lane = min(free, key=lambda lane: (lane.weights != weights, lane.weights))
        assert not lane.decoding, f"{weights} over {lane.weights}, on which {len(lane.decoding)} decode"
        return lane

    def step(self) -> Iterator[tuple[Lane, SequenceOutput]]:
        for lane in self._lanes:
            if lane.decoding:
                for output in lane.engine.step():
                    yield lane, output

    def view(self) -> EngineView:
        """Of all of them together: each has its share of the replica's cache."""
        views = [lane.engine.view() for lane in self._lanes]
        return EngineView(
            num_running=sum(view.num_running for view in views),
            num_waiting=sum(view.num_waiting for view in views),
            kv_used=sum(view.kv_used for view in views) / self._num_slots,
            version=self.newest.weights.version,
            num_prefilled=sum(view.num_prefilled for view in views),
            num_decoded=sum(view.num_decoded for view in views),
        )

    def kv_by_weights(self) -> tuple[tuple[WeightsId, float], ...]:
        """What each takes of the whole."""
        return tuple((lane.weights, lane.engine.view().kv_used / self._num_slots) for lane in self._lanes)
