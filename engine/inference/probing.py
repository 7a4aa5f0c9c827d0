"""A probe in the torch engine: the log-probs of one row of tokens, computed without a cache.

T tokens    V vocabulary
"""

from collections.abc import Sequence

import torch

from engine.models.attention import PackedAttention
from engine.models.decoder import Decoder
from engine.models.packing import Rectangle, SequenceArrays, pack_arrays


@torch.inference_mode()
def row_logprobs(model: Decoder, token_ids: Sequence[int], *, device: str) -> tuple[float, ...]:
    """The log-prob of each token but the first, given all before it."""
    arrays = SequenceArrays.of([token_ids], [0])
    tokens = pack_arrays(arrays, [Rectangle(members=(0,), width=len(token_ids))], device)
    hidden_TD = model(tokens.ids_T, tokens.positions_T, PackedAttention(tokens, model.config.windows))
    logprobs_TV = torch.log_softmax(model.logits(hidden_TD[:-1]).float(), dim=-1)
    logprobs_T = logprobs_TV.gather(1, tokens.ids_T[1:].unsqueeze(1)).squeeze(1)
    return tuple(logprobs_T.tolist())
