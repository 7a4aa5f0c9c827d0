"""Handover of a version by the ranks of a trainer: each writes its part into the shared memory of its host.

    host A   holder: rank 0 ── reserves ──┐      host B   holder: rank 2 ── reserves ──┐
             rank 0 ──own bytes──▶ ┌──────▼──────┐        rank 2 ──own bytes──▶ ┌──────▼──────┐
             rank 1 ──own bytes──▶ │ part of A   │        rank 3 ──own bytes──▶ │ part of B   │
                                   └─────────────┘                              └─────────────┘

Invariants:
- no rank holds another's weights; only an adapter's matrices are gathered;
- a part is kept and offered only after every rank has reported its bytes as written: bytes of a rank that failed or was
  late are never read, since that memory is freed and its name retired;
- memory of the next version is allocated during training, by each rank for its own bytes.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.live.process.links import Links
from engine.live.weights.handover import Handover
from engine.live.weights.offered_bytes import OfferedPart
from engine.live.weights.segments import SharedBytes, map_to_write, own_memory, release_pages
from engine.policy.lineage import WeightsId
from engine.process.progress import working
from engine.weights.spans import Spans

if TYPE_CHECKING:  # it imports torch
    from engine.training.trainer import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    memory: str
    """The shared memory of its host."""
    share: Spans
    """The bytes of a version that this rank writes."""


class RankShare:
    """A rank's side of the handover, in the rank's process."""

    def __init__(self, trainer: "Trainer") -> None:
        self._published = trainer.published
        self._handover: Handover | None = None
        self._room: tuple[SharedBytes, Future[memoryview]] | None = None
        self._maker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="share")

    def place(self) -> RankPlace:
        return RankPlace(memory=own_memory(), share=self._published.share)

    def get_ready(self, room: SharedBytes, spans: Spans) -> None:
        """Allocates the memory of this rank's bytes in the background. `spans`: the host's."""
        own = self._published.share.of_version  # each lies within one span of the host
        parts = [(spans.place_of(start), spans.place_of(start) + end - start) for start, end in own]
        self._room = (room, self._maker.submit(map_to_write, room, parts))

    def wait_until_ready(self) -> None:
        """Waits until the memory for the next version is allocated."""
        if self._room is not None:
            self._room[1].result()

    def write(self, room: SharedBytes, spans: Spans) -> tuple[int, ...]:
        """Writes this rank's bytes; returns its addends to the sums of the version's tensors."""
        if self._room is None or self._room[0] != room:
            self.get_ready(room, spans)
        assert self._room is not None
        ready, self._room = self._room[1], None  # even on failure, this memory is not written again
        with working("map"):
            memory = ready.result()
        sums = self._published.write(memory, spans)
        self._maker.submit(release_pages, memory)
        return sums

    # ── for the rank that holds its host's memory ─────────────────────────────────────────────────────────────────

    def hold(self, handover: Handover | Links) -> None:
        """`Links`: the run's, for a holder in another process than the trainer's."""
        if isinstance(handover, Links):
            handover = Handover(owner=f"{handover.run}-trainer", listen=handover.address(), token=handover.token)
        self._handover = handover

    def reserve(self, num_bytes: int) -> SharedBytes:
        return self._held.reserve(num_bytes)

    def keep(self, weights: WeightsId, spans: Spans) -> tuple[OfferedPart, SharedBytes]:
        """Returns the part that this host's ranks wrote, for the offer, and the memory for their next one."""
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
    """`places`: of the ranks, in rank order."""
    hosts = []
    for memory in dict.fromkeys(place.memory for place in places):
        ranks = tuple(rank for rank, place in enumerate(places) if place.memory == memory)
        spans = Spans.joined(span for rank in ranks for span in places[rank].share.of_version)
        hosts.append(TrainingHost(ranks=ranks, spans=spans))
    return hosts
