"""The scheduler of sequences: waiting, in prefill, or in a row of the decode batch. No torch.

    submit → waiting ──blocks and a row──▶ prefilling ──all but its last token──▶ row 0 … row n-1 → ended
                ▲                                                                        │
                └────────── no block left: the youngest gives its blocks back ───────────┘

Invariants:
- sequences start in the order of their submission; a preempted one goes to the front again, with all its tokens;
- the oldest is never preempted for a younger one, and each fits alone (engine/inference/requests.py), so at least one
  always progresses and all end;
- one pass prefills at most `prefill_tokens` tokens, so a long prompt never delays the rows for longer;
- rows 0 … n-1 are in use and no others: the last row fills the gap of one that ends, so the batch is as large as the
  number of running sequences, which matters on a heavy tail;
- a sequence leaves exactly once, and releases its blocks then;
- the samples of one prompt prefill it once: its last tokens, which fill no block and cannot be shared, are copied from
  a sample that still has a row.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.inference.block_manager import Beginning, BlockManager, BlockTable
from engine.inference.port import KvPages, SequenceOutput, SequenceRequest
from engine.inference.requests import DrawKind
from engine.inference.stop import StopWatcher


@dataclass(slots=True, kw_only=True, eq=False)
class LiveSequence:
    request: SequenceRequest
    max_new_tokens: int
    """The requested number, or fewer where the model's positions end."""
    tokens: list[int]
    """Prompt and answer."""
    logprobs: list[float]
    versions: list[int]
    table: BlockTable
    kind: DrawKind
    kv: KvPages | None = None
    """Pages that came with the request and are not written to blocks yet."""
    stop: StopWatcher | None = None
    arrival: int = -1
    beginning: Beginning | None = None
    """Identifies all its tokens but the last when it got its row; None: no other sequence may copy from it."""
    num_read: int = 0
    """Tokens with keys and values in its blocks when it got its row, or so far during prefill."""
    routes: bytearray = field(default_factory=bytearray)
    """Routes of its first tokens, copied from blocks that it had before (engine/inference/route_pages.py)."""

    @property
    def sequence_id(self) -> str:
        return self.request.sequence_id

    @property
    def answer(self) -> list[int]:
        return self.tokens[len(self.request.prompt_ids) :]

    def end(self, reason: Literal["stop", "length", "aborted"]) -> SequenceOutput:
        return SequenceOutput(
            sequence_id=self.sequence_id,
            token_ids=tuple(self.answer),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            reason=reason,
            routes=bytes(self.routes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedBlocks:
    """Blocks with the first `num_tokens` tokens of a sequence."""

    live: LiveSequence
    blocks: list[int]
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A chunk of a sequence to prefill: tokens start … end - 1."""

    live: LiveSequence
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """Keys and values of tokens start … end - 1, from pages that came with the request."""

    live: LiveSequence
    pages: KvPages
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Keys and values of tokens start … end - 1, in the blocks of another sequence with the same beginning."""

    live: LiveSequence
    source: LiveSequence
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMove:
    source: int
    target: int


@dataclass(slots=True, kw_only=True)
class Plan:
    """A step's plan, in this order: save the routes of preempted blocks, close gaps, write pages, prefill chunks, copy,
    and let the last `num_joining` rows join."""

    preempted: list[ComputedBlocks] = field(default_factory=list)
    """Of preempted sequences. Other sequences get these blocks now."""
    moves: list[RowMove] = field(default_factory=list)
    brought: list[Brought] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    copied: list[Copied] = field(default_factory=list)
    num_joining: int = 0


class Scheduler:
    def __init__(self, *, max_rows: int, blocks: BlockManager, prefill_tokens: int) -> None:
        self._max_rows = max_rows
        self._blocks = blocks
        self._prefill_tokens = prefill_tokens
        self._num_arrived = 0
        self.live: dict[str, LiveSequence] = {}
        self.waiting: deque[LiveSequence] = deque()
        self.prefilling: list[LiveSequence] = []
        self.rows: list[LiveSequence] = []
        self._readers: dict[Beginning, LiveSequence] = {}
        """For each beginning a row that has it in its blocks."""

    @property
    def num_running(self) -> int:
        return len(self.rows) + len(self.prefilling)

    def submit(self, sequences: Sequence[LiveSequence]) -> None:
        """All or none."""
        ids = [each.sequence_id for each in sequences]
        repeated = {each for each in ids if each in self.live or ids.count(each) > 1}
        if repeated:
            raise ValueError(f"sequence_id: must not be in flight already, got {min(repeated)!r}")
        for each in sequences:
            each.arrival = self._num_arrived
            self._num_arrived += 1
            self.live[each.sequence_id] = each
        self.waiting.extend(sequences)

    def in_flight(self, sequence_ids: Sequence[str]) -> list[LiveSequence]:
        """Each once; ignores ids that are not in flight (any more)."""
        return [self.live[name] for name in dict.fromkeys(sequence_ids) if name in self.live]

    # A step ------------------------------------------------------------------------------------------------------

    def schedule(self) -> Plan:
        plan = Plan()
        self._make_room(plan)
        self._admit(plan)
        self._prefill(plan)
        for each in self.rows[len(self.rows) - plan.num_joining :]:
            if each.beginning is not None:  # the youngest one, as it stays longest
                self._readers[each.beginning] = each
        return plan

    def _make_room(self, plan: Plan) -> None:
        """Gives every row a slot for the token that it is about to read."""
        size = self._blocks.block_tokens
        growing = [each for each in self.rows if len(each.tokens) > len(each.table.blocks) * size]
        for each in sorted(growing, key=lambda live: live.arrival):
            while each.table.blocks and not self._blocks.can_extend(each.table):
                self._preempt(max(self.rows + self.prefilling, key=lambda live: live.arrival), plan)
            if each.table.blocks:  # otherwise it was preempted itself, as the youngest
                self._blocks.extend(each.table)

    def _preempt(self, youngest: LiveSequence, plan: Plan) -> None:
        given_back = ComputedBlocks(live=youngest, blocks=youngest.table.blocks, num_tokens=self.num_computed(youngest))
        plan.preempted.append(given_back)
        if youngest in self.prefilling:
            self.prefilling.remove(youngest)
        else:
            plan.moves += self._close_gaps([self.rows.index(youngest)])
        self._give_back(youngest)
        youngest.num_read, youngest.table.shareable = 0, True  # one version will recompute all of it
        self.waiting.appendleft(youngest)

    def _admit(self, plan: Plan) -> None:
        while self.waiting and self.num_running < self._max_rows:
            each = self.waiting[0]
            # Leaves a block for each running sequence; otherwise this one would soon be preempted.
            if not self._blocks.can_allocate(each.table, spare=self.num_running):
                return
            self.waiting.popleft()
            if each.kv is not None and each.kv.mixed:
                each.table.shareable = False
            self._blocks.allocate(each.table)
            self.prefilling.append(each)
            self._import_pages(each, plan)

    def _import_pages(self, each: LiveSequence, plan: Plan) -> None:
        last = len(each.tokens) - 1
        each.num_read = min(self._blocks.num_computed(each.table), last)
        if each.kv is not None:
            end = min(each.kv.num_tokens, last)
            if end > each.num_read:
                plan.brought.append(Brought(live=each, pages=each.kv, start=each.num_read, end=end))
                each.num_read = end
                self._blocks.mark_computed(each.table, end)
            each.kv = None

    def _prefill(self, plan: Plan) -> None:
        """First come, first served: a sequence that shares blocks which another still computes comes after that one, so
        its own tokens are never prefilled before those."""
        budget = self._prefill_tokens
        while self.prefilling:
            each = self.prefilling[0]
            last = len(each.tokens) - 1  # the last token is decoded
            each.num_read = max(each.num_read, min(self._blocks.num_computed(each.table), last))
            each.beginning = self._blocks.beginning(each.table)
            self._copy_rest(each, last, plan)
            end = min(last, each.num_read + budget)
            if end > each.num_read:
                plan.chunks.append(Chunk(live=each, start=each.num_read, end=end))
                budget -= end - each.num_read
                each.num_read = end
                self._blocks.mark_computed(each.table, end)
            if end < last:
                return
            self.rows.append(self.prefilling.pop(0))
            plan.num_joining += 1
            if each.beginning is not None:
                self._readers.setdefault(each.beginning, each)  # the first one, which alone is prefilled in this pass

    def _copy_rest(self, each: LiveSequence, last: int, plan: Plan) -> None:
        source = None if each.beginning is None else self._readers.get(each.beginning)
        if source is not None and each.num_read < last:
            plan.copied.append(Copied(live=each, source=source, start=each.num_read, end=last))
            each.num_read = last
            self._blocks.mark_computed(each.table, last)

    def _give_back(self, each: LiveSequence) -> None:
        if each.beginning is not None and self._readers.get(each.beginning) is each:
            del self._readers[each.beginning]
        self._blocks.release(each.table)

    def arrange(self, order: Sequence[int]) -> None:
        """Row i becomes the former row order[i]."""
        self.rows = [self.rows[row] for row in order]

    def num_computed(self, live: LiveSequence) -> int:
        """The number of tokens with keys and values in the sequence's blocks or row."""
        return len(live.tokens) - 1 if any(each is live for each in self.rows) else live.num_read

    # Leave -------------------------------------------------------------------------------------------------------

    def leave(self, sequences: Collection[LiveSequence]) -> list[RowMove]:
        """Removes the sequences; returns the row moves, in order, that close the gaps."""
        for each in sequences:
            del self.live[each.sequence_id]
            self._give_back(each)
        gone = set(map(id, sequences))
        self.waiting = deque(each for each in self.waiting if id(each) not in gone)
        self.prefilling = [each for each in self.prefilling if id(each) not in gone]
        return self._close_gaps([row for row, each in enumerate(self.rows) if id(each) in gone])

    def retire(self, rows: Sequence[int]) -> list[RowMove]:
        """A faster `leave` for the rows that end in a step."""
        for row in rows:
            del self.live[self.rows[row].sequence_id]
            self._give_back(self.rows[row])
        return self._close_gaps(rows)

    def _close_gaps(self, rows: Sequence[int]) -> list[RowMove]:
        moves: list[RowMove] = []
        for row in sorted(rows, reverse=True):  # from the end, so that the last row is never one of these
            last = self.rows.pop()
            if row < len(self.rows):
                self.rows[row] = last
                moves.append(RowMove(source=len(self.rows), target=row))
        return moves

    def forget(self, version: int) -> None:
        """New weights: drops pages of the old ones, and stops sharing of running sequences, which will mix both."""
        self._blocks.forget(version)
        self._readers.clear()
        for each in self.waiting:
            each.kv = None
        for each in self.prefilling + self.rows:
            each.table.shareable = False
