"""The state that an exact resume needs in addition to the weights file: moments, exact weights, random streams.

Invariant: every value is stored under the public name of its weight (Hugging Face's, or peft's), so that the files do
not depend on how the decoder fuses its matrices, nor on the trainer. Moments are stored in the dtype in which the
optimizer keeps them (8-bit ones as bfloat16), and restored to the job's dtype.
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
    """A checkpoint from another device type has no stream for this device, which then keeps its own."""
    torch.set_rng_state(streams["random/cpu"].cpu())
    if device.type == "cuda" and "random/cuda" in streams:
        torch.cuda.set_rng_state(streams["random/cuda"].cpu(), device)


def take_over_random_streams(
    stored: Mapping[str, Tensor], device: torch.device, send: Callable[[Tensor], Tensor]
) -> None:
    """Sends rank 0's stored streams to every rank; for a stream that is not stored, rank 0's current one."""
    own = random_streams(device)
    restore_random_streams({name: send(stored.get(name, stream).to(device)) for name, stream in own.items()}, device)


def restore_shares(parts: Sequence[PartShares], stored: StoredState) -> None:
    """Fills the trained parts' shares from a checkpoint."""
    for each in parts:
        for kind in KINDS:
            for share in each.kinds[kind].values():
                stored.fill(share, under=each.part.stored_under(kind))
