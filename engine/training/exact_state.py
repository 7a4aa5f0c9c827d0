"""All that a weights file leaves out and an exact resume needs: moments, float32 weights, random streams.

Invariant: every tensor is stored under the Hugging Face name of the weight that it belongs to, so that the file does
not depend on how the decoder fuses its matrices.
"""

import torch
from torch import Tensor
from torch.optim import AdamW

from engine.models.decoder import Decoder
from engine.models.loading import hugging_face_views, model_tensors

_MOMENTS = ("exp_avg", "exp_avg_sq")


def read_exact_state(model: Decoder, optimizer: AdamW) -> dict[str, Tensor]:
    state = {"random/cpu": torch.get_rng_state()}
    device = model.embedding_VD.device
    if device.type == "cuda":
        state["random/cuda"] = torch.cuda.get_rng_state(device)
    if model.config.dtype != torch.float32:
        state |= {f"master/{name}": tensor for name, tensor in model_tensors(model).items()}
    for moment in _MOMENTS:
        own = {
            # Before its first update an optimizer has no moments, which is the same as zeros.
            name: optimizer.state[parameter].get(moment, torch.zeros_like(parameter))
            for name, parameter in model.named_parameters()
        }
        state |= {f"{moment}/{name}": view for name, view in hugging_face_views(model.config, own).items()}
    return state


def restore_exact_state(model: Decoder, optimizer: AdamW, state: dict[str, Tensor], *, num_updates: int) -> None:
    torch.set_rng_state(state["random/cpu"].cpu())
    device = model.embedding_VD.device
    if device.type == "cuda" and "random/cuda" in state:
        torch.cuda.set_rng_state(state["random/cuda"].cpu(), device)
    for name, tensor in model_tensors(model).items():
        if f"master/{name}" in state:
            tensor.copy_(state[f"master/{name}"])
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(float(num_updates), device=device),
            **{moment: torch.zeros_like(parameter) for moment in _MOMENTS},
        }
    for moment in _MOMENTS:
        own = {name: optimizer.state[parameter][moment] for name, parameter in model.named_parameters()}
        for name, view in hugging_face_views(model.config, own).items():
            view.copy_(state[f"{moment}/{name}"])
