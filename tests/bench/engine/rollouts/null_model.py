"""A model for vLLM that answers at once: a step with it takes only the time of everything around a model.

It has a layer of attention for vLLM to keep pages for, which is never run; its logits are the same for every token.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.attention import Attention


class AnswersAtOnce(nn.Module):
    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        head_dim = config.head_dim
        self.attention = Attention(
            config.num_attention_heads,
            head_dim,
            head_dim**-0.5,
            cache_config=vllm_config.cache_config,
            prefix="layers.0.attention",
        )
        rows = vllm_config.scheduler_config.max_num_batched_tokens
        self.hidden_TD = torch.zeros(rows, config.hidden_size)
        self.logits_V = torch.randn(config.vocab_size, generator=torch.Generator().manual_seed(0))

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.hidden_TD[: len(input_ids)]

    def forward(self, input_ids: Tensor, positions: Tensor, **_: Any) -> Tensor:
        return self.hidden_TD[: len(positions)]

    def compute_logits(self, hidden_TD: Tensor) -> Tensor:
        return self.logits_V.repeat(len(hidden_TD), 1)  # what samples writes into its rows

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        return {name for name, _ in weights if not name}
