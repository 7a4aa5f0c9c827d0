"""A model's scores of a micro-batch: log-probs and entropies of written tokens, or values.

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
    """The sizes to which rounding errors are proportional: see `head_scores`."""


def score_tokens(
    model: TrainedModel,
    batch: MicroBatch,
    *,
    temperature: float,
    compute_dtype: ComputeDtype | None = None,
    train_entropy: bool = True,
) -> TokenScores:
    """With gradients, unless the caller has disabled them. `train_entropy`: needed only if entropy is rewarded.
    `temperature`: for a batch without its own."""
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
    """A separate decoder whose head returns one number.

    Separate from the policy's trunk, so that the value's gradient does not affect the policy, whose published weights
    stay those of a plain model, and no weight between two losses needs tuning. The price is a second model."""

    def __init__(self, trunk: TrainedModel, *, device: torch.device | None = None) -> None:
        """`device`: of the head's weights, if the trunk has no memory yet."""
        super().__init__()
        self.trunk = trunk
        with device or trunk.embedding_VD.device:
            self.value_D = empty_parameter(trunk.config.width, dtype=torch.float32)
        nn.init.zeros_(self.value_D)  # begins with values of 0
        trunk.drop_head()

    def forward(self, batch: MicroBatch) -> Tensor:
        hidden_TD = self.trunk(batch.ids, batch.positions, batch.attention(self.trunk.config.windows))
        hidden_ND = take_rows(hidden_TD, batch.predicting_N)
        normed_ND = self.trunk.normed(hidden_ND)
        return (normed_ND.float() * self.value_D).sum(dim=-1)  # autocast would make a matrix product bfloat16


def computing_in(compute_dtype: ComputeDtype | None, device: torch.device) -> AbstractContextManager[object]:
    """Computes matrix products in the given dtype; weights stay float32. A weight is cast at each use and the copy is
    not cached: autocast's own cache would keep a copy of every matrix until the pass has ended."""
    dtype = dtype_of_products(compute_dtype, device)
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype, cache_enabled=False)


def dtype_of_products(compute_dtype: ComputeDtype | None, device: torch.device) -> torch.dtype:
    """The default is bfloat16 on a GPU that supports it, where float32 attention would take memory quadratic in a
    sequence's length; float32 elsewhere."""
    if compute_dtype is not None:
        return torch.bfloat16 if compute_dtype == "bfloat16" else torch.float32
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if has_bf16 else torch.float32
