"""What a trainer's layers leave for the backward pass, where the job's spec does not say it."""

import torch

from engine.models.decoder import Activations, DecoderConfig
from engine.spec.job import TrainerSpec


def how_to_hold(spec: TrainerSpec, config: DecoderConfig, device: torch.device) -> Activations:
    return spec.activations or "kept"
