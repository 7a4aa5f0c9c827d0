"""Rectangles hold every sequence once, with little padding and within the token limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.models.packing import lay_out, pack, padding_fraction

lengths_given = st.lists(st.integers(0, 60), max_size=40)


@given(lengths_given, st.integers(1, 200))
def test_every_sequence_is_in_exactly_one_row_wide_enough(lengths: list[int], max_tokens: int) -> None:
    rectangles = lay_out(lengths, max_tokens=max_tokens)
    assert sorted(member for one in rectangles for member in one.members) == list(range(len(lengths)))
    for one in rectangles:
        assert one.width == max(lengths[member] for member in one.members)
        assert one.num_tokens <= max_tokens or len(one.members) == 1


def test_only_attention_sees_padding_positions_start_at_zero() -> None:
    sequences = [[7, 8, 9], [5, 6]]
    packed = pack(sequences, lay_out([3, 2], max_tokens=100), "cpu")
    assert packed.ids_T.tolist() == [5, 6, 7, 8, 9]
    assert packed.positions_T.tolist() == [0, 1, 0, 1, 2]
    assert {member: list(places) for member, places in packed.places.items()} == {1: [0, 1], 0: [2, 3, 4]}
    assert packed.spread_F is not None and packed.spread_F.tolist() == [0, 1, 0, 2, 3, 4], "one place is padding"
    assert packed.gather_T is not None and packed.gather_T.tolist() == [0, 1, 3, 4, 5]


def test_equal_lengths_need_no_index() -> None:
    packed = pack([[1, 2], [3, 4]], lay_out([2, 2], max_tokens=100), "cpu")
    assert packed.spread_F is None and packed.gather_T is None


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=20))
def test_shared_prefix_is_packed_once_and_places_are_complete(drawn: list[tuple[int, int, int]]) -> None:
    """`drawn`: the length of each sequence's prompt, the number of tokens that follow, and their id."""
    sequences = [[prompt] * prompt + [10 + own] * rest for prompt, rest, own in drawn]
    rectangles = lay_out([len(each) for each in sequences], max_tokens=30)
    packed = pack(sequences, rectangles, "cpu", shareable=[prompt for prompt, _, _ in drawn])
    prompts = {prompt for prompt, _, _ in drawn}
    assert len(packed.ids_T) == sum(prompts) + sum(rest for _, rest, _ in drawn)
    for member, sequence in enumerate(sequences):
        places = list(packed.places[member])
        assert packed.ids_T[places].tolist() == sequence
        assert packed.positions_T[places].tolist() == list(range(len(sequence)))
    if packed.spread_F is not None and packed.gather_T is not None:
        assert packed.spread_F[packed.gather_T].tolist() == list(range(len(packed.ids_T)))


def test_a_heavy_tail_costs_little_padding() -> None:
    lengths = [round(6 * 1.07**k) for k in range(36)] * 3
    assert 0.0 < padding_fraction(lengths, lay_out(lengths, max_tokens=10_000)) < 0.1


def test_only_some_of_the_sequences_can_be_laid_out() -> None:
    rectangles = lay_out([9, 2, 3, 2, 9], max_tokens=100, only=[3, 2])
    assert [(one.members, one.width) for one in rectangles] == [((3, 2), 3)]
    assert padding_fraction([9, 2, 3, 2, 9], rectangles) == pytest.approx(1 / 6)
