"""A trained part with its own engine of DeepSpeed, which shards and steps it.

Each part (the policy or its adapter, the critic) has its own engine, since DeepSpeed clips all gradients of an engine
together, and the critic's must not shorten the policy's step. Parameters that an adapter leaves frozen belong to the
module but not to the optimizer: they have no moments and no gradients, and stage 3 shards them like the others.

Invariants:
- every method is collective: all ranks call it, in the same order;
- an update happens on every rank or on none: the global norm of the gradients decides, which has the same bits on each.
  When it is not finite, DeepSpeed leaves weights and moments as they were and drops the gradients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.spec.job import OptimizerSpec
from engine.training.checkpoint.shares import KINDS, PartShares, Share, files_with
from engine.training.checkpoint.stored_state import StoredState
from engine.training.parts.layout import Place, places_of, whole_shape
from engine.training.parts.trained import MOMENTS, TrainedPart
from engine.training.step.micro_batch import MicroBatch
from engine.training.zero.division import Division, is_divided, make_config, whole
from engine.training.zero.guest import bound_collectives, import_deepspeed


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    updated: bool
    grad_norm: float


class ZeroPart:
    def __init__(self, part: TrainedPart, module: nn.Module, optimizer: OptimizerSpec, division: Division) -> None:
        """`module`: computes with the part's parameters, and is built on the division's decoders. The world must have
        been entered."""
        self.prefix = part.prefix
        self._deepspeed = import_deepspeed(division.device)
        self._part, self._division = part, division
        self._places = places_of(part.parameters, part.views)
        groups = [
            {"params": parameters, "weight_decay": decay}
            for parameters, decay in part.decay_groups(optimizer.weight_decay)
        ]
        # torch's own AdamW: DeepSpeed's takes a minute to compile at its first start.
        adamw = torch.optim.AdamW(groups, lr=0.0, betas=optimizer.betas, eps=optimizer.eps, fused=True)
        num_trained = sum(place.shape.numel() for place in self._places.values())
        config = make_config(division.stage, max_grad_norm=optimizer.max_grad_norm, num_trained=num_trained)
        self._engine: Any = self._deepspeed.initialize(model=module, optimizer=adamw, config=config)[0]
        bound_collectives(division.world)
        self._reset_moments(num_updates=0)

    def close(self) -> None:
        self._engine.destroy()

    # One step ----------------------------------------------------------------------------------------------------

    def forward(self, batch: MicroBatch) -> Any:
        return self._engine(batch)

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Adds up the losses of all calls and ranks; the factor undoes DeepSpeed's mean over ranks."""
        self._engine.set_gradient_accumulation_boundary(is_last)
        self._engine.backward(loss * self._division.world.count, scale_wrt_gas=False)

    def drop_gradients(self) -> None:
        """DeepSpeed's step drops them, and a step that has failed ends the ranks."""

    def has_finite_gradients(self) -> bool:
        """True if `step` would apply the update. To be called after the last backward pass."""
        zero = self._engine.optimizer
        groups = zero.fp16_groups if self._division.stage == 3 else zero.params_in_partition
        norms = [zero.get_grad_norm_direct(zero.averaged_gradients[i], group) for i, group in enumerate(groups)]
        return all(norm.item() >= 0.0 for norm in norms)  # DeepSpeed returns -1 for a norm that is not finite

    def spoil_gradients(self) -> None:
        """Makes the next step skip its update, by a NaN: the non-finite value need not be in these gradients."""
        parameter = next(iter(self._part.parameters.values()))
        nans = torch.full(whole_shape(parameter), torch.nan, device=self._division.device)
        self._deepspeed.utils.safe_set_full_grad(parameter, nans)

    def step(self, rate_share: float) -> StepOutcome:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = self._part.learning_rate * rate_share
        self._engine.step()
        return StepOutcome(
            updated=bool(self._engine.was_step_applied()), grad_norm=float(self._engine.get_global_grad_norm())
        )

    # The state ---------------------------------------------------------------------------------------------------

    def written(self, *, is_filled: bool = True) -> PartShares:
        own = {kind: {name: self._share(name, kind) for name in self._places} for kind in KINDS}
        return PartShares(part=self._part, kinds=own)

    def _share(self, name: str, kind: str) -> Share:
        parameter, place, zero = self._part.parameters[name], self._places[name], self._engine.optimizer
        moment = None if kind == "master" else kind
        if is_divided(parameter):
            padded, _ = zero._get_fp32_opt_state_partition(parameter, False, moment)
            span = self._division.span_of_divided(place, len(padded))
            return Share(place, span, padded.detach()[: len(span)])
        fragment = parameter._hp_mapping  # type: ignore[attr-defined]
        if fragment is None:
            return Share(place, range(0), torch.empty(0))
        at = fragment.lp_fragment_address
        return Share(place, range(at.start, at.start + at.numel), fragment.get_hp_fragment(moment).detach())

    def restore(self, stored: StoredState, *, num_updates: int) -> None:
        """Rank 0 reads and sends whole weights, one matrix at a time, since DeepSpeed fills shards from whole values.
        Each rank reads its own shard of the moments."""
        for name, parameter in self._part.parameters.items():
            self._send_weights(parameter, self._places[name], stored)
        self._engine.optimizer.refresh_fp32_params()
        self._reset_moments(num_updates=num_updates)
        for moment in MOMENTS:
            for name in self._places:
                stored.fill(self._share(name, moment), under=self._part.stored_under(moment))

    def files_needed(self, stored: Mapping[str, Sequence[str]]) -> Sequence[str]:
        """Rank 0 sends the weights, so it needs every file."""
        return files_with(self.written(), stored) if self._division.world.index else list(stored)

    @torch.no_grad()
    def _send_weights(self, parameter: nn.Parameter, place: Place, stored: StoredState) -> None:
        world = self._division.world
        with whole(parameter, writer=0):
            if world.index == 0:
                stored.fill(Share.whole(place, parameter), under=self._part.stored_under("master"))
            if not is_divided(parameter):
                world.send(parameter.detach())

    def _reset_moments(self, *, num_updates: int) -> None:
        """Sets all moments to zero, so that they exist on every rank: DeepSpeed links only those that exist after the
        first group's first update, and would miss the second group's."""
        zero, stage = self._engine.optimizer, self._division.stage
        flats = zero.fp32_partitioned_groups_flat if stage == 3 else zero.single_partition_of_fp32_groups
        for flat in flats:
            zero.optimizer.state[flat] = {
                "step": torch.tensor(float(num_updates), device=flat.device),
                **{moment: torch.zeros_like(flat) for moment in MOMENTS},
            }
        if stage < 3:
            zero._hp_optimizer_states_linked = False
            zero._lazy_init_hp_params_optimizer_state()
