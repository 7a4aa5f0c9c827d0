"""Trajectories to tensors: whole sequences in rectangles, cut into micro-batches by a bound on tokens.

    T input tokens, padding included    N response tokens

Invariants:
- every response token is a target in exactly one micro-batch;
- the last response token predicts nothing, so it is no input.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.packing import PackedTokens, lay_out, pack, split_by_tokens
from engine.training.port import TrainingTrajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    tokens: PackedTokens
    predicting_N: Tensor
    """Where in T the token before each target is."""
    targets_N: Tensor
    behaviour_logprobs_N: Tensor
    advantages_N: Tensor


def micro_batches(
    trajectories: Sequence[TrainingTrajectory], advantages: Sequence[float], *, max_tokens: int, device: str
) -> Iterator[MicroBatch]:
    inputs = [(*each.prompt_ids, *each.response_ids[:-1]) for each in trajectories]
    rectangles = lay_out([len(ids) for ids in inputs], max_tokens=max_tokens)
    for some in split_by_tokens(rectangles, max_tokens=max_tokens):
        tokens = pack(inputs, some, device)
        predicting: list[int] = []
        targets: list[int] = []
        behaviour: list[float] = []
        weights: list[float] = []
        for member, start in tokens.starts.items():
            trajectory = trajectories[member]
            first = start + len(trajectory.prompt_ids) - 1
            num_targets = len(trajectory.response_ids)
            predicting += range(first, first + num_targets)
            targets += trajectory.response_ids
            behaviour += trajectory.behaviour_logprobs
            weights += [advantages[member]] * num_targets
        yield MicroBatch(
            tokens=tokens,
            predicting_N=torch.tensor(predicting, device=device),
            targets_N=torch.tensor(targets, device=device),
            behaviour_logprobs_N=torch.tensor(behaviour, device=device),
            advantages_N=torch.tensor(weights, device=device),
        )


def check_trajectories(trajectories: Sequence[TrainingTrajectory], *, vocab_size: int, max_positions: int) -> None:
    if not trajectories:
        raise ValueError("trajectories: a step needs at least one")
    for index, each in enumerate(trajectories):
        if not each.prompt_ids or not each.response_ids:
            raise ValueError(f"trajectory {index}: prompt and response need at least one token each")
        if len(each.response_ids) != len(each.behaviour_logprobs):
            raise ValueError(
                f"trajectory {index}: one log-prob for each of {len(each.response_ids)} response tokens, "
                f"got {len(each.behaviour_logprobs)}"
            )
        if not math.isfinite(each.reward):
            raise ValueError(f"trajectory {index}: reward must be finite, got {each.reward}")
        length = len(each.prompt_ids) + len(each.response_ids)
        if length - 1 > max_positions:
            raise ValueError(f"trajectory {index}: at most {max_positions} tokens fit this model, got {length}")
        if not 0 <= min(*each.prompt_ids, *each.response_ids) <= max(*each.prompt_ids, *each.response_ids) < vocab_size:
            raise ValueError(f"trajectory {index}: token ids must be from 0 to {vocab_size - 1}")
