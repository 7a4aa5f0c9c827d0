"""Bytes that layers save for the backward pass at the width of an 8B model, counted on fake tensors without memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from engine.models.attention import PackedAttention
from engine.models.decoder import Activations, Decoder, DecoderConfig
from engine.models.packing import lay_out, pack
from engine.training.step.scoring import computing_in

NUM_TOKENS = 256


def config_of_8b(num_layers: int) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=1_000,
        width=4_096,
        num_layers=num_layers,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        mlp_width=12_288,
        max_positions=NUM_TOKENS,
        rope_theta=1e6,
        norm_eps=1e-6,
        tied=True,
        dtype=torch.bfloat16,
        qk_norm=True,
    )


@contextmanager
def counting(kept: dict[int, int]) -> Iterator[None]:
    def note(saved: Tensor) -> Tensor:
        if not isinstance(saved, torch.nn.Parameter):
            storage = saved.untyped_storage()
            kept[storage._cdata] = storage.nbytes()
        return saved

    with saved_tensors_hooks(note, lambda saved: saved):
        yield


def bytes_left(num_layers: int, how: Activations, compute_dtype: str) -> int:
    kept: dict[int, int] = {}
    tokens = pack([[1] * NUM_TOKENS], lay_out([NUM_TOKENS], max_tokens=NUM_TOKENS), "cpu")
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = Decoder(config_of_8b(num_layers), torch.float32)
        model.hold_activations(how)
        with computing_in(compute_dtype, torch.device("cpu")), counting(kept):  # type: ignore[arg-type]
            model(tokens.ids_T, tokens.positions_T, PackedAttention(tokens)).sum()
    return sum(kept.values())


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_recomputed_layer_saves_only_its_input(compute_dtype: str) -> None:
    one, two = (bytes_left(num_layers, "recomputed", compute_dtype) for num_layers in (1, 2))
    assert two - one == NUM_TOKENS * 4_096 * 4


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_kept_layer_saves_over_ten_times_as_much(compute_dtype: str) -> None:
    one, two = (bytes_left(num_layers, "kept", compute_dtype) for num_layers in (1, 2))
    assert two - one > 10 * NUM_TOKENS * 4_096 * 4
