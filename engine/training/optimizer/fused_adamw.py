"""AdamW by torch's fused kernel, without the class `torch.optim.AdamW`.

That class imports torch's compiler, and with it sympy, only to exclude itself from compilation: this costs every
trainer seconds at start, and memory for its lifetime. Nothing here is compiled.

Moments may be stored apart: in bfloat16 or 8 bits, in host memory, or both. A step then takes each parameter piece by
piece, and only the current piece's moments are float32 and on the parameter's device. With 8 bits, moments of matrices
are stored row by row; those of vectors are few and stay float32.

Invariants:
- parameters and moments are bit for bit those of `torch.optim.AdamW(fused=True)`, also with moments in host memory;
- bfloat16 is a storage format, never used for computing. It has 8 significant bits, and an update takes a thousandth
  off the second moment (β₂ = 0.999): rounded to nearest, the moment would never fall. Stochastic rounding is right on
  average. So it is for 8-bit floats, which keep three bits after the point;
- the rounding noise follows from the update's number and the order of the parameters, so no state of it is saved.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Self

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from engine.spec.optimizer import OptimizerSpec
from engine.training.optimizer.small_floats import SmallFloats
from engine.training.optimizer.stochastic_rounding import round_by_chance
from engine.training.parts.trained import MOMENTS, TrainedPart

Moments = dict[str, Tensor]
"""`step`, `exp_avg`, `exp_avg_sq`; empty before the first update."""

# 16 MB of float32, a handful of which exist at a time: little compared with the models that need it, and on a GPU
# enough for a kernel to take longer than its launch.
PIECE_NUMEL: Final = 1 << 22

# With float8, the dtype of vectors' moments.
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float8": torch.float32}
FIRST: Final = MOMENTS[0]


@dataclass(slots=True, kw_only=True)
class ParameterGroup:
    parameters: list[nn.Parameter]
    weight_decay: float
    full_lr: float
    """The rate at the end of the warm-up."""
    lr: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptApart:
    dtype: torch.dtype
    in_host_memory: bool
    small: bool = False
    """Whether moments of matrices are stored in 8 bits."""

    @classmethod
    def from_spec(cls, spec: OptimizerSpec) -> Self | None:
        """None: moments have their parameters' dtype and device."""
        if spec.moments == "float32" and not spec.offload:
            return None
        return cls(dtype=_DTYPES[spec.moments], in_host_memory=spec.offload, small=spec.moments == "float8")

    def small_zeros_for(self, parameter: nn.Parameter) -> dict[str, SmallFloats]:
        device = torch.device("cpu") if self.in_host_memory else parameter.device
        pinned = self.in_host_memory and parameter.is_cuda
        return {
            moment: SmallFloats.zeros(parameter.shape, signed=moment == FIRST, device=device, pinned=pinned)
            for moment in MOMENTS
        }

    def zeros_for(self, parameter: nn.Parameter) -> Tensor:
        if not self.in_host_memory:
            return torch.zeros(parameter.shape, dtype=self.dtype, device=parameter.device)
        # Pinned, so that a GPU copies it directly.
        return torch.zeros(parameter.shape, dtype=self.dtype, device="cpu", pin_memory=parameter.is_cuda)


