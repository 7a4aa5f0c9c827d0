"""Several versions on one replica: a slot with a rollout engine for each, and the conversations that decode on it.
(Adapters share one engine and one cache: engine/inference/vllm/adapters.py.)

    fresh ──▶ slot of version 7 ──▶ ended          a slot whose last conversation has ended takes the next version
              slot of version 5 ──▶ ended

Invariants:
- a conversation decodes on one slot from its first token to its last, with that slot's weights;
- a slot whose weights are to be kept is never overwritten, and there are never more slots than the plan says;
- every slot has its memory before the first sample: no engine is built while others decode.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from engine.inference.port import EngineView, RolloutEngine, SequenceOutput
from engine.live.rollout.conversation import Conversation
from engine.policy.lineage import NO_WEIGHTS, WeightsId
from engine.weights.port import WeightVersion


@dataclass(slots=True, kw_only=True)
class WeightSlot:
    engine: RolloutEngine
    weights: WeightsId = NO_WEIGHTS
    decoding: dict[str, Conversation] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    """Versions that this engine has held → their epochs."""

    def install(self, version: WeightVersion, weights: WeightsId) -> None:
        self.engine.install(version)
        self.weights, self.epochs[weights.version] = weights, weights.epoch

    def named(self, version: int) -> WeightsId:
        return WeightsId(self.epochs.get(version, self.weights.epoch), version)


class WeightSlots:
    def __init__(self, make_engine: Callable[[], RolloutEngine], *, num_slots: int, share_cache: bool = False) -> None:
        """`share_cache`: one KV cache for all engines, else each has its share."""
        self._num_slots, self._num_caches = num_slots, 1 if share_cache else num_slots
        self._slots = [WeightSlot(engine=make_engine()) for _ in range(num_slots)]
        self.newest = self._slots[0]
        """The slot of the last install."""
        self.num_steps = 0
        """Engine steps of all slots."""

    def __iter__(self) -> Iterator[WeightSlot]:
        return iter(self._slots)

    @property
    def num_decoding(self) -> int:
        return sum(len(slot.decoding) for slot in self._slots)

    def of(self, weights: WeightsId) -> WeightSlot:
        """The slot of these weights. A single slot serves all: its weights may change under running samples."""
        if self._num_slots == 1:
            return self.newest
        return next(slot for slot in self._slots if slot.weights == weights)

    def taking(self, weights: WeightsId, keeps: Collection[WeightsId], *, over: WeightsId | None = None) -> WeightSlot:
        """The slot to install these weights in. `over`: the weights to replace, even while samples decode on them."""
        return self.free_for(weights, keeps) if over is None else self.of(over)

    def free_for(self, weights: WeightsId, keeps: Collection[WeightsId]) -> WeightSlot:
        """The slot to install these weights in: one that holds them, else the oldest whose weights are not kept."""
        if self._num_slots == 1:
            return self.newest
        free = [slot for slot in self._slots if slot.weights not in keeps]
        assert free, f"no free slot for {weights}; kept: {sorted(keeps)}"
        slot = min(free, key=lambda slot: (slot.weights != weights, slot.weights))
        assert not slot.decoding, f"{weights} would replace {slot.weights}, on which {len(slot.decoding)} decode"
        return slot

    def step(self) -> Iterator[tuple[WeightSlot, SequenceOutput]]:
        for slot in self._slots:
            if slot.decoding:
                self.num_steps += 1
                for output in slot.engine.step():
                    yield slot, output

    def view(self) -> EngineView:
        """One view of all engines together."""
        views = [slot.engine.view() for slot in self._slots]
        return EngineView(
            num_running=sum(view.num_running for view in views),
            num_waiting=sum(view.num_waiting for view in views),
            kv_used=sum(view.kv_used for view in views) / self._num_caches,
            version=self.newest.weights.version,
            num_prefilled=sum(view.num_prefilled for view in views),
            num_decoded=sum(view.num_decoded for view in views),
        )

    def kv_by_weights(self) -> tuple[tuple[WeightsId, float], ...]:
        """The share of the whole KV cache that each version uses."""
        return tuple((slot.weights, slot.engine.view().kv_used / self._num_caches) for slot in self._slots)
