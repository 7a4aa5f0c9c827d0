"""Trajectories with random routes, some of them missing, as a rollout of a mixture returns them."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.models.decoder import DecoderConfig
from engine.models.routes import RouteFormat
from engine.training.port import TrainingTrajectory


def routed(trajectories: Sequence[TrainingTrajectory], config: DecoderConfig, *, seed: int) -> list[TrainingTrajectory]:
    """Adds routes, unless the model is dense. Every third trajectory has only the first half, without token three."""
    layout = RouteFormat.of(config.mixture)
    if not layout.token_bytes:
        return list(trajectories)
    generator = torch.Generator().manual_seed(seed)
    results = []
    for index, each in enumerate(trajectories):
        num_tokens = len(each.prompt_ids) + len(each.response_ids)
        routes_TWk = random_routes(layout, num_tokens, generator)
        if index % 3 == 0:
            routes_TWk = routes_TWk[: num_tokens // 2].clone()
            routes_TWk[2:3] = layout.unknown
        results.append(replace(each, routes=layout.packed(routes_TWk)))
    return results


def random_routes(layout: RouteFormat, num_tokens: int, generator: torch.Generator) -> Tensor:
    """Returns routes_TWk."""
    chance_TWX = torch.rand(num_tokens, layout.num_mixtures, layout.num_experts, generator=generator)
    return chance_TWX.topk(layout.chosen, dim=-1).indices.to(layout.dtype)
