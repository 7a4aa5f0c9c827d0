"""Rows and blocks: first come first served, no block held twice or lost, and all end however scarce blocks are."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.inference.block_manager import BlockManager, BlockTable
from engine.inference.port import SamplingParams, SequenceRequest
from engine.inference.requests import DrawKind
from engine.inference.scheduler import LiveSequence, Plan, Scheduler

BLOCK = 4


def live(name: str, prompt: tuple[int, ...] = (1, 2), new: int = 4) -> LiveSequence:
    sampling = SamplingParams(max_new_tokens=new, temperature=1.0, seed=0)
    request = SequenceRequest(sequence_id=name, prompt_ids=prompt, sampling=sampling)
    tokens = list(prompt)
    return LiveSequence(
        request=request,
        max_new_tokens=new,
        tokens=tokens,
        logprobs=[],
        versions=[],
        table=BlockTable(tokens=tokens),
        kind=DrawKind.of(sampling),
    )


def blocks_of(num_blocks: int, num_backed: int | None = None) -> BlockManager:
    backed = num_blocks if num_backed is None else num_backed
    return BlockManager(num_blocks, num_backed=backed, version=0, block_tokens=BLOCK)


def scheduler_of(max_rows: int, num_blocks: int = 100, prefill_tokens: int = 1_000) -> Scheduler:
    return Scheduler(max_rows=max_rows, blocks=blocks_of(num_blocks), prefill_tokens=prefill_tokens)


def names(scheduler: Scheduler) -> list[str]:
    return [each.sequence_id for each in scheduler.rows]


def table_of(blocks: BlockManager, tokens: list[int], *, computed: bool = True) -> BlockTable:
    table = BlockTable(tokens=tokens)
    blocks.allocate(table)
    if computed:
        blocks.mark_computed(table, len(tokens))
    return table


# Rows ----------------------------------------------------------------------------------------------------------------


def test_waiting_sequences_start_in_order_as_rows_become_free() -> None:
    scheduler = scheduler_of(2)
    scheduler.submit([live(name) for name in "abc"])
    assert scheduler.schedule().num_joining == 2
    assert names(scheduler) == ["a", "b"]
    assert scheduler.schedule() == Plan()
    scheduler.retire([0])
    assert scheduler.schedule().num_joining == 1
    assert names(scheduler) == ["b", "c"]


@given(st.integers(1, 12), st.data())
def test_moves_that_close_gaps_keep_every_remaining_row(num_rows: int, data: st.DataObject) -> None:
    scheduler = scheduler_of(num_rows)
    scheduler.submit([live(str(i)) for i in range(num_rows)])
    scheduler.schedule()
    cache = names(scheduler)  # contents of the cache's rows
    ended = data.draw(st.sets(st.integers(0, num_rows - 1)))
    for move in scheduler.retire(sorted(ended)):
        cache[move.target] = cache[move.source]
    assert names(scheduler) == cache[: num_rows - len(ended)]
    assert set(names(scheduler)) == {str(i) for i in range(num_rows)} - {str(i) for i in ended}


def test_submit_with_an_id_in_flight_takes_none() -> None:
    scheduler = scheduler_of(2)
    scheduler.submit([live("a")])
    for ids in (["b", "a"], ["c", "c"]):
        with pytest.raises(ValueError, match="sequence_id"):
            scheduler.submit([live(name) for name in ids])
    assert len(scheduler.waiting) == 1
    scheduler.schedule()
    scheduler.retire([0])
    scheduler.submit([live("a")])  # free again once it has ended


def test_long_prompt_is_prefilled_in_chunks_before_later_ones() -> None:
    scheduler = scheduler_of(3, prefill_tokens=8)
    scheduler.submit([live("long", tuple(range(30))), live("short", (90, 91, 92))])
    seen = []
    while scheduler.num_running + len(scheduler.waiting) > len(scheduler.rows):
        seen.append([(each.live.sequence_id, each.start, each.end) for each in scheduler.schedule().chunks])
    assert seen == [[("long", 0, 8)], [("long", 8, 16)], [("long", 16, 24)], [("long", 24, 29), ("short", 0, 2)]]
    assert names(scheduler) == ["long", "short"]


def test_samples_of_one_prompt_prefill_shared_tokens_once() -> None:
    scheduler = scheduler_of(3)
    scheduler.submit([live(name, tuple(range(11))) for name in "abc"])
    plan = scheduler.schedule()
    assert [(each.live.sequence_id, each.start, each.end) for each in plan.chunks] == [("a", 0, 10)]
    copied = [(each.live.sequence_id, each.source.sequence_id, each.start, each.end) for each in plan.copied]
    assert copied == [("b", "a", 8, 10), ("c", "a", 8, 10)]
    first, *others = (each.table.blocks for each in scheduler.rows)
    assert all(blocks[:2] == first[:2] and blocks[2] != first[2] for blocks in others)


def test_later_sample_copies_from_a_row_or_else_prefills() -> None:
    scheduler = scheduler_of(2)
    scheduler.submit([live(name, (1, 2, 3)) for name in "abcd"])
    scheduler.schedule()
    scheduler.retire([0])
    (copied,) = scheduler.schedule().copied
    assert (copied.live.sequence_id, copied.source.sequence_id) == ("c", "b")
    scheduler.retire([0, 1])
    plan = scheduler.schedule()
    assert not plan.copied and [each.live.sequence_id for each in plan.chunks] == ["d"]


def test_nothing_is_copied_from_blocks_of_other_weights() -> None:
    scheduler = scheduler_of(2)
    scheduler.submit([live("a", (1, 2, 3))])
    scheduler.schedule()
    scheduler.forget(1)
    scheduler.submit([live("b", (1, 2, 3))])
    plan = scheduler.schedule()
    assert not plan.copied and [each.live.sequence_id for each in plan.chunks] == ["b"]


def test_sharing_sequence_prefills_tokens_the_first_left() -> None:
    scheduler = scheduler_of(3, prefill_tokens=8)
    scheduler.submit([live(name, tuple(range(20))) for name in "ab"])
    (chunk,) = scheduler.schedule().chunks
    scheduler.leave([chunk.live])
    assert [(each.live.sequence_id, each.start, each.end) for each in scheduler.schedule().chunks] == [("b", 8, 16)]


def test_youngest_is_preempted_and_readmitted_first() -> None:
    scheduler = scheduler_of(3, num_blocks=7)
    scheduler.submit([live(name, (i, i, i), new=9) for i, name in enumerate("abcd")])
    while not scheduler.schedule().preempted:
        for each in scheduler.rows:
            each.tokens.append(0)
    assert names(scheduler) == ["a", "b"]
    assert [each.sequence_id for each in scheduler.waiting] == ["c", "d"]
    assert len(scheduler.waiting[0].tokens) == 3 + 6
    scheduler.retire([0])
    scheduler.schedule()
    assert names(scheduler) == ["b", "c"]


# Blocks --------------------------------------------------------------------------------------------------------------


def test_equal_prefixes_share_blocks_and_others_do_not() -> None:
    blocks = blocks_of(20)
    first = table_of(blocks, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    same = table_of(blocks, [1, 2, 3, 4, 5, 6, 7, 8, 10])
    other = table_of(blocks, [1, 2, 3, 4, 5, 6, 7, 0, 9])
    shifted = table_of(blocks, [0, 1, 2, 3, 4, 5, 6, 7, 8])
    assert same.blocks[:2] == first.blocks[:2] and same.blocks[2] != first.blocks[2]
    assert other.blocks[0] == first.blocks[0] and not set(other.blocks[1:]) & set(first.blocks)
    assert not set(shifted.blocks) & set(first.blocks)
    assert blocks.num_held == 3 + 1 + 2 + 3


def test_the_block_that_the_last_token_fills_is_never_shared() -> None:
    blocks = blocks_of(20)
    first, second = table_of(blocks, [1, 2, 3, 4]), table_of(blocks, [1, 2, 3, 4])
    assert first.blocks != second.blocks  # both write their fourth token when they decode it, so they need own blocks


def test_blocks_of_an_ended_sequence_are_reused_until_evicted() -> None:
    blocks = blocks_of(4)
    ended = table_of(blocks, [1, 2, 3, 4, 5, 6])
    ended.tokens += [7, 8, 9]
    blocks.extend(ended)
    blocks.publish(ended, 8)
    used = list(ended.blocks)
    blocks.release(ended)
    assert blocks.num_held == 0
    next_turn = table_of(blocks, [1, 2, 3, 4, 5, 6, 7, 8, 20, 21], computed=False)
    assert next_turn.blocks[:2] == used[:2]
    assert blocks.num_computed(next_turn) == 8
    blocks.release(next_turn)
    everything = table_of(blocks, list(range(50, 66)))
    assert len(set(everything.blocks)) == 4
    blocks.release(everything)
    assert blocks.num_computed(table_of(blocks, [1, 2, 3, 4, 5, 6, 7, 8, 20], computed=False)) == 0


def test_least_recently_used_block_is_evicted_first() -> None:
    blocks = blocks_of(4)
    for first in (10, 20, 30):
        blocks.release(table_of(blocks, [first] * 5))
    blocks.release(table_of(blocks, [10] * 5))  # used again
    held = table_of(blocks, [40] * 5)  # the free block, and the one of 20
    assert blocks.num_computed(table_of(blocks, [10] * 5, computed=False)) == 4
    blocks.release(held)
    assert blocks.num_computed(table_of(blocks, [20] * 5, computed=False)) == 0


def test_blocks_of_old_weights_are_never_found() -> None:
    blocks = blocks_of(20)
    kept, running = table_of(blocks, [1] * 9), table_of(blocks, [2] * 9)
    blocks.release(kept)
    blocks.forget(version=1)
    assert not blocks.may_publish(running, 8)
    for token in (1, 2):
        assert blocks.num_computed(table_of(blocks, [token] * 9, computed=False)) == 0
    assert blocks.num_held == 3 + 3 + 3


def test_block_never_computed_is_not_kept() -> None:
    blocks = blocks_of(20)
    blocks.release(table_of(blocks, [1] * 9, computed=False))
    assert blocks.num_computed(table_of(blocks, [1] * 9, computed=False)) == 0


def test_memory_grows_only_for_held_blocks() -> None:
    blocks = blocks_of(1_000, num_backed=4)
    for token in range(50):
        blocks.release(table_of(blocks, [token] * 9))
    assert blocks.num_backed == 4
    held = [table_of(blocks, [token] * 9) for token in range(3)]
    assert 9 <= blocks.num_backed <= 16
    assert len({block for each in held for block in each.blocks}) == 9


class Blocks(RuleBasedStateMachine):
    """Compares with a model that only counts which table holds which block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = blocks_of(12, num_backed=3)
        self.tables: list[BlockTable] = []
        self.written: dict[int, tuple[int, ...]] = {}  # block → the prefix up to its end that was computed in it
        self.version = 0

    @rule(start=st.integers(0, 2), length=st.integers(1, 20), tail=st.integers(0, 3))
    def allocate(self, start: int, length: int, tail: int) -> None:
        table = BlockTable(tokens=[start] * (length - 1) + [tail])
        if not self.blocks.can_allocate(table):
            return
        self.blocks.allocate(table)
        num_found = min(self.blocks.num_computed(table), len(table.tokens) - 1)
        for at in range(num_found // BLOCK):
            assert self.written[table.blocks[at]] == (self.version, *table.tokens[: (at + 1) * BLOCK])
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), num_tokens=st.integers(1, 20))
    def compute(self, data: st.DataObject, num_tokens: int) -> None:
        table = data.draw(st.sampled_from(self.tables))
        num_tokens = min(num_tokens, len(table.tokens))
        for at in range(self.blocks.num_computed(table) // BLOCK, num_tokens // BLOCK):
            self.written[table.blocks[at]] = (self.version, *table.tokens[: (at + 1) * BLOCK])
        self.blocks.mark_computed(table, num_tokens)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), token=st.integers(0, 3))
    def grow(self, data: st.DataObject, token: int) -> None:
        table = data.draw(st.sampled_from(self.tables))
        table.tokens.append(token)
        if self.blocks.can_extend(table):
            self.blocks.extend(table)
        else:
            table.tokens.pop()

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), publish=st.booleans())
    def end(self, data: st.DataObject, publish: bool) -> None:
        table = data.draw(st.sampled_from(self.tables))
        if publish and table.generation == self.blocks._generation:
            self.compute_all(table)
            self.blocks.publish(table, len(table.tokens) - 1)
        self.tables.remove(table)
        self.blocks.release(table)

    def compute_all(self, table: BlockTable) -> None:
        for at in range(self.blocks.num_computed(table) // BLOCK, (len(table.tokens) - 1) // BLOCK):
            self.written[table.blocks[at]] = (self.version, *table.tokens[: (at + 1) * BLOCK])

    @rule()
    def forget(self) -> None:
        self.version += 1
        self.blocks.forget(self.version)

    @invariant()
    def every_block_is_in_one_state_and_counted_right(self) -> None:
        blocks = self.blocks
        held = Counter(block for table in self.tables for block in table.blocks)
        assert all(len(set(table.blocks)) == len(table.blocks) for table in self.tables)
        assert {block: count for block, count in enumerate(blocks._counts) if count} == held
        free, kept = set(blocks._free), set(blocks._kept)
        assert len(blocks._free) == len(free)
        assert not free & kept and not free & held.keys() and not kept & held.keys()
        assert free | kept | held.keys() == set(range(blocks.num_backed))
        assert blocks.num_held == len(held) <= blocks.num_blocks

    @invariant()
    def a_digest_leads_to_one_block_and_kept_ones_are_computed(self) -> None:
        blocks = self.blocks
        assert {digest: block for block, digest in blocks._digest_of.items()} == blocks._block_of
        assert all(block in blocks._digest_of and blocks._computed[block] for block in blocks._kept)
        assert not blocks._digest_of.keys() & set(blocks._free)


class Sequences(RuleBasedStateMachine):
    """A scheduler whose sequences have random tokens and lengths, with far too few blocks."""

    num_blocks = 9

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = scheduler_of(4, num_blocks=self.num_blocks, prefill_tokens=6)
        self.submitted = 0
        self.left: list[str] = []
        self.read: dict[str, int] = {}

    @rule(start=st.integers(0, 1), length=st.integers(1, 16), new=st.integers(1, 18), count=st.integers(1, 4))
    def submit(self, start: int, length: int, new: int, count: int) -> None:
        new = min(new, self.num_blocks * BLOCK - length)
        names = [str(self.submitted + at) for at in range(count)]
        self.scheduler.submit([live(name, (start,) * length, new) for name in names])
        self.submitted += count

    @rule(num_steps=st.integers(1, 12))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            before = names(self.scheduler)
            plan = self.scheduler.schedule()
            for move in plan.moves:
                before[move.target] = before[move.source]
            staying = len(self.scheduler.rows) - plan.num_joining
            assert names(self.scheduler)[:staying] == before[:staying]
            assert sum(each.end - each.start for each in plan.chunks) <= 6
            for each in self.scheduler.rows:
                assert len(each.table.blocks) == -(-len(each.tokens) // BLOCK)
                each.tokens.append(len(each.tokens) % 2)
                each.logprobs.append(0.0)
            ended = [row for row, each in enumerate(self.scheduler.rows) if len(each.logprobs) == each.max_new_tokens]
            self.left += [self.scheduler.rows[row].sequence_id for row in ended]
            self.scheduler.retire(ended)

    @precondition(lambda self: self.scheduler.live)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        each = self.scheduler.live[data.draw(st.sampled_from(sorted(self.scheduler.live)))]
        self.scheduler.leave([each])
        self.left.append(each.sequence_id)

    @rule()
    def new_weights(self) -> None:
        self.scheduler.forget(version=len(self.left) + 1)

    @invariant()
    def each_is_in_one_place_and_the_waiting_hold_nothing(self) -> None:
        scheduler = self.scheduler
        places = [*scheduler.waiting, *scheduler.prefilling, *scheduler.rows]
        assert sorted(each.sequence_id for each in places) == sorted(scheduler.live)
        assert not any(each.table.blocks for each in scheduler.waiting)
        assert scheduler.num_running <= 4
        started = [each.arrival for each in scheduler.prefilling + scheduler.rows]
        assert max(started, default=-1) < min((each.arrival for each in scheduler.waiting), default=10**9)

    def teardown(self) -> None:
        for _ in range(2_000):
            if not self.scheduler.live:
                break
            self.step(1)
        assert sorted(self.left) == sorted(map(str, range(self.submitted)))
        assert self.scheduler._blocks.num_held == 0


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
