"""The trained parts, with their parameters' public names: the policy or its adapter, and the critic.

Invariants:
- only matrices decay, not norms and biases: pulling a scale towards zero only shrinks the layer's signal;
- each part has its own moments, its own learning rate and its own bound on the gradient's norm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn

from engine.models.families.trained_model import TrainedModel, public_views
from engine.spec.job import AlgorithmSpec, OptimizerSpec
from engine.training.parts.layout import Views, whole_shape
from engine.training.parts.lora import Adapter
from engine.training.step.scoring import Critic

MOMENTS: Final = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPart:
    prefix: str
    """The prefix of its names in checkpoints and metrics: "" for the policy."""
    parameters: Mapping[str, nn.Parameter]
    views: Views
    stored_exactly: bool
    """Whether the weights file holds exactly these numbers."""
    learning_rate: float
    """The rate at the end of the warm-up."""

    def stored_under(self, kind: str) -> str:
        """The prefix of names in a checkpoint's files, for its weights ("master") or a moment."""
        return "" if kind == "master" and self.stored_exactly else f"{self.prefix}{kind}/"

    def decay_groups(self, weight_decay: float) -> list[tuple[list[nn.Parameter], float]]:
        """Non-empty groups of (parameters, their decay)."""
        every = list(self.parameters.values())
        groups: list[tuple[list[nn.Parameter], float]] = []
        for is_matrix, decay in ((True, weight_decay), (False, 0.0)):
            if some := [parameter for parameter in every if (len(whole_shape(parameter)) > 1) == is_matrix]:
                groups.append((some, decay))
        return groups


def policy_part(model: TrainedModel, adapter: Adapter | None, spec: OptimizerSpec) -> TrainedPart:
    config = model.config
    return TrainedPart(
        prefix="",
        parameters=dict(model.named_parameters()) if adapter is None else adapter.parameters,
        views=(lambda own: public_views(config, own)) if adapter is None else (lambda own: own),
        stored_exactly=adapter is None and config.dtype == torch.float32,
        learning_rate=spec.learning_rate,
    )


def critic_part(critic: Critic, spec: AlgorithmSpec) -> TrainedPart:
    config = replace(critic.trunk.config, tied=True)  # it has no head

    def views(own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        trunk = {name.removeprefix("trunk."): tensor for name, tensor in own.items()}
        value_D = trunk.pop("value_D")
        return {"value.weight": value_D, **public_views(config, trunk)}

    return TrainedPart(
        prefix="critic_",
        parameters=dict(critic.named_parameters()),
        views=views,
        stored_exactly=False,
        learning_rate=spec.critic.learning_rate,
    )
