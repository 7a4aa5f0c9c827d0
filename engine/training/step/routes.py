"""Replays the experts of the rollout's tokens in the trainer of a mixture.

    T input tokens of a micro-batch    W mixtures    k experts of a token

A router in bfloat16 and one in float32 sometimes disagree, and then a token's log-prob is another model's. Routes are
replayed for the policy, before and after it moved, and for the reference, so that the distance between them is of
weights and not of routes. The critic, which no rollout runs, chooses for itself.

Invariants:
- a prompt that several samples share is read once, with the experts of the first sample;
- the router chooses freely for a token with no or an unknown route, which is counted (`train/unrouted_fraction`);
- a rank reads only the routes of its own trajectories.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.models.packing import PackedTokens
from engine.models.routes import RouteFormat
from engine.training.batch import TrainingBatch
from engine.training.sequences import Sequences


def check_routes(batch: TrainingBatch, layout: RouteFormat) -> None:
    """Raises `ValueError` if the routes' size does not fit this model."""
    lengths_N, size = batch.prompt_lengths_N + batch.response_lengths_N, layout.token_bytes
    is_torn_N = batch.num_route_bytes_N % max(size, 1) != 0
    wrong = np.flatnonzero(is_torn_N | (batch.num_route_bytes_N > lengths_N * size))
    if len(wrong):
        index = wrong[0]
        raise ValueError(
            f"trajectory {index}: routes: at most {lengths_N[index]} tokens of {size} bytes, "
            f"got {batch.num_route_bytes_N[index]} bytes"
        )


def packed_routes(
    batch: TrainingBatch, sequences: Sequences, members: Sequence[int], tokens: PackedTokens, layout: RouteFormat
) -> Tensor | None:
    """routes_TWk; None for a dense model. Only a trajectory's first segment has routes."""
    if not layout.token_bytes:
        return None
    shape = (len(tokens.ids_T), layout.num_mixtures, layout.chosen)
    routes_TWk = torch.full(shape, layout.unknown, dtype=layout.dtype)
    for member in reversed(members):  # so that the first sample's routes of a shared prompt win
        if not sequences.is_first_Q[member]:
            continue
        owner = int(sequences.owners_Q[member])
        try:
            known = layout.checked(layout.opened(batch.routes_of(owner).data))[: len(tokens.places[member])]
        except ValueError as error:
            raise ValueError(f"trajectory {owner}: {error}") from error
        routes_TWk[torch.as_tensor(np.asarray(tokens.places[member][: len(known)]))] = known
    return routes_TWk.to(tokens.ids_T.device)


def route_sums(routes_TWk: Tensor | None) -> Mapping[str, Tensor]:
    """Sums over a whole micro-batch, also if ranks share it; their ratio is taken after adding up over ranks."""
    if routes_TWk is None:
        return {}
    unknown_T = routes_TWk[:, 0, 0] == torch.iinfo(routes_TWk.dtype).max
    return {"unrouted": unknown_T.sum(), "routable": torch.tensor(len(routes_TWk), device=routes_TWk.device)}
