"""Parameters that torch's `fully_shard` (FSDP2) shards among the ranks: makes and fills them.

    each rank    its rows of every matrix: float32 weights, gradients and two moments
    a layer      gathered for its forward pass, freed, gathered again for its backward pass, after which its gradients
                 are summed over the ranks and each keeps its rows of the sum
    the root     embedding, last norm and head: like a layer, gathered for the whole pass

Ranks shard the weights among all of them, or among those of a host (copies.py). In the latter case gradients are summed
over hosts once an update. Over the ranks of a copy they are summed after each micro-batch, or once an update where each
rank has the memory for all of them (gradient_sums.py).

With `compute_dtype` bfloat16, weights are gathered in bfloat16, which halves the traffic; sums over ranks, and all that
a rank keeps, are float32. A mixture's router is gathered in float32: rounded weights choose other experts.

Invariants:
- a rank never holds more whole weights than the root and two layers, one of which is gathered while the other computes;
  and one matrix while weights are read or filled;
- gradients of ranks and of micro-batches add up, as losses do, in float32;
- each value of the trained state is written by one rank: a shard's values are divided among the ranks that have it;
- a step that raises may leave sums of some ranks behind: its trainer is not used again;
- a method marked collective is called by all ranks, in the same order.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from engine.models.families.trained_model import ModelConfig, TrainedModel, empty_model
from engine.models.mixture import Router
from engine.training.checkpoint.shares import Share
from engine.training.checkpoint.stored_state import StoredState
from engine.training.fsdp.copies import Copies
from engine.training.parts.layout import Place, own_part, rows_of
from engine.training.ranks.world import World


class Division:
    """How FSDP shards, and among which ranks."""

    def __init__(
        self, world: World, device: torch.device, gathered_in: torch.dtype, copies: Copies, *, sums_once: bool = False
    ) -> None:
        """`world`: must have been entered. `sums_once`: gradients are summed once an update, also within a copy.
        Collective."""
        self.world, self.device, self.copies = world, device, copies
        self._mesh = copies.make_mesh(world, device)
        self._roots: list[FSDPModule] = []
        self._sums_once, self._sums_now = sums_once, True
        self._precision = MixedPrecisionPolicy(
            param_dtype=gathered_in,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,  # a micro-batch's log-probs are inputs too
        )

    # Modules -----------------------------------------------------------------------------------------------------

    def empty_model(self, config: ModelConfig, dtype: torch.dtype = torch.float32) -> TrainedModel:
        """A model whose weights have no memory until `divide`; the rotary tables are filled. `dtype`: of the rows that
        a rank keeps, not of the computation."""
        return empty_model(config, dtype, device=self.device)

    def divide(self, module: nn.Module, model: TrainedModel) -> None:
        """Replaces parameters by this rank's rows, in memory without values. `module`: its forward pass includes the
        model's and all other reads of its weights."""
        exact = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
        for router in (each for each in model.modules() if isinstance(each, Router)):
            self._divide(router, exact)
        for each in model.layers:
            self._divide(each, self._precision)
        self._roots.append(self._divide(module, self._precision))
        module._apply(self._allocate)  # type: ignore[no-untyped-call]

    def begin_backward(self, *, is_last: bool) -> None:
        """`is_last`: of the update. Its last backward passes make the sums that wait, over all of its micro-batches."""
        if is_last != self._sums_now:
            for root in self._roots:
                if self._sums_once:
                    root.set_requires_gradient_sync(is_last)
                elif self.copies.num_copies > 1:
                    root.set_requires_all_reduce(is_last)
        self._sums_now = is_last

    def _divide(self, module: nn.Module, precision: MixedPrecisionPolicy) -> FSDPModule:
        # Also for the root, which would stay whole after a pass without gradients, beyond the next update.
        shard = fully_shard(module, mesh=self._mesh, mp_policy=precision, reshard_after_forward=True)
        shard.set_gradient_divide_factor(1.0)
        shard.set_force_sum_reduction_for_comms(True)  # a plain sum, without rounding by a division
        return shard

    def _allocate(self, tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=self.device) if tensor.device.type == "meta" else tensor

    # Rows --------------------------------------------------------------------------------------------------------

    def fill(self, parameters: Mapping[str, nn.Parameter], places: Mapping[str, Place], stored: StoredState) -> None:
        """Fills this rank's rows from files that all ranks can read."""
        for name, place in places.items():
            share = Share(place, self.held_span(place), own_part(parameters[name]).view(-1))
            stored.fill(share, under="")

    def held_span(self, place: Place) -> range:
        rows, width = rows_of(self.copies.own_shard, self.copies.num_shards, place.shape[0]), place.shape[1:].numel()
        return range(rows.start * width, rows.stop * width)

    def written_span(self, place: Place) -> range:
        span = self.held_span(place)
        own = rows_of(self.copies.own_copy, self.copies.num_copies, len(span))
        return span[own.start : own.stop]

    def values_at(self, parameter: nn.Parameter, span: range) -> Tensor:
        """Values that this rank has, flat."""
        start = self.held_span(Place(parameter.shape, ())).start
        return own_part(parameter).reshape(-1)[span.start - start : span.stop - start]

    # Sums --------------------------------------------------------------------------------------------------------

    def sum_over_shards(self, of_shard: Tensor) -> Tensor:
        """Over all ranks: a sum over the ranks of a host could be made in another order on another host."""
        return self.world.sum(of_shard.to(self.device)) / self.copies.num_copies
