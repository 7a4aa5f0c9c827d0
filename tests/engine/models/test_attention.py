"""One kernel call for all sequences, as on a GPU: its arguments, on a substitute kernel or fake tensors."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import engine.models.attention as attention
from engine.models.attention import PackedAttention
from engine.models.packing import PackedTokens, lay_out, pack

pytestmark = pytest.mark.usefixtures("one_thread")


def packed(sequences: list[list[int]], *, padding: int, shareable: list[int] | None = None) -> PackedTokens:
    rectangles = lay_out([len(each) for each in sequences], max_tokens=1_000, padding=padding)
    return pack(sequences, rectangles, "cpu", shareable=shareable)


def sequence_by_sequence(
    q_FHE: Tensor, k_FKE: Tensor, v_FKE: Tensor, starts: Tensor, *others: object, **options: Any
) -> Tensor:
    """A reference implementation of `varlen_attn`, by its documentation."""
    assert options["enable_gqa"] == (q_FHE.shape[1] != k_FKE.shape[1])
    before, after = options["window_size"]
    bounds = starts.tolist()
    mixed = []
    for start, end in pairwise(bounds):
        q, k, v = (part[start:end].transpose(0, 1).unsqueeze(0) for part in (q_FHE, k_FKE, v_FKE))
        distance_WW = torch.arange(end - start).unsqueeze(1) - torch.arange(end - start)
        seen_WW = (distance_WW >= -after) & ((distance_WW <= before) | (before < 0))
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen_WW, enable_gqa=True)
        mixed.append(out.squeeze(0).transpose(0, 1))
    return torch.cat(mixed)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=12), st.integers(1, 10))
def test_one_kernel_call_equals_attention_by_rectangles(drawn: list[tuple[int, int]], window: int) -> None:
    """`drawn`: the lengths of each sequence's prompt, which others share, and of its answer."""
    sequences = [[prompt] * prompt + [9] * rest for prompt, rest in drawn]
    prompts = [prompt for prompt, _ in drawn]
    tokens, loose = (packed(sequences, padding=padding, shareable=prompts) for padding in (0, 16))
    assert sorted(tokens.ids_T.tolist()) == sorted(loose.ids_T.tolist())
    num = len(tokens.ids_T)
    q_THE, k_TKE, v_TKE = torch.randn(num, 4, 8), torch.randn(num, 2, 8), torch.randn(num, 2, 8)
    attend = PackedAttention(tokens, (None, window))
    by_rectangles = [attend(layer, q_THE, k_TKE, v_TKE) for layer in (0, 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_dtype_of_kernel", lambda q_FHE: torch.float32)
        patch.setattr("torch.nn.attention.varlen.varlen_attn", sequence_by_sequence)
        for layer, expected in enumerate(by_rectangles):
            torch.testing.assert_close(attend(layer, q_THE, k_TKE, v_TKE), expected)


def test_packing_without_padding_yields_kernel_offsets() -> None:
    sequences = [[1] * length for length in (3, 4, 4, 9)]
    assert packed(sequences, padding=16).starts is None
    starts = packed(sequences, padding=0).starts
    assert starts is not None and starts.tolist() == [0, 3, 7, 11, 20] and starts.dtype == torch.int32


def test_torch_kernel_accepts_the_arguments() -> None:
    """On fake GPU tensors: checks names, types and shapes, and computes nothing."""
    tokens = packed([[1] * 3, [2] * 5], padding=0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        parts = [torch.empty(8, heads, 8, dtype=torch.bfloat16, device="cuda") for heads in (4, 2, 2)]
        on_gpu = PackedTokens(
            ids_T=tokens.ids_T,
            positions_T=tokens.positions_T,
            rectangles=tokens.rectangles,
            spread_F=None,
            gather_T=None,
            starts=torch.empty(3, dtype=torch.int32, device="cuda"),
            places=tokens.places,
        )
        mixed_TA = PackedAttention(on_gpu)(0, *parts)
    assert mixed_TA.shape == (8, 32) and mixed_TA.dtype == torch.bfloat16 and mixed_TA.device.type == "cuda"
