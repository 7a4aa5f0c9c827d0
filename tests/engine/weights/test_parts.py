"""Parts of tensors on several workers: only those that tile a tensor with the trainer's bits pass."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.policy.lineage import WeightsId
from engine.weights.parts import HeldParts, Part, Rectangle, check_held, tile, whole_of
from engine.weights.probe import OtherWeights
from engine.weights.snapshot import pack_weights
from engine.weights.sums import fetched, published_sums, sum_of_rectangle

WEIGHT, NORM = "q_proj.weight", "norm.weight"
TENSORS = {WEIGHT: torch.randn(8, 6).bfloat16(), NORM: torch.randn(6).bfloat16()}
SHAPES = {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}
MANIFEST = pack_weights(TENSORS, weights=WeightsId(0, 3)).manifest
EXPECTED = published_sums(MANIFEST)
TOP, BOTTOM = Rectangle(0, 0, 4, 6), Rectangle(4, 0, 4, 6)


def part(name: str, place: Rectangle, tensor: Tensor | None = None) -> Part:
    """`tensor`: the whole one of which the worker holds a part."""
    whole = TENSORS[name] if tensor is None else tensor
    rows_RC = whole if whole.dim() == 2 else whole.unsqueeze(0)
    values = rows_RC[place.row : place.row + place.num_rows, place.column : place.column + place.num_columns]
    return Part(name, place, *fetched([sum_of_rectangle(values, place.row, place.column, dtype=whole.dtype)]))


def stale(name: str) -> Tensor:
    tensor = TENSORS[name].clone()
    tensor.view(torch.int16).view(-1)[-1] ^= 1
    return tensor


def held(*parts: Part, stale: Sequence[str] = ()) -> HeldParts:
    norm = part(NORM, whole_of(SHAPES[NORM]))
    return HeldParts(parts=(*parts, norm), stale=frozenset(stale))


def check(*workers: HeldParts) -> None:
    check_held(MANIFEST, EXPECTED, SHAPES, workers)


CUTS = st.lists(st.integers(0, 12), max_size=3)


@given(CUTS, CUTS)
def test_rectangles_cut_anywhere_add_up_to_the_whole(rows: list[int], columns: list[int]) -> None:
    tensor = torch.randn(9, 12)
    manifest = pack_weights({WEIGHT: tensor}, weights=WeightsId(0, 1)).manifest
    edges = [sorted({0, size, *(min(cut, size) for cut in cuts)}) for size, cuts in ((9, rows), (12, columns))]
    places = [
        Rectangle(first, left, last - first, right - left)
        for first, last in pairwise(edges[0])
        for left, right in pairwise(edges[1])
    ]
    workers = [HeldParts(parts=(part(WEIGHT, place, tensor),)) for place in places]
    assert tile(places, tensor.shape)
    check_held(manifest, published_sums(manifest), {WEIGHT: tensor.shape}, workers)


@pytest.mark.parametrize(
    "places",
    [
        [TOP],
        [TOP, Rectangle(3, 0, 4, 6)],
        [TOP, Rectangle(5, 0, 4, 6)],
        [TOP, Rectangle(4, 1, 4, 6)],
        [TOP, Rectangle(4, 0, 4, 5), Rectangle(0, 0, 1, 4)],
    ],
    ids=["missing", "overlapping", "beyond the rows", "beyond the columns", "twice in place of once"],
)
def test_rectangles_that_are_not_the_tensor_do_not_tile(places: list[Rectangle]) -> None:
    assert tile([TOP, BOTTOM], SHAPES[WEIGHT])
    assert not tile(places, SHAPES[WEIGHT])


def test_shards_and_copies_with_the_trainers_bits_pass() -> None:
    check(held(part(WEIGHT, TOP)), held(part(WEIGHT, BOTTOM)))
    check(held(part(WEIGHT, TOP)), held(part(WEIGHT, TOP)), held(part(WEIGHT, BOTTOM)))


def test_stale_shard_of_one_worker_is_named() -> None:
    with pytest.raises(OtherWeights, match=rf"version 3: the installed weights .* 1 of 2 tensors .*: {WEIGHT}\."):
        check(held(part(WEIGHT, TOP)), held(part(WEIGHT, BOTTOM, stale(WEIGHT))))


def test_same_shard_on_both_workers_is_named() -> None:
    with pytest.raises(OtherWeights, match=WEIGHT):
        check(held(part(WEIGHT, TOP)), held(part(WEIGHT, TOP)))


def test_copy_that_differs_on_one_worker_is_named() -> None:
    whole = whole_of(SHAPES[NORM])
    workers = [HeldParts(parts=(part(WEIGHT, place), part(NORM, whole))) for place in (TOP, BOTTOM)]
    check(*workers)
    workers[1] = HeldParts(parts=(part(WEIGHT, BOTTOM), part(NORM, whole, stale(NORM))))
    with pytest.raises(OtherWeights, match=rf"1 of 2 tensors have other bits: {NORM}\."):
        check(*workers)


def test_stale_packed_copy_is_named_though_its_part_is_right() -> None:
    with pytest.raises(OtherWeights, match=WEIGHT):
        check(held(part(WEIGHT, TOP)), held(part(WEIGHT, BOTTOM), stale=[WEIGHT]))
    with pytest.raises(OtherWeights, match=WEIGHT):
        check(held(stale=[WEIGHT]), held())


def test_tensor_in_another_format_or_unknown_place_is_not_compared() -> None:
    check(held(Part(WEIGHT, Rectangle(0, 0, 0, 0), None)), held(part(WEIGHT, BOTTOM, stale(WEIGHT))))
    check(held(), held())


def test_workers_that_merged_other_bits_are_found() -> None:
    first = replace(held(part(WEIGHT, TOP)), merged=EXPECTED)
    second = replace(held(part(WEIGHT, BOTTOM)), merged=EXPECTED)
    check(first, second)
    with pytest.raises(OtherWeights, match=WEIGHT):
        check(first, replace(second, merged=EXPECTED | {WEIGHT: 7}))
