"""A trained part whose rows this process holds as plain tensors, with their AdamW.

Invariants:
- rows are views of the module's parameters, so an update of them updates the module;
- each rank clips by the norm of the whole gradient, which has the same bits on each.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from engine.spec.job import OptimizerSpec
from engine.training.checkpoint.exact_state import restore_shares
from engine.training.checkpoint.shares import PartShares, Share, files_with
from engine.training.checkpoint.stored_state import StoredState
from engine.training.optimizer.fused_adamw import FusedAdamW
from engine.training.parts.layout import Place, own_part, places_of
from engine.training.parts.trained import MOMENTS, TrainedPart
from engine.training.step.micro_batch import MicroBatch


class Rows(Protocol):
    """The rows of each parameter that a rank has."""

    def held_span(self, place: Place) -> range:
        """Their flat values."""

    def written_span(self, place: Place) -> range:
        """Those that this rank writes, and not the other ranks that have them."""

    def sum_over_shards(self, of_shard: Tensor) -> Tensor:
        """`of_shard`: the same on every rank that has the shard. Returns the same bits on all ranks. Collective."""


class OptimizedPart:
    def __init__(self, part: TrainedPart, module: nn.Module, spec: OptimizerSpec, rows: Rows) -> None:
        self.prefix = part.prefix
        self._part, self._module, self._rows = part, module, rows
        self._max_norm = spec.max_grad_norm
        self._places = places_of(part.parameters, part.views)
        self._own = {name: nn.Parameter(own_part(parameter)) for name, parameter in part.parameters.items()}
        self._optimizer = FusedAdamW.of(replace(part, parameters=self._own), spec)

    # One step ----------------------------------------------------------------------------------------------------

    def forward(self, batch: MicroBatch) -> Any:
        return self._module(batch)

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def drop_gradients(self) -> None:
        self._optimizer.zero_grad()
        for parameter in self._part.parameters.values():
            parameter.grad = None

    def clip(self) -> float:
        """Returns the gradient's norm before clipping. Collective."""
        gradients = self.take_gradients()
        # Squared in float64: in float32 the square of a norm from 2^64 on is infinite. One rank's norm stays exact.
        own_norm = get_total_norm(gradients).double()
        norm = self._rows.sum_over_shards(own_norm.square()).sqrt().float()
        clip_grads_with_norm_(self._own.values(), self._max_norm, norm)
        return norm.item()

    def take_gradients(self) -> list[Tensor]:
        """Gives each row its gradient, of which this rank has the rows too."""
        for name, parameter in self._part.parameters.items():
            self._own[name].grad = None if parameter.grad is None else own_part(parameter.grad)
        return [own.grad for own in self._own.values() if own.grad is not None]

    def step(self, rate_share: float) -> None:
        for group in self._optimizer.groups:
            group.lr = group.full_lr * rate_share
        self._optimizer.step()

    # The state ---------------------------------------------------------------------------------------------------

    def written(self, *, is_filled: bool = True) -> PartShares:
        held = self._held(is_filled=is_filled)
        kinds = {
            kind: {name: self._written(share) for name, share in shares.items()} for kind, shares in held.kinds.items()
        }
        return replace(held, kinds=kinds)

    def restore(self, stored: StoredState, *, num_updates: int) -> None:
        for own in self._own.values():
            self._optimizer.reset(own, num_updates=num_updates)
        held = self._held()
        restore_shares(held, stored)
        for moment in MOMENTS:
            for name, share in held.kinds[moment].items():
                self._optimizer.take_moment(self._own[name], moment, share.values)

    def files_needed(self, stored: Mapping[str, Sequence[str]]) -> Sequence[str]:
        return files_with(self._held(is_filled=False), stored)

    def _held(self, *, is_filled: bool = True) -> PartShares:
        own = {"master": {name: each.detach() for name, each in self._own.items()}}
        for moment in MOMENTS:
            own[moment] = {
                name: self._optimizer.moment_of(each, moment, is_filled=is_filled) for name, each in self._own.items()
            }
        kinds = {
            kind: {name: self._share(name, values) for name, values in named.items()} for kind, named in own.items()
        }
        return PartShares(part=self._part, kinds=kinds)

    def _share(self, name: str, values: Tensor) -> Share:
        place = self._places[name]
        return Share(place, self._rows.held_span(place), values.view(-1))

    def _written(self, share: Share) -> Share:
        span, first = self._rows.written_span(share.place), share.span.start
        return Share(share.place, span, share.values[span.start - first : span.stop - first])


def update_together(
    parts: Sequence[OptimizedPart], *, finite: bool, rate_share: float
) -> tuple[bool, Mapping[str, float]]:
    """An update of `Sharding.update`: all norms are known before the first part is updated."""
    norms = {part.prefix: part.clip() for part in parts}
    updated = finite and all(map(math.isfinite, norms.values()))
    for part in parts:
        if updated:
            part.step(rate_share)
    for part in parts:
        part.drop_gradients()
    return updated, norms
