"""The state that an exact resume needs in addition to the weights file: moments, exact weights, random streams.

Invariant: every value is stored under the public name of its weight (Hugging Face's, or peft's), so that the files do
not depend on how the decoder fuses its matrices, nor on the trainer. Moments are stored in the dtype in which the
optimizer keeps them (8-bit ones as bfloat16), and restored to the job's dtype.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from engine.training.checkpoint.shares import KINDS, PartShares
from engine.training.checkpoint.stored_state import StoredState


def random_streams(device: torch.device) -> dict[str, Tensor]:
    streams = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        streams["random/cuda"] = torch.cuda.get_rng_state(device)
    return streams


def restore_random_streams(
    stored: Mapping[str, Tensor], device: torch.device, send: Callable[[Tensor], Tensor]
) -> None:
    """Sends rank 0's stored streams to every rank. A checkpoint from another device type has no stream for this device:
    every rank then takes rank 0's current one."""
    streams = {name: send(stored.get(name, own).to(device)).cpu() for name, own in random_streams(device).items()}
    torch.set_rng_state(streams["random/cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(streams["random/cuda"], device)


def restore_shares(part: PartShares, stored: StoredState) -> None:
    """Fills a trained part's shares from a checkpoint."""
    for kind in KINDS:
        for share in part.kinds[kind].values():
            stored.fill(share, under=part.part.stored_under(kind))
