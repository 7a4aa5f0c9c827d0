"""Small random Llamas, and the single thread of tensor tests, so that figures and bits are reproducible."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MakeLlama = Callable[..., Path]


@pytest.fixture
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def make_llama(tmp_path_factory: pytest.TempPathFactory) -> MakeLlama:
    """A folder in the Hugging Face layout; the same one for the same arguments."""
    made: dict[tuple[object, ...], Path] = {}

    def make(*, tied: bool = False, kv_heads: int = 2, dtype: str = "float32", vocab_size: int = 40) -> Path:
        key = (tied, kv_heads, dtype, vocab_size)
        if key not in made:
            made[key] = _make_llama(tmp_path_factory.mktemp("llama"), *key)
        return made[key]

    return make


def _make_llama(folder: Path, tied: bool, kv_heads: int, dtype: str, vocab_size: int) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=8,
        max_position_embeddings=160,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=tied,
        initializer_range=0.3,  # far from uniform, so that greedy choices are clear
        bos_token_id=None,
        eos_token_id=3,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    return folder
