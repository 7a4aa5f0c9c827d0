"""Which parameters an optimizer moves, under which public names: the policy or its adapter, and the critic.

Invariant: matrices decay, norms and biases do not: pulling a scale towards zero only shrinks the layer's signal.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import Tensor, nn

from engine.models.decoder import Decoder
from engine.models.loading import hugging_face_views
from engine.spec.job import OptimizerSpec
from engine.training.exact_state import TrainedPart, Views
from engine.training.fused_adamw import FusedAdamW, ParameterGroup
from engine.training.lora import Adapter
from engine.training.scoring import Critic

BETAS: Final = (0.9, 0.999)
EPS: Final = 1e-8


def policy_part(model: Decoder, adapter: Adapter | None, spec: OptimizerSpec) -> TrainedPart:
    if adapter is not None:
        return _part("", adapter.parameters, dict, spec, stored_exactly=False, learning_rate=spec.learning_rate)
    config = model.config
    return _part(
        "",
        dict(model.named_parameters()),
        lambda own: hugging_face_views(config, own),
        spec,
        stored_exactly=config.dtype == torch.float32,
        learning_rate=spec.learning_rate,
    )


def critic_part(critic: Critic, spec: OptimizerSpec, *, learning_rate: float) -> TrainedPart:
    config, unused = critic.trunk.config, critic.trunk.head_VD

    def views(own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        trunk = {name.removeprefix("trunk."): tensor for name, tensor in own.items()}
        value_D = trunk.pop("value_D")
        named = hugging_face_views(config, {"head_VD": unused, **trunk})
        named.pop("lm_head.weight", None)
        return {"value.weight": value_D, **named}

    trained = {name: parameter for name, parameter in critic.named_parameters() if parameter.requires_grad}
    return _part("critic_", trained, views, spec, stored_exactly=False, learning_rate=learning_rate)


def _part(
    prefix: str,
    parameters: Mapping[str, nn.Parameter],
    views: Views,
    spec: OptimizerSpec,
    *,
    stored_exactly: bool,
    learning_rate: float,
) -> TrainedPart:
    groups = _decay_groups(parameters.values(), spec.weight_decay, learning_rate)
    optimizer = FusedAdamW(groups=groups, betas=BETAS, eps=EPS)
    return TrainedPart(
        prefix=prefix, parameters=parameters, views=views, optimizer=optimizer, stored_exactly=stored_exactly
    )


def _decay_groups(
    parameters: Iterable[nn.Parameter], weight_decay: float, learning_rate: float
) -> list[ParameterGroup]:
    every = list(parameters)
    groups: list[ParameterGroup] = []
    for is_matrix, decay in ((True, weight_decay), (False, 0.0)):
        if some := [parameter for parameter in every if (parameter.dim() > 1) == is_matrix]:
            groups.append(ParameterGroup(parameters=some, weight_decay=decay, full_lr=learning_rate))
    return groups
