"""Rows read their own pages and nothing else, with either way to read pages.

The kernel runs on a GPU where there is one, else in triton's interpreter; where triton is not (it comes with torch's
build for CUDA) the rest of these tests still runs.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from engine.inference.rows.pages import GatheredPages, OpenPages

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
READERS: list[OpenPages] = [GatheredPages]
if find_spec("triton") is not None:
    if DEVICE == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from engine.inference.rows.pages_kernel import PagesInPlace

    READERS.append(PagesInPlace)

pytestmark = pytest.mark.usefixtures("one_thread")

by_reader = pytest.mark.parametrize("open_pages", READERS)


@dataclass(frozen=True, kw_only=True)
class Case:
    q_BHE: Tensor
    k_XKE: Tensor
    v_XKE: Tensor
    blocks_BM: Tensor
    lengths_B: Tensor
    size: int

    def read(self, open_pages: OpenPages, window: int | None = None) -> Tensor:
        return open_pages(self.blocks_BM, self.lengths_B, self.size)(self.q_BHE, self.k_XKE, self.v_XKE, window)


def case(
    lengths: Sequence[int],
    *,
    heads: tuple[int, int, int] = (4, 2, 16),
    size: int = 16,
    table: int = 0,
    shared: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """`heads`: numbers of query and key heads, and their width. `shared`: first blocks that all rows share. Slots that
    no row may read are NaN; queries and keys share memory, as in a layer."""
    generator = torch.Generator().manual_seed(sum(lengths))
    num_heads, num_kv_heads, width = heads
    own = [max(-(-length // size) - shared, 0) for length in lengths]
    order = torch.randperm(shared + sum(own) + 2, generator=generator)
    blocks_BM = torch.full((len(lengths), max(table, shared + max(own))), int(order[-1]), dtype=torch.int32)
    blocks_BM[:, :shared] = order[:shared]
    k_XKE, v_XKE = (torch.full((len(order) * size, num_kv_heads, width), float("nan")) for _ in range(2))
    at = shared
    for row, (length, count) in enumerate(zip(lengths, own, strict=True)):
        blocks_BM[row, shared : shared + count] = order[at : at + count]
        at += count
        for slot in slots_of(blocks_BM[row], length, size):
            for stored in (k_XKE, v_XKE):
                stored[slot] = torch.randn(num_kv_heads, width, generator=generator)
    qkv = torch.randn(len(lengths), num_heads + 2 * num_kv_heads, width, generator=generator)
    moved = [each.to(DEVICE, dtype) for each in (qkv, k_XKE, v_XKE)]
    return Case(
        q_BHE=moved[0][:, :num_heads],
        k_XKE=moved[1],
        v_XKE=moved[2],
        blocks_BM=blocks_BM.to(DEVICE),
        lengths_B=torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        size=size,
    )


def slots_of(blocks_M: Tensor, length: int, size: int) -> list[int]:
    return [int(blocks_M[at // size]) * size + at % size for at in range(length)]


def by_definition(given: Case, window: int | None = None) -> Tensor:
    """Row by row, in float64."""
    mixed = []
    for q_HE, blocks_M, length in zip(given.q_BHE, given.blocks_BM, given.lengths_B.tolist(), strict=True):
        slots = slots_of(blocks_M, length, given.size)[0 if window is None else -window :]
        group = len(q_HE) // given.k_XKE.shape[1]
        k_LHE, v_LHE = (each[slots].double().repeat_interleave(group, 1) for each in (given.k_XKE, given.v_XKE))
        scores_HL = torch.einsum("he,lhe->hl", q_HE.double(), k_LHE) * q_HE.shape[1] ** -0.5
        mixed.append(torch.einsum("hl,lhe->he", scores_HL.softmax(-1), v_LHE))
    return torch.stack(mixed)


def assert_read(given: Case, open_pages: OpenPages, window: int | None = None) -> None:
    expected = by_definition(given, window)
    error = (given.read(open_pages, window).double() - expected).norm() / expected.norm()
    assert error < {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[given.q_BHE.dtype]


@by_reader
@pytest.mark.parametrize("size", [1, 8, 16, 64])
def test_contexts_of_any_length_are_read_with_any_block_size(open_pages: OpenPages, size: int) -> None:
    assert_read(case([1, 15, 16, 17, 130, 64], size=size), open_pages)


@by_reader
@pytest.mark.parametrize("heads", [(1, 1, 32), (4, 4, 32), (8, 1, 24), (6, 2, 80), (16, 8, 128), (40, 2, 64)], ids=str)
def test_query_heads_share_keys_by_any_number(open_pages: OpenPages, heads: tuple[int, int, int]) -> None:
    assert_read(case([3, 40], heads=heads), open_pages)


@by_reader
def test_contexts_of_several_stretches_are_combined(open_pages: OpenPages) -> None:
    assert_read(case([511, 512, 513, 1_100, 2]), open_pages)


@by_reader
def test_more_stretches_than_are_combined_at_a_time(open_pages: OpenPages) -> None:
    assert_read(case([17 * 512 + 3], heads=(2, 1, 16), size=64), open_pages)


@by_reader
def test_rows_that_share_a_prompts_blocks_read_the_same_ones(open_pages: OpenPages) -> None:
    assert_read(case([40, 50, 33, 90], shared=2), open_pages)


@by_reader
@pytest.mark.parametrize("window", [1, 7, 16, 500, 600, 10_000])
def test_window_bounds_the_tokens_that_a_row_reads(open_pages: OpenPages, window: int) -> None:
    assert_read(case([1, 7, 8, 100, 1_100]), open_pages, window)


@by_reader
def test_sixteen_bits_are_read_as_such(open_pages: OpenPages) -> None:
    """Triton's interpreter multiplies no bfloat16."""
    dtype = torch.bfloat16 if DEVICE == "cuda" or open_pages is GatheredPages else torch.float16
    given = case([20, 700, 5], heads=(16, 8, 128), dtype=dtype)
    assert given.read(open_pages).dtype == dtype
    assert_read(given, open_pages)


@by_reader
def test_row_reads_the_same_in_any_batch_and_table_length(open_pages: OpenPages) -> None:
    """Bit for bit with the kernel, whose order of sums depends on the row alone."""
    beside, alone = case([700, 40, 1_300, 3], table=128), case([700, 40, 1_300, 3])
    for row in range(4):
        own = Case(
            q_BHE=alone.q_BHE[row : row + 1],
            k_XKE=alone.k_XKE,
            v_XKE=alone.v_XKE,
            blocks_BM=alone.blocks_BM[row : row + 1],
            lengths_B=alone.lengths_B[row : row + 1],
            size=alone.size,
        )
        expected = beside.read(open_pages)[row : row + 1]
        rtol, atol = (1e-5, 1e-6) if open_pages is GatheredPages else (0.0, 0.0)
        torch.testing.assert_close(own.read(open_pages), expected, rtol=rtol, atol=atol)
