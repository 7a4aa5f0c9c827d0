"""Our sampling in vLLM's V2 runner (on a GPU): the same draws as sampler.py's, without a sync with the host.

V2 gives each request a slot, and passes each step's rows their slots and the positions of their last tokens. Sampling
parameters are stored on the device by slot, so a step needs nothing from the host: the next step can be prepared while
this one is computed (asynchronous scheduling), and no list of tokens has to be up to date.

    S slots    B rows    V vocabulary

Invariants:
- as in sampler.py: a draw is by seed and position, the log-prob over the whole vocabulary;
- a slot keeps nothing of its former request.
"""

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from vllm import SamplingParams as VllmParams
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor

from engine.inference.port import SamplingParams
from engine.inference.sampling import Cuts, RowSampling, mixed, sample_tokens, signed_64, uniforms_of
from engine.inference.vllm.sampler import from_extra_args, leave_only

COLUMNS: Final = ("temperature", "top_k", "top_p", "min_p")
ALL_GREEDY: Final = RowSampling(temperatures_B1=None, is_greedy_B=None, cuts=None)


class SlotDraw(LogitsProcessor):  # type: ignore[misc]  # vLLM is not in the environment that is checked
    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        num_slots, self._device = req_states.max_num_reqs, req_states.device
        self._params_S4 = torch.zeros(num_slots, len(COLUMNS), device=self._device)
        self._mixed_seeds_S = torch.zeros(num_slots, dtype=torch.int64, device=self._device)
        self._staged: dict[int, SamplingParams] = {}
        # On the host, which chooses a step's operations by them:
        self._is_ours_S, self._is_greedy_S, self._cuts_off_S = (np.zeros(num_slots, dtype=bool) for _ in range(3))

    def add_request(self, req_idx: int, sampling_params: VllmParams) -> bool:
        sampling = from_extra_args(sampling_params)
        self._is_ours_S[req_idx] = sampling is not None  # otherwise one of vLLM's own warm-up
        if sampling is None:
            return False
        self._staged[req_idx] = sampling
        self._is_greedy_S[req_idx] = sampling.temperature == 0.0
        self._cuts_off_S[req_idx] = bool(sampling.top_k or sampling.top_p < 1.0 or sampling.min_p)
        return True

    def apply_staged_writes(self) -> None:
        if not self._staged:
            return
        slots = self._on_device(torch.tensor(list(self._staged)))
        seeds = torch.tensor([signed_64(each.seed) for each in self._staged.values()])
        columns = torch.tensor([[float(getattr(each, name)) for name in COLUMNS] for each in self._staged.values()])
        self._params_S4[slots] = self._on_device(columns)
        self._mixed_seeds_S[slots] = self._on_device(mixed(seeds))
        self._staged.clear()

    def _on_device(self, values: Tensor) -> Tensor:
        """Does not wait for the step in progress: unpinned memory is copied before this returns."""
        return values.to(self._device, non_blocking=True)

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        slots = ctx.idx_mapping_np
        if not self._is_ours_S[slots].all():
            return logits
        slots_B = ctx.expanded_idx_mapping.long()
        uniforms_B = uniforms_of(self._mixed_seeds_S[slots_B], ctx.pos.long() + 1)
        tokens_B, logprobs_B = sample_tokens(logits, self._sampling(slots, slots_B), uniforms_B)
        return leave_only(tokens_B, logprobs_B, logits)

    def _sampling(self, slots: Any, slots_B: Tensor) -> RowSampling:
        is_greedy = self._is_greedy_S[slots]
        if is_greedy.all():
            return ALL_GREEDY
        temperatures_B1, top_k_B1, top_p_B1, min_p_B1 = self._params_S4[slots_B].unsqueeze(-1).unbind(1)
        is_greedy_B1 = temperatures_B1 == 0.0
        cuts_off = self._cuts_off_S[slots].any()
        return RowSampling(
            temperatures_B1=temperatures_B1.masked_fill(is_greedy_B1, 1.0),
            is_greedy_B=is_greedy_B1.squeeze(1) if is_greedy.any() else None,
            cuts=Cuts(top_k_B1=top_k_B1, top_p_B1=top_p_B1, min_p_B1=min_p_B1) if cuts_off else None,
        )
