"""Packed numbers behave like sequences, and survive pickling and validation."""

import pickle
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from engine.pipeline.packed import Floats, Ints, Marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    ids: Ints
    logprobs: Floats
    written: Marks


ADAPTER = TypeAdapter(Held)

held = st.builds(
    lambda ids, logprobs, written: Held(ids=Ints.of(ids), logprobs=Floats.of(logprobs), written=Marks.of(written)),
    ids=st.lists(st.integers(-(2**31), 2**31 - 1)),
    logprobs=st.lists(st.floats(width=32, allow_nan=False)),
    written=st.lists(st.booleans()),
)


@given(held)
def test_packed_numbers_survive_pickle_and_validation(one: Held) -> None:
    pickled = pickle.loads(pickle.dumps(one))  # noqa: S301 - our own
    assert pickled == one and hash(pickled) == hash(one)
    as_bytes = {"ids": one.ids.data, "logprobs": one.logprobs.data, "written": one.written.data}
    assert ADAPTER.validate_python(as_bytes) == one
    as_lists = {"ids": list(one.ids), "logprobs": list(one.logprobs), "written": list(one.written)}
    assert ADAPTER.validate_python(as_lists) == one
    assert Ints.of(list(one.ids)) == one.ids and len(one.ids) == len(list(one.ids))


def test_packed_numbers_are_a_sequence_of_plain_numbers() -> None:
    ids, written = Ints.of([5, -1, 151_000]), Marks.of([True, False])
    assert (ids[2], ids[:2], list(ids), 151_000 in ids) == (151_000, (5, -1), [5, -1, 151_000], True)
    assert (written[1], tuple(written), bool(Marks())) == (False, (True, False), False)
    assert Floats.of([-0.5])[0] == -0.5
    assert ids != Ints.of([5]) and ids != (5, -1, 151_000) and Ints() != Floats()


def test_number_out_of_range_is_rejected() -> None:
    with pytest.raises(OverflowError):
        Ints.of([2**31])