@dataclass(slots=True, kw_only=True)
class FusedAdamW:
    groups: list[ParameterGroup]
    betas: tuple[float, float]
    eps: float
    kept: KeptApart | None = None
    state: defaultdict[nn.Parameter, Moments] = field(default_factory=lambda: defaultdict(dict))
    small: dict[nn.Parameter, dict[str, SmallFloats]] = field(default_factory=dict)
    """The moments of matrices that are stored in 8 bits; their `state` holds only the step."""

    @classmethod
    def of(cls, part: TrainedPart, spec: OptimizerSpec) -> Self:
        groups = [
            ParameterGroup(parameters=parameters, weight_decay=decay, full_lr=part.learning_rate)
            for parameters, decay in part.decay_groups(spec.weight_decay)
        ]
        return cls(groups=groups, betas=spec.betas, eps=spec.eps, kept=KeptApart.from_spec(spec))

    def zero_grad(self) -> None:
        for _, parameter in self._iterate_parameters():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        if self.kept is None:
            for group in self.groups:
                self._step_at_once(group)
            return
        moved = [(group, each, each.grad) for group, each in self._iterate_parameters() if each.grad is not None]
        if moved:
            chance = self._seed_chance(moved[0][1])
            for group, parameter, gradient in moved:
                if self._is_small(parameter):
                    self._step_in_rows(group, parameter, gradient, chance)
                else:
                    self._step_in_pieces(group, parameter, gradient, chance)

    def state_of(self, parameter: nn.Parameter) -> Moments:
        if not self.state[parameter]:
            self.reset(parameter, num_updates=0)
        return self.state[parameter]

    def moment_of(self, parameter: nn.Parameter, moment: str, *, is_filled: bool = True) -> Tensor:
        """The stored moment; an 8-bit one as bfloat16 in host memory, left empty unless `is_filled`."""
        state = self.state_of(parameter)
        if not self._is_small(parameter):
            return state[moment]
        kept = self.small[parameter][moment]
        values = torch.empty(parameter.shape, dtype=torch.bfloat16)
        for rows in _split_rows(parameter) if is_filled else ():
            values[rows].copy_(kept.read(rows, parameter.device))
        return values

    @torch.no_grad()
    def take_moment(self, parameter: nn.Parameter, moment: str, values: Tensor) -> None:
        """`values`: of the same size, possibly the stored tensor itself. Values from 8 bits are restored exactly."""
        state, values = self.state_of(parameter), values.view(parameter.shape)
        if not self._is_small(parameter):
            state[moment].copy_(values)
            return
        chance = torch.Generator(parameter.device).manual_seed(0)  # for values that were stored in more bits
        for rows in _split_rows(parameter):
            self.small[parameter][moment].write(rows, values[rows].to(parameter.device, torch.float32), chance)

    def _is_small(self, parameter: nn.Parameter) -> bool:
        return self.kept is not None and self.kept.small and parameter.dim() > 1

    def reset(self, parameter: nn.Parameter, *, num_updates: int) -> None:
        state = self.state[parameter]
        state["step"] = torch.full((), float(num_updates), dtype=torch.float32, device=parameter.device)
        if self.kept is not None and self._is_small(parameter):
            self.small[parameter] = self.kept.small_zeros_for(parameter)
            return
        for moment in MOMENTS:
            state[moment] = (
                torch.zeros_like(parameter, memory_format=torch.preserve_format)
                if self.kept is None
                else self.kept.zeros_for(parameter)
            )

    def _seed_chance(self, parameter: nn.Parameter) -> torch.Generator:
        num_updates = int(self.state_of(parameter)["step"].item())
        return torch.Generator(parameter.device).manual_seed(num_updates)

    def _step_at_once(self, group: ParameterGroup) -> None:
        moved = [(each, each.grad) for each in group.parameters if each.grad is not None]
        states = [self.state_of(parameter) for parameter, _ in moved]
        self._move(
            group,
            [parameter for parameter, _ in moved],
            [gradient for _, gradient in moved],
            [[state[moment] for state in states] for moment in MOMENTS],
            [state["step"] for state in states],
        )

    def _step_in_pieces(
        self, group: ParameterGroup, parameter: nn.Parameter, gradient: Tensor, chance: torch.Generator
    ) -> None:
        assert parameter.dtype == torch.float32, "pieces of moments are float32, as the weights that they move"
        state = self.state_of(parameter)
        whole = (parameter.detach().view(-1), gradient.reshape(-1), *(state[moment].view(-1) for moment in MOMENTS))
        for weights, slope, *kept in zip(*(torch.split(each, PIECE_NUMEL) for each in whole), strict=True):
            # A float32 moment on this device is no copy, and is written onto itself.
            moments = [each.to(weights.device, torch.float32) for each in kept]
            self._move(group, [weights], [slope], [[moment] for moment in moments], [state["step"].clone()])
            for each, moment in zip(kept, moments, strict=True):
                each.copy_(moment if each.dtype == torch.float32 else round_by_chance(moment, chance))
        state["step"] += 1

    def _step_in_rows(
        self, group: ParameterGroup, parameter: nn.Parameter, gradient: Tensor, chance: torch.Generator
    ) -> None:
        assert parameter.dtype == torch.float32, "pieces of moments are float32, as the weights that they move"
        state = self.state_of(parameter)
        kept = self.small[parameter]
        for rows in _split_rows(parameter):
            moments = {moment: kept[moment].read(rows, parameter.device) for moment in MOMENTS}
            pieces = [[each] for each in moments.values()]
            self._move(group, [parameter.detach()[rows]], [gradient[rows]], pieces, [state["step"].clone()])
            for moment, values in moments.items():
                kept[moment].write(rows, values, chance)
        state["step"] += 1

    def _move(
        self,
        group: ParameterGroup,
        parameters: list[Tensor],
        gradients: list[Tensor],
        moments: list[list[Tensor]],
        steps: list[Tensor],
    ) -> None:
        """Updates parameters and moments in place, and increments the steps."""
        exp_avgs, exp_avg_sqs = moments
        adamw(
            parameters,
            gradients,
            exp_avgs,
            exp_avg_sqs,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=group.lr,
            weight_decay=group.weight_decay,
            eps=self.eps,
            maximize=False,
        )

    def _iterate_parameters(self) -> Iterable[tuple[ParameterGroup, nn.Parameter]]:
        return ((group, parameter) for group in self.groups for parameter in group.parameters)


def _split_rows(parameter: nn.Parameter) -> Iterator[slice]:
    num_rows, num_columns = parameter.shape
    step = max(PIECE_NUMEL // max(num_columns, 1), 1)
    return (slice(start, start + step) for start in range(0, num_rows, step))
