"""TRL's own loss: `GRPOTrainer._compute_loss` with a stub trainer that supplies log-probs, without a model.

B answers    T tokens of the longest
"""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from engine.spec.job import AlgorithmSpec
from engine.spec.recipes import RECIPES


def trl_loss(
    spec: AlgorithmSpec,
    logprobs_BT: Tensor,
    *,
    mask_BT: Tensor,
    advantages_B: Tensor,
    old_logprobs_BT: Tensor,
    max_new_tokens: int,
    reference_logprobs_BT: Tensor | None = None,
    weights_BT: Tensor | None = None,
) -> Tensor:
    from trl.trainer.grpo_trainer import GRPOTrainer

    loss_type = {"gspo": "grpo"}.get(spec.name, spec.name)
    low, high = spec.clips
    whole = SimpleNamespace(gather=lambda value: value, reduce=lambda value, reduction: value, num_processes=1)
    stand_in: Any = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs_BT, torch.zeros_like(logprobs_BT), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=RECIPES[spec.name].ratio,
        beta=spec.kl.coefficient,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        loss_type=loss_type,
        epsilon_low=low,
        epsilon_high=1.0 + high if loss_type == "cispo" else high,  # TRL's setting is the largest weight itself
        use_vllm=weights_BT is not None,
        vllm_importance_sampling_correction=True,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=max_new_tokens,
        accelerator=whole,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )
    ids_BT = torch.ones_like(mask_BT)
    loss: Tensor = GRPOTrainer._compute_loss(  # type: ignore[no-untyped-call]
        stand_in,
        None,
        {
            "prompt_ids": ids_BT[:, :1],
            "prompt_mask": ids_BT[:, :1],
            "completion_ids": ids_BT,
            "completion_mask": mask_BT,
            "advantages": advantages_B,
            "old_per_token_logps": old_logprobs_BT,
            "ref_per_token_logps": reference_logprobs_BT,
            "importance_sampling_ratio": weights_BT,
            "num_items_in_batch": mask_BT.sum(),
        },
    )
    return loss


def trl_weights(spec: AlgorithmSpec, log_ratio_BT: Tensor) -> Tensor:
    """TRL's importance weights, which its generation step computes: by mode and bounds."""
    ratio_BT, correction = log_ratio_BT.exp(), spec.correction
    if correction.name == "truncated":  # token_truncate
        return torch.clamp(ratio_BT, max=correction.cap)
    bands = {"icepop": (correction.low, correction.high), "masked": (float("-inf"), correction.cap)}
    least, most = bands[spec.corrects_by]
    return ratio_BT.masked_fill((ratio_BT < least) | (ratio_BT > most), 0.0)  # token_mask
