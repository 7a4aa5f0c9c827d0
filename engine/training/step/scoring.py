"""Scores of a micro-batch by a model: log-probs and entropies of written tokens, or values.

N written tokens    V vocabulary    D width
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from engine.models.families.trained_model import TrainedModel
from engine.models.operations import empty_parameter, take_rows
from engine.training.step.head import head_scores, rows_of_a_chunk
from engine.training.step.micro_batch import MicroBatch

ComputeDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    logprobs_N: Tensor
    entropy_N: Tensor
    logits_N2: Tensor
    """What rounding is in proportion to: see `head_scores`."""


def score_tokens(
    model: TrainedModel,
    batch: MicroBatch,
    *,
    temperature: float,
    compute_dtype: ComputeDtype | None = None,
    train_entropy: bool = True,
) -> TokenScores:
    """With gradients, unless the caller has switched them off. The entropy's is needed only where it is rewarded.
    `temperature`: of a batch that has none of its own."""
    device = batch.targets_N.device
    with computing_in(compute_dtype, device):
        hidden_TD = model(batch.ids, batch.positions, batch.attention(model.config.windows), batch.choose)
        normed_ND = model.normed(take_rows(hidden_TD, batch.predicting_N))
    logprobs_N, entropy_N, logits_N2 = head_scores(
        normed_ND,
        model.head_VD,
        batch.targets_N,
        temperature=temperature if batch.temperature is None else batch.temperature,
        dtype=dtype_of_products(compute_dtype, device),
        train_entropy=train_entropy,
        chunk=rows_of_a_chunk(model.config.vocab_size, device),
    )
    return TokenScores(logprobs_N=logprobs_N, entropy_N=entropy_N, logits_N2=logits_N2)


class Critic(nn.Module):
    """A decoder of its own with one number for a head.

    Its own, and not the policy's trunk: the value's gradient then cannot pull at the policy, whose published weights
    stay those of a plain model, and no weight between two losses is to be tuned. The price is a second model."""

    def __init__(self, trunk: TrainedModel) -> None:
        super().__init__()
        self.trunk = trunk
        with trunk.embedding_VD.device:
            self.value_D = empty_parameter(trunk.config.width, dtype=torch.float32)
        nn.init.zeros_(self.value_D)  # begins by expecting nothing
        trunk.drop_head()

    def forward(self, batch: MicroBatch) -> Tensor:
        hidden_TD = self.trunk(batch.ids, batch.positions, batch.attention(self.trunk.config.windows))
        hidden_ND = take_rows(hidden_TD, batch.predicting_N)
        normed_ND = self.trunk.normed(hidden_ND)
        return (normed_ND.float() * self.value_D).sum(dim=-1)  # a product of matrices would be bfloat16 in autocast


def computing_in(asked: ComputeDtype | None, device: torch.device) -> AbstractContextManager[object]:
    """Weights stay float32; products of matrices are made in what is asked for. A weight is turned into it where it is
    used, and the copy is not kept: autocast's own cache would keep one of every matrix until the pass has ended."""
    dtype = dtype_of_products(asked, device)
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype, cache_enabled=False)


def dtype_of_products(asked: ComputeDtype | None, device: torch.device) -> torch.dtype:
    """Where nothing is asked for, bfloat16 on a GPU that has it: float32 attention takes memory by the square of a
    sequence's length there."""
    if asked is not None:
        return torch.bfloat16 if asked == "bfloat16" else torch.float32
    has_it = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if has_it else torch.float32
