"""Trajectories with routes at random, of which some are missing: what a rollout of a mixture hands on."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.models.decoder import DecoderConfig
from engine.models.routes import RouteFormat
from engine.training.port import TrainingTrajectory


def routed(trajectories: Sequence[TrainingTrajectory], config: DecoderConfig, *, seed: int) -> list[TrainingTrajectory]:
    """As they are, for a dense model. Of every third only the first half is known, and its third token is not."""
    layout = RouteFormat.of(config.mixture)
    if not layout.token_bytes:
        return list(trajectories)
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index, each in enumerate(trajectories):
        num_tokens = len(each.prompt_ids) + len(each.response_ids)
        routes_TWk = random_routes(layout, num_tokens, generator)
        if index % 3 == 0:
            routes_TWk = routes_TWk[: num_tokens // 2].clone()
            routes_TWk[2:3] = layout.unknown
        made.append(replace(each, routes=layout.packed(routes_TWk)))
    return made


def random_routes(layout: RouteFormat, num_tokens: int, generator: torch.Generator) -> Tensor:
    """routes_TWk"""
    chance_TWX = torch.rand(num_tokens, layout.num_mixtures, layout.num_experts, generator=generator)
    return chance_TWX.topk(layout.chosen, dim=-1).indices.to(layout.dtype)
