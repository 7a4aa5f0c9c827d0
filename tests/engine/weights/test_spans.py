"""Spans: offsets of a version's bytes in memory that has only some of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.weights.spans import Spans

VERSION = bytes(range(60))


@given(st.sets(st.integers(0, len(VERSION) - 1), min_size=1), st.data())
def test_bytes_go_into_the_memory_and_back_to_their_places(kept: set[int], data: st.DataObject) -> None:
    spans = Spans.joined((start, start + 1) for start in data.draw(st.permutations(sorted(kept))))
    memory = bytearray(spans.num_bytes)
    for start in kept:
        memory[spans.place_of(start)] = VERSION[start]
    assert bytes(memory) == bytes(VERSION[start] for start in sorted(kept))
    begin, end = sorted((data.draw(st.integers(0, len(memory))), data.draw(st.integers(0, len(memory)))))
    version = bytearray(len(VERSION))
    filled = begin
    for start, stop in spans.scattered(begin, end):
        version[start:stop] = memory[filled : filled + stop - start]
        filled += stop - start
    assert filled == end
    wanted = sorted(kept)[begin:end]
    assert version == bytes(value if value in wanted else 0 for value in VERSION)


def test_neighbours_are_one_span_and_nothing_is_written_twice() -> None:
    assert Spans.joined([(4, 8), (0, 4)]).is_all_of(8)
    assert not Spans.joined([(4, 8), (0, 3)]).is_all_of(8)
    with pytest.raises(ValueError, match="3 to 8 overlap"):
        Spans.joined([(3, 8), (0, 4)])
