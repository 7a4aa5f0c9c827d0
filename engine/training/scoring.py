"""Scores of a micro-batch by a model: log-probs and entropies of written tokens, or values.

    N written tokens    C of one chunk    V vocabulary    D width

Invariants:
- log-probs belong to the temperature that was sampled with, and are float32 whatever products are computed in;
- logits exist of one chunk of tokens at a time, and are computed again for the backward pass if there are several:
  at a vocabulary of 150,000, those of 8,192 tokens would be 5 GB, and their gradient as much again.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from engine.models.decoder import Decoder, PackedAttention, empty_parameter, rms_norm, take_rows
from engine.training.micro_batch import MicroBatch

LOGITS_PER_CHUNK: Final = 2**26  # 256 MB in float32
ComputeDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    logprobs_N: Tensor
    entropy_N: Tensor


def score_tokens(
    model: Decoder,
    batch: MicroBatch,
    *,
    temperature: float,
    compute_dtype: ComputeDtype = "float32",
    train_entropy: bool = True,
) -> TokenScores:
    """With gradients, unless the caller has switched them off. The entropy's is needed only where it is rewarded, and
    costs another copy of the logits."""
    with computing_in(compute_dtype, batch.targets_N.device):
        hidden_TD = model(batch.tokens.ids_T, batch.tokens.positions_T, PackedAttention(batch.tokens))
        hidden_ND = take_rows(hidden_TD, batch.predicting_N)

        def score(hidden_CD: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
            return _logprobs_and_entropy(model.logits(hidden_CD), targets_C, temperature, train_entropy)

        chunk = max(LOGITS_PER_CHUNK // model.config.vocab_size, 1)
        if len(hidden_ND) <= chunk:
            logprobs_N, entropy_N = score(hidden_ND, batch.targets_N)
        else:
            parts = [
                checkpoint(score, hidden_CD, targets_C, use_reentrant=False)
                for hidden_CD, targets_C in zip(
                    torch.split(hidden_ND, chunk), torch.split(batch.targets_N, chunk), strict=True
                )
            ]
            logprobs_N, entropy_N = (torch.cat(column) for column in zip(*parts, strict=True))
    return TokenScores(logprobs_N=logprobs_N, entropy_N=entropy_N)


class Critic(nn.Module):
    """A decoder of its own with one number for a head.

    Its own, and not the policy's trunk: the value's gradient then cannot pull at the policy, whose published weights
    stay those of a plain model, and no weight between two losses is to be tuned. The price is a second model."""

    def __init__(self, trunk: Decoder) -> None:
        super().__init__()
        self.trunk = trunk
        with torch.device(trunk.embedding_VD.device):
            self.value_D = empty_parameter(trunk.config.width, dtype=torch.float32)
        nn.init.zeros_(self.value_D)  # begins by expecting nothing
        trunk.head_VD = trunk.embedding_VD  # words are not this model's business: no memory for a head

    def forward(self, batch: MicroBatch) -> Tensor:
        hidden_TD = self.trunk(batch.tokens.ids_T, batch.tokens.positions_T, PackedAttention(batch.tokens))
        hidden_ND = take_rows(hidden_TD, batch.predicting_N)
        normed_ND = rms_norm(hidden_ND, self.trunk.final_norm_D, self.trunk.config.norm_eps)
        return (normed_ND.float() * self.value_D).sum(dim=-1)  # a product of matrices would be bfloat16 in autocast


def computing_in(dtype: ComputeDtype, device: torch.device) -> AbstractContextManager[object]:
    """Weights stay float32; products of matrices are computed in bfloat16 if asked for."""
    return nullcontext() if dtype == "float32" else torch.autocast(device.type, dtype=torch.bfloat16)


def _logprobs_and_entropy(
    logits_CV: Tensor, targets_C: Tensor, temperature: float, train_entropy: bool
) -> tuple[Tensor, Tensor]:
    all_CV = functional.log_softmax(logits_CV.float() / temperature, dim=-1)
    logprobs_C = all_CV.gather(1, targets_C.unsqueeze(1)).squeeze(1)
    with torch.set_grad_enabled(train_entropy and torch.is_grad_enabled()):
        # The logarithm of a probability of zero is bounded, since 0·inf would be NaN.
        entropy_C = -(all_CV.exp() * all_CV.clamp(min=torch.finfo(torch.float32).min)).sum(dim=-1)
    return logprobs_C, entropy_C
