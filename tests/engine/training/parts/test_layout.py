"""The rows of public tensors that a rank holds, and reads."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from engine.models.decoder import Decoder, DecoderConfig
from engine.models.loading import hugging_face_views, read_config, weight_files
from engine.training.parts.layout import decoder_places, rows_of
from engine.training.parts.stored_rows import StoredRows
from tests.engine.conftest import MakeLlama


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
def test_every_row_is_one_ranks_and_chunks_are_those_of_torch(num_rows: int, num_ranks: int) -> None:
    every = [rows_of(rank, num_ranks, num_rows) for rank in range(num_ranks)]
    assert [row for rows in every for row in rows] == list(range(num_rows))
    chunks = torch.arange(num_rows).chunk(num_ranks)
    assert [len(rows) for rows in every if rows] == [len(chunk) for chunk in chunks if len(chunk)]


@given(config=configs(), num_ranks=st.integers(1, 7), seed=st.integers(0, 99))
def test_the_rows_of_a_rank_are_those_runs_of_public_tensors(config: DecoderConfig, num_ranks: int, seed: int) -> None:
    torch.manual_seed(seed)
    parameters = dict(Decoder(config, torch.float32).named_parameters())
    own = {name: torch.randn_like(parameter) for name, parameter in parameters.items()}
    public = hugging_face_views(config, own)
    for name, place in decoder_places(config, parameters).items():
        for rank in range(num_ranks):
            rows = rows_of(rank, num_ranks, len(own[name]))
            expected = own[name][rows.start : rows.stop]
            found: list[torch.Tensor] = []
            for run in place.runs(rows):
                assert public[run.name].shape == run.shape and run.first == sum(len(part) for part in found)
                found.append(public[run.name][run.rows.start : run.rows.stop])
            assert torch.equal(torch.cat(found) if found else expected[:0], expected)


def test_a_rank_reads_its_rows_of_a_fused_matrix_from_the_files_of_its_parts(make_llama: MakeLlama) -> None:
    folder = make_llama(dtype="bfloat16")
    config = read_config(folder)
    model = Decoder(config, torch.float32)
    place = decoder_places(config, dict(model.named_parameters()))["layers.1.qkv_QD"]
    with StoredRows(weight_files(folder)) as stored:
        parts = [stored.read(place, rows_of(rank, 3, place.shape[0])) for rank in range(3)]
        whole = stored.tensors("model.layers.1.self_attn.")
    names = [f"model.layers.1.self_attn.{kind}_proj.weight" for kind in "qkv"]
    assert [len(part) for part in parts] == [22, 22, 20] and parts[0].dtype == torch.float32
    assert torch.equal(torch.cat(parts), torch.cat([whole[name] for name in names]).float())


def test_a_tensor_that_is_missing_or_of_another_shape_is_named(make_llama: MakeLlama, tmp_path: Path) -> None:
    config = replace(read_config(make_llama()), tied=True)
    place = decoder_places(config, dict(Decoder(config, torch.float32).named_parameters()))["final_norm_D"]
    file = tmp_path / "model.safetensors"
    save_file({"model.norm.weight": torch.zeros(31)}, file)
    with (
        StoredRows([file]) as stored,
        pytest.raises(ValueError, match=r"norm.weight has shape \(31,\), config.json asks for \(32,\)"),
    ):
        stored.read(place, range(32))
    save_file({"other": torch.zeros(31)}, file)
    with (
        StoredRows([file]) as stored,
        pytest.raises(ValueError, match=r"tensors missing.*: model\.norm\.weight"),
    ):
        stored.read(place, range(32))
