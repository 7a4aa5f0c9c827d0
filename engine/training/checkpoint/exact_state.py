"""All that a weights file leaves out and an exact resume needs: moments, exact weights, random streams.

Invariant: every tensor is stored under the public name of the weight that it belongs to (Hugging Face's, or peft's),
so that the file does not depend on how the decoder fuses its matrices. Moments are stored in the dtype that they are
kept in, and restored to the one that the job asks for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.training.optimizer.fused_adamw import FusedAdamW
from engine.training.parts.trained import MOMENTS, TrainedPart


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizedPart:
    part: TrainedPart
    optimizer: FusedAdamW


def random_streams(device: torch.device) -> dict[str, Tensor]:
    streams = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        streams["random/cuda"] = torch.cuda.get_rng_state(device)
    return streams


def restore_random_streams(streams: Mapping[str, Tensor], device: torch.device) -> None:
    """A checkpoint of another kind of device has no stream for this one, which then goes on as it is."""
    torch.set_rng_state(streams["random/cpu"].cpu())
    if device.type == "cuda" and "random/cuda" in streams:
        torch.cuda.set_rng_state(streams["random/cuda"].cpu(), device)


def take_over_random_streams(
    stored: Mapping[str, Tensor], device: torch.device, send: Callable[[Tensor], Tensor]
) -> None:
    """The streams that rank 0 has stored, by `send` on every rank; one that is not stored goes on as rank 0's."""
    own = random_streams(device)
    restore_random_streams({name: send(stored.get(name, stream).to(device)) for name, stream in own.items()}, device)


def read_exact_state(parts: Sequence[OptimizedPart], device: torch.device) -> dict[str, Tensor]:
    """Views: copy before training on."""
    state = random_streams(device)
    for each in parts:
        part = each.part
        if not part.stored_exactly:
            state |= part.public({name: value.detach() for name, value in part.parameters.items()}, "master")
        for moment in MOMENTS:
            own = {name: each.optimizer.state_of(parameter)[moment] for name, parameter in part.parameters.items()}
            state |= part.public(own, moment)
    return state


@torch.no_grad()
def restore_exact_state(
    parts: Sequence[OptimizedPart], device: torch.device, state: Mapping[str, Tensor], *, num_updates: int
) -> None:
    restore_random_streams(state, device)
    for each in parts:
        part = each.part
        if not part.stored_exactly:
            _fill(part.public({name: value.detach() for name, value in part.parameters.items()}, "master"), state)
        for parameter in part.parameters.values():
            each.optimizer.reset(parameter, num_updates=num_updates)
        for moment in MOMENTS:
            own = {name: each.optimizer.state_of(parameter)[moment] for name, parameter in part.parameters.items()}
            _fill(part.public(own, moment), state)


def _fill(views: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    for name, view in views.items():
        view.copy_(state[name])
