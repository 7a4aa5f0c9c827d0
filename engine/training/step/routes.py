"""The experts that tokens met in the rollout, so that a trainer of a mixture makes them meet the same ones again.

    T input tokens of a micro-batch    W mixtures    k experts of a token

A router in bfloat16 and one in float32 disagree now and then, and then a token's log-prob is another model's. Replayed
are the policy, before and after it moved, and the reference, whose distance is then of weights and not of routes. The
critic, which no rollout runs, chooses for itself.

Invariants:
- a beginning that several samples share is read once, with the experts that the first of them met there;
- a token without a route, or with one that says nothing, chooses freely and is counted (`train/unrouted_fraction`);
- a rank reads the routes of its own trajectories alone.
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
    """Raises `ValueError` of what can be no routes of this model, by their number alone."""
    lengths_N, size = batch.prompt_lengths_N + batch.response_lengths_N, layout.token_bytes
    is_torn_N = batch.num_route_bytes_N % max(size, 1) != 0
    wrong = np.flatnonzero(is_torn_N | (batch.num_route_bytes_N > lengths_N * size))
    if len(wrong):
        index = wrong[0]
        raise ValueError(
            f"trajectory {index}: routes: {size} bytes for each of {lengths_N[index]} tokens, "
            f"got {batch.num_route_bytes_N[index]} bytes"
        )


def packed_routes(
    batch: TrainingBatch, sequences: Sequences, members: Sequence[int], tokens: PackedTokens, layout: RouteFormat
) -> Tensor | None:
    """routes_TWk; None: of a dense model. Routes are of a trajectory's first segment."""
    if not layout.token_bytes:
        return None
    shape = (len(tokens.ids_T), layout.num_mixtures, layout.chosen)
    routes_TWk = torch.full(shape, layout.unknown, dtype=layout.dtype)
    for member in reversed(members):  # what the first says of a beginning stays
        if not sequences.is_first_Q[member]:
            continue
        owner = int(sequences.owners_Q[member])
        try:
            known = layout.opened(layout.checked(batch.routes_of(owner).tobytes()))[: len(tokens.places[member])]
        except ValueError as error:
            raise ValueError(f"trajectory {owner}: {error}") from error
        routes_TWk[torch.as_tensor(np.asarray(tokens.places[member][: len(known)]))] = known
    return routes_TWk.to(tokens.ids_T.device)


def route_sums(routes_TWk: Tensor | None) -> Mapping[str, Tensor]:
    """Of a whole micro-batch, also where ranks share it: to be added up over them, and divided."""
    if routes_TWk is None:
        return {}
    unknown_T = routes_TWk[:, 0, 0] == torch.iinfo(routes_TWk.dtype).max
    return {"unrouted": unknown_T.sum(), "routable": torch.tensor(len(routes_TWk), device=routes_TWk.device)}
