"""A version handed over by the ranks of a trainer: each writes its own part into the shared memory of its host.

    host A   holder: rank 0 ── reserves ──┐      host B   holder: rank 2 ── reserves ──┐
             rank 0 ──own bytes──▶ ┌──────▼──────┐        rank 2 ──own bytes──▶ ┌──────▼──────┐
             rank 1 ──own bytes──▶ │ part of A   │        rank 3 ──own bytes──▶ │ part of B   │
                                   └─────────────┘                              └─────────────┘

Invariants:
- no rank has another's weights, and nothing but an adapter's matrices is gathered;
- a part is kept, and offered, only when every rank has said that its bytes are there: what a rank that failed or was
  too late has written is never read, since the memory is given up and its name with it;
- memory of the next version is taken while training goes on, each rank that of its own bytes.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from engine.live.process.links import Links
from engine.live.weights.handover import Handover
from engine.live.weights.offered_bytes import OfferedPart
from engine.live.weights.segments import SharedBytes, let_go_of, map_to_write, own_memory
from engine.policy.lineage import WeightsId
from engine.signs import at_work
from engine.training.port import SharedTrainer
from engine.weights.spans import Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    memory: str
    """The shared memory of its host."""
    share: Spans
    """The bytes of a version that it writes."""


class RankShare:
    """A rank's side of it, in its process."""

    def __init__(self, trainer: SharedTrainer) -> None:
        self._published = trainer.published
        self._handover: Handover | None = None
        self._room: tuple[SharedBytes, Future[memoryview]] | None = None
        self._maker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="share")

    def place(self) -> RankPlace:
        return RankPlace(memory=own_memory(), share=self._published.share)

    def get_ready(self, room: SharedBytes, spans: Spans) -> None:
        """Takes the memory of the own bytes there, beside what goes on. `spans`: those of the host."""
        own = self._published.share.of_version  # each within one of the host's
        parts = [(spans.place_of(start), spans.place_of(start) + end - start) for start, end in own]
        self._room = (room, self._maker.submit(map_to_write, room, parts))

    def wait_until_ready(self) -> None:
        """Until the memory for the next version is there."""
        if self._room is not None:
            self._room[1].result()

    def write(self, room: SharedBytes, spans: Spans) -> tuple[int, ...]:
        """What its values add to the sums of the version's tensors."""
        if self._room is None or self._room[0] != room:
            self.get_ready(room, spans)
        assert self._room is not None
        ready, self._room = self._room[1], None  # whatever comes of it, this memory is not written again
        with at_work("map"):
            memory = ready.result()
        sums = self._published.write(memory, spans)
        self._maker.submit(let_go_of, memory)
        return sums

    # ── of the rank that holds its host's memory ──────────────────────────────────────────────────────────────────

    def hold(self, handover: Handover | Links) -> None:
        """`Links`: those of the run, for a holder in another process than the trainer's."""
        if isinstance(handover, Links):
            handover = Handover(owner=f"{handover.run}-trainer", listen=handover.address(), token=handover.token)
        self._handover = handover

    def reserve(self, num_bytes: int) -> SharedBytes:
        return self._held.reserve(num_bytes)

    def keep(self, weights: WeightsId, spans: Spans) -> tuple[OfferedPart, SharedBytes]:
        """What the ranks of this host wrote, for the offer; and where they write next time."""
        self._held.keep_part(weights, spans)
        return self._held.part(weights), self._held.reserve(spans.num_bytes)

    def forget(self, weights: WeightsId) -> None:
        self._held.forget(weights)

    @property
    def _held(self) -> Handover:
        assert self._handover is not None, "another rank of this host holds its memory"
        return self._handover


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingHost:
    """A host on which ranks run; the first of them holds its memory."""

    ranks: tuple[int, ...]
    spans: Spans

    @property
    def holder(self) -> int:
        return self.ranks[0]


def hosts_of(places: Sequence[RankPlace]) -> list[TrainingHost]:
    """`places`: of the ranks, in order."""
    hosts = []
    for memory in dict.fromkeys(place.memory for place in places):
        ranks = tuple(rank for rank, place in enumerate(places) if place.memory == memory)
        spans = Spans.joined(span for rank in ranks for span in places[rank].share.of_version)
        hosts.append(TrainingHost(ranks=ranks, spans=spans))
    return hosts
