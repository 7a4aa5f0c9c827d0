"""All that a weights file leaves out and an exact resume needs: moments, exact weights, random streams.

Invariant: every tensor is stored under the public name of the weight that it belongs to (Hugging Face's, or peft's),
so that the file does not depend on how the decoder fuses its matrices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from engine.training.fused_adamw import FusedAdamW

_MOMENTS: Final = ("exp_avg", "exp_avg_sq")

Views = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Tensors shaped and named like a part's parameters → views of them, by public name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPart:
    """Parameters that one optimizer moves."""

    prefix: str
    """Of its names in the file: "" for the policy."""
    parameters: Mapping[str, nn.Parameter]
    views: Views
    optimizer: FusedAdamW
    stored_exactly: bool
    """The weights file has these very numbers."""

    def public(self, own: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
        return {f"{self.prefix}{kind}/{name}": view for name, view in self.views(own).items()}


def read_exact_state(parts: Sequence[TrainedPart], device: torch.device) -> dict[str, Tensor]:
    """Views: copy before training on."""
    state = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["random/cuda"] = torch.cuda.get_rng_state(device)
    for part in parts:
        if not part.stored_exactly:
            state |= part.public({name: value.detach() for name, value in part.parameters.items()}, "master")
        for moment in _MOMENTS:
            own = {
                # Before its first update an optimizer has no moments, which is the same as zeros.
                name: part.optimizer.state[parameter].get(moment, torch.zeros_like(parameter))
                for name, parameter in part.parameters.items()
            }
            state |= part.public(own, moment)
    return state


@torch.no_grad()
def restore_exact_state(
    parts: Sequence[TrainedPart], device: torch.device, state: Mapping[str, Tensor], *, num_updates: int
) -> None:
    torch.set_rng_state(state["random/cpu"].cpu())
    if device.type == "cuda" and "random/cuda" in state:
        torch.cuda.set_rng_state(state["random/cuda"].cpu(), device)
    for part in parts:
        if not part.stored_exactly:
            _fill(part.public({name: value.detach() for name, value in part.parameters.items()}, "master"), state)
        for parameter in part.parameters.values():
            part.optimizer.state[parameter] = {
                "step": torch.tensor(float(num_updates), device=device),
                **{moment: torch.zeros_like(parameter) for moment in _MOMENTS},
            }
        for moment in _MOMENTS:
            own = {name: part.optimizer.state[parameter][moment] for name, parameter in part.parameters.items()}
            _fill(part.public(own, moment), state)


def _fill(views: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    for name, view in views.items():
        view.copy_(state[name])
