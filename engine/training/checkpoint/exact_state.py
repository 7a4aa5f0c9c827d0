"""All that a weights file leaves out and an exact resume needs: moments, exact weights, random streams.

Invariant: every value is stored under the public name of the weight that it belongs to (Hugging Face's, or peft's), so
that the files do not depend on how the decoder fuses its matrices, nor on who trained it. Moments are stored in the
dtype that they are kept in, those of 8 bits as bfloat16, and restored to the one that the job asks for.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from engine.training.checkpoint.shares import KINDS, PartShares
from engine.training.checkpoint.stored_state import StoredState


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


def restore_shares(parts: Sequence[PartShares], stored: StoredState) -> None:
    """Into what trains."""
    for each in parts:
        for kind in KINDS:
            for share in each.kinds[kind].values():
                stored.fill(share, under=each.part.stored_under(kind))
