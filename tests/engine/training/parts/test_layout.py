"""The division of rows among ranks."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.models.decoder import DecoderConfig
from engine.training.parts.layout import rows_of


@st.composite
def configs(draw: st.DrawFn) -> DecoderConfig:
    small = st.integers(1, 5)
    num_kv_heads = draw(st.integers(1, 3))
    return DecoderConfig(
        vocab_size=draw(st.integers(1, 9)),
        width=draw(small),
        num_layers=draw(st.integers(1, 2)),
        num_heads=num_kv_heads * draw(st.integers(1, 3)),
        num_kv_heads=num_kv_heads,
        head_dim=2 * draw(st.integers(1, 2)),
        mlp_width=draw(small),
        max_positions=2,
        rope_theta=10_000.0,
        norm_eps=1e-6,
        tied=draw(st.booleans()),
        dtype=torch.float32,
        qkv_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
    )


@given(num_rows=st.integers(0, 40), num_ranks=st.integers(1, 9))
def test_every_row_has_one_rank_and_chunks_equal_torchs(num_rows: int, num_ranks: int) -> None:
    every = [rows_of(rank, num_ranks, num_rows) for rank in range(num_ranks)]
    assert [row for rows in every for row in rows] == list(range(num_rows))
    chunks = torch.arange(num_rows).chunk(num_ranks)
    assert [len(rows) for rows in every if rows] == [len(chunk) for chunk in chunks if len(chunk)]
