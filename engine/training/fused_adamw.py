"""AdamW by torch's fused kernel, without the class `torch.optim.AdamW`.

That class imports torch's compiler, and with it sympy, only to tell it to keep out: seconds of the start of every
trainer, and memory for as long as it lives. Nothing here is ever compiled.

Invariant: parameters and moments are bit for bit those of `torch.optim.AdamW(fused=True)`.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from engine.spec.optimizer import OptimizerSpec
from engine.training.trained_parts import TrainedPart

Moments = dict[str, Tensor]
"""`step`, `exp_avg`, `exp_avg_sq`; empty before the first update."""


@dataclass(slots=True, kw_only=True)
class ParameterGroup:
    parameters: list[nn.Parameter]
    weight_decay: float
    full_lr: float
    """The rate that the warm-up rises to."""
    lr: float = 0.0


@dataclass(slots=True, kw_only=True)
class FusedAdamW:
    groups: list[ParameterGroup]
    betas: tuple[float, float]
    eps: float
    state: defaultdict[nn.Parameter, Moments] = field(default_factory=lambda: defaultdict(dict))

    @classmethod
    def of(cls, part: TrainedPart, spec: OptimizerSpec) -> Self:
        groups = [
            ParameterGroup(parameters=parameters, weight_decay=decay, full_lr=part.learning_rate)
            for parameters, decay in part.decay_groups(spec.weight_decay)
        ]
        return cls(groups=groups, betas=spec.betas, eps=spec.eps)

    def zero_grad(self) -> None:
        for parameter in self._parameters():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for group in self.groups:
            moved = [parameter for parameter in group.parameters if parameter.grad is not None]
            states = [self._state_of(parameter) for parameter in moved]
            adamw(
                list(moved),
                [parameter.grad for parameter in moved if parameter.grad is not None],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=group.lr,
                weight_decay=group.weight_decay,
                eps=self.eps,
                maximize=False,
            )

    def _parameters(self) -> Iterable[nn.Parameter]:
        return (parameter for group in self.groups for parameter in group.parameters)

    def _state_of(self, parameter: nn.Parameter) -> Moments:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state
