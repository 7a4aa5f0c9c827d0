"""Our own sampling inside vLLM, as one of its logits processors.

vLLM draws from a generator's state, which a move to another engine loses, and reports log-probs either before the
temperature or after cuts such as top-p. So every request is greedy to vLLM, and this processor draws before the greedy
choice: the drawn token's log-prob becomes its logit, every other logit becomes minus infinity.
`logprobs_mode=processed_logits` then returns that log-prob.

    B rows    V vocabulary    J positions

Invariants:
- a draw equals the torch engine's draw from the same logits: by seed and position, whatever else is in the batch;
- the log-prob is over the whole vocabulary at the request's temperature, whatever is cut.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor
from vllm import SamplingParams as VllmParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, process_dict_updates

from engine.inference.port import SamplingParams
from engine.inference.sampling import RowSampling, mixed, sample_tokens, signed_64, uniforms_of

POSITIONS_AHEAD: Final = 16  # the same number of small operations as for one position
_KEY: Final = "laminar"


@dataclass(slots=True)
class _Row:
    sampling: SamplingParams
    num_prompt: int
    output_ids: list[int]
    """vLLM's own list, which grows with the request."""


class _Batch:
    """State of a fixed set of requests, with the uniforms of their next positions."""

    def __init__(self, rows: list[_Row], device: torch.device) -> None:
        self._device, self.num_rows = device, len(rows)
        self.sampling = RowSampling.of([row.sampling for row in rows], str(device))
        self._output_ids = [row.output_ids for row in rows]
        self._num_prompt_B1 = torch.tensor([[row.num_prompt] for row in rows])
        self._mixed_seeds_B1 = mixed(torch.tensor([[signed_64(row.sampling.seed)] for row in rows]))
        self._uniforms_BJ: Tensor | None = None
        self._from_B1 = torch.zeros_like(self._num_prompt_B1)

    def uniforms(self) -> Tensor | None:
        """None: every row is greedy."""
        if self.sampling.temperatures_B1 is None:
            return None
        num_output_B1 = torch.tensor(list(map(len, self._output_ids))).unsqueeze(1)
        ahead_B1 = num_output_B1 - self._from_B1
        if self._uniforms_BJ is None or int(ahead_B1.max()) >= POSITIONS_AHEAD:
            self._from_B1, ahead_B1 = num_output_B1, torch.zeros_like(ahead_B1)
            positions_BJ = self._num_prompt_B1 + num_output_B1 + torch.arange(POSITIONS_AHEAD)
            self._uniforms_BJ = uniforms_of(self._mixed_seeds_B1, positions_BJ)
        return self._uniforms_BJ.gather(1, ahead_B1).squeeze(1).to(self._device)


class SeededDraw(LogitsProcessor):  # type: ignore[misc]  # vLLM is not in the environment that is checked
    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._device = device
        self._rows: dict[int, _Row] = {}
        self._batch: _Batch | None = None  # None: the rows have changed

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if process_dict_updates(self._rows, batch_update, _begin_row):
            self._batch = None

    def apply(self, logits: Tensor) -> Tensor:
        if len(self._rows) < len(logits):  # vLLM's own warm-up runs
            return logits
        if self._batch is None or self._batch.num_rows != len(logits):
            self._batch = _Batch([self._rows[index] for index in range(len(logits))], self._device)
        tokens_B, logprobs_B = sample_tokens(logits, self._batch.sampling, self._batch.uniforms())
        return leave_only(tokens_B, logprobs_B, logits)


def leave_only(tokens_B: Tensor, logprobs_B: Tensor, logits_BV: Tensor) -> Tensor:
    """Keeps one logit per row, the drawn token's, and sets it to its log-prob."""
    logits_BV.fill_(float("-inf"))
    return logits_BV.scatter_(1, tokens_B.unsqueeze(1), logprobs_B.unsqueeze(1).to(logits_BV.dtype))


def to_extra_args(sampling: SamplingParams) -> dict[str, Any]:
    """The sampling parameters as plain values, for the request's extra_args."""
    return {_KEY: asdict(sampling)}


def from_extra_args(params: VllmParams) -> SamplingParams | None:
    """None: the request is one of vLLM's own warm-up."""
    given = (params.extra_args or {}).get(_KEY)
    return SamplingParams(**given) if given else None


def _begin_row(params: VllmParams, prompt_ids: list[int] | None, output_ids: list[int]) -> _Row | None:
    sampling = from_extra_args(params)
    return None if sampling is None else _Row(sampling, len(prompt_ids or ()), output_ids)
