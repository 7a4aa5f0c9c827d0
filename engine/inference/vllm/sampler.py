"""The draw, inside vLLM: our own sampling as one of its logits processors.

vLLM draws from a generator's state, which a move to another engine loses, and reports log-probs either before the
temperature or after the cut by top-p and its kin. So every request reaches it as greedy, and this processor, which
sees all rows before the greedy choice, draws: the token that it took keeps its log-prob for a logit, every other one
gets minus infinity. `logprobs_mode=processed_logits` then hands that number out.

    B rows    V vocabulary

Invariants:
- a draw is the one that the torch engine makes of the same logits: of seed and position, whatever runs beside it;
- the log-prob is of the whole vocabulary at the request's temperature, whatever was cut.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor
from vllm import SamplingParams as VllmParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from engine.inference.port import SamplingParams
from engine.inference.sampling import RowSampling, sample_tokens, signed_64, uniforms

_KEY: Final = "laminar"


@dataclass(slots=True)
class _Row:
    sampling: SamplingParams
    num_prompt: int
    said: list[int]
    """vLLM's own list: it grows as the request does."""


class SeededDraw(LogitsProcessor):  # type: ignore[misc]  # vLLM is not in the environment that is checked
    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._rows: dict[int, _Row] = {}
        self._sampling: RowSampling | None = None  # None: who has which row has changed

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if process_dict_updates(self._rows, batch_update, _begin_row):
            self._sampling = None

    def apply(self, logits: Tensor) -> Tensor:
        if len(self._rows) < len(logits):  # vLLM's own trial runs at its start
            return logits
        rows = [self._rows[index] for index in range(len(logits))]
        if self._sampling is None:
            self._sampling = RowSampling.of([row.sampling for row in rows], str(self._device))
        seeds_B = torch.tensor([signed_64(row.sampling.seed) for row in rows], device=self._device)
        positions_B = torch.tensor([row.num_prompt + len(row.said) for row in rows], device=self._device)
        tokens_B, logprobs_B = sample_tokens(logits, self._sampling, uniforms(seeds_B, positions_B))
        logits.fill_(float("-inf"))
        return logits.scatter_(1, tokens_B.unsqueeze(1), logprobs_B.unsqueeze(1).to(logits.dtype))


def to_extra_args(sampling: SamplingParams) -> dict[str, Any]:
    """The sampling parameters as plain values, which travel with a request."""
    return {_KEY: asdict(sampling)}


def _begin_row(params: VllmParams, prompt_ids: list[int] | None, said: list[int]) -> _Row | None:
    given = (params.extra_args or {}).get(_KEY)
    return given and _Row(SamplingParams(**given), len(prompt_ids or ()), said)
