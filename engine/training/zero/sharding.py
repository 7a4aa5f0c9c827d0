"""Parameters whose training state DeepSpeed shards among the ranks: steps them, reads and fills whole values.

    stage   each rank holds its shard of
    1       AdamW's moments and the float32 weights that they update
    2       the gradients too
    3       the weights used in forward and backward passes too; a layer's are gathered when it runs

Each trained part (the policy or its adapter, the critic) has its own engine, since DeepSpeed clips all gradients of an
engine together, and the critic's must not shorten the policy's step. Parameters that an adapter leaves frozen belong to
the module but not to the optimizer: they have no moments and no gradients, and stage 3 shards them like the others.

Invariants:
- weights, gradients and moments are float32. bfloat16 is used by autocast inside the module: DeepSpeed's own bfloat16
  mode would also round norms and embeddings, unlike the torch trainer, and stage 1 would use another optimizer class;
- every method is collective: all ranks call it, in the same order;
- an update happens on every rank or on none: the global norm of the gradients decides, which has the same bits on each.
  When it is not finite, DeepSpeed leaves weights and moments as they were and drops the gradients;
- only one matrix at a time is gathered whole.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from engine.models.decoder import Decoder, DecoderConfig
from engine.spec.job import OptimizerSpec
from engine.training.checkpoint.shares import KINDS, PartShares, Share
from engine.training.checkpoint.stored_state import StoredState
from engine.training.parts.layout import Place, decoder_places, own_part, places_of, rows_of, whole_shape
from engine.training.parts.lora import Adapter
from engine.training.parts.published import Held, held_rows
from engine.training.parts.trained import MOMENTS, TrainedPart
from engine.training.ranks.world import World
from engine.training.zero.guest import bound_collectives, import_deepspeed

# DeepSpeed's default: parameters up to this size stay whole on every rank, since gathering norms costs more in time
# than it saves in memory.
PERSISTENT_NUMEL: Final = 100_000

# The upper limit, DeepSpeed's default: each engine allocates its bucket, though an adapter has far fewer gradients.
REDUCE_NUMEL: Final = 500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How DeepSpeed shards, and among which ranks."""

    stage: int
    world: World
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    updated: bool
    grad_norm: float


class ShardedPart:
    def __init__(self, part: TrainedPart, module: nn.Module, optimizer: OptimizerSpec, division: Division) -> None:
        """`module`: computes with the part's parameters, and is built on decoders from `empty_decoder`. The world must
        have been entered."""
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
        config = _make_config(division.stage, max_grad_norm=optimizer.max_grad_norm, num_trained=num_trained)
        self._engine: Any = self._deepspeed.initialize(model=module, optimizer=adamw, config=config)[0]
        bound_collectives(division.world)
        self._reset_moments(num_updates=0)

    @property
    def prefix(self) -> str:
        return self._part.prefix

    def close(self) -> None:
        self._engine.destroy()

    # One step ----------------------------------------------------------------------------------------------------

    def forward(self, *inputs: object) -> Any:
        return self._engine(*inputs)

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Adds up the losses of all calls and ranks; the factor undoes DeepSpeed's mean over ranks."""
        self._engine.set_gradient_accumulation_boundary(is_last)
        self._engine.backward(loss * self._division.world.count, scale_wrt_gas=False)

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

    def step(self, share: float) -> StepOutcome:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = self._part.learning_rate * share
        self._engine.step()
        return StepOutcome(
            updated=bool(self._engine.was_step_applied()), grad_norm=float(self._engine.get_global_grad_norm())
        )

    # The whole state ---------------------------------------------------------------------------------------------

    def shares(self) -> PartShares:
        """This rank's share of the state."""
        own = {kind: {name: self._share(name, kind) for name in self._places} for kind in KINDS}
        return PartShares(part=self._part, kinds=own)

    def _share(self, name: str, kind: str) -> Share:
        parameter, place, zero = self._part.parameters[name], self._places[name], self._engine.optimizer
        moment = None if kind == "master" else kind
        if _is_divided(parameter):
            padded, _ = zero._get_fp32_opt_state_partition(parameter, False, moment)
            span = _span_of_divided(place, len(padded), self._division.world)
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

    @torch.no_grad()
    def _send_weights(self, parameter: nn.Parameter, place: Place, stored: StoredState) -> None:
        world = self._division.world
        with whole(parameter, writer=0):
            if world.index == 0:
                stored.fill(Share.whole(place, parameter), under=self._part.stored_under("master"))
            if not _is_divided(parameter):
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


def empty_decoder(config: DecoderConfig, division: Division) -> Decoder:
    """A decoder with unfilled float32 weights; in stage 3 they are sharded from the start."""
    deepspeed = import_deepspeed(division.device)
    if division.stage < 3:
        with torch.device(division.device):
            return Decoder(config, torch.float32)
    # float32 follows from the configuration, which sets no 16-bit mode. DeepSpeed 0.19.8 ignores a `dtype` given here
    # on processors without float16, and would train weights rounded to bfloat16.
    with deepspeed.zero.Init(config_dict_or_path=_make_config(division.stage), mem_efficient_linear=False):
        return Decoder(config, torch.float32)


def frozen(module: nn.Module, division: Division) -> Callable[..., Any]:
    """A module without training; in stage 3 its weights are gathered layer by layer too."""
    module.requires_grad_(False)
    if division.stage < 3:
        return module
    engine: Callable[..., Any] = import_deepspeed(division.device).initialize(model=module, config=_make_config(3))[0]
    return engine


def fill(model: Decoder, stored: StoredState, division: Division) -> None:
    """Fills this rank's values from files that all ranks can read, so that no rank holds the whole model just to load
    it. To be called before DeepSpeed makes an engine, which keeps small parameters whole."""
    parameters = dict(model.named_parameters())
    for name, place in decoder_places(model.config, parameters).items():
        stored.fill(_share_of_own(parameters[name], place, division.world), under="")


def whole_weights(model: Decoder, adapter: Adapter | None) -> Iterator[tuple[str, Tensor]]:
    """Yields Hugging Face names and values, valid until the next one. Merges the adapter."""
    parameters = dict(model.named_parameters()) if adapter is None else adapter.base
    for name, place in decoder_places(model.config, parameters).items():
        needed = [parameters[name]] if adapter is None else adapter.needed_for(name)
        with whole(*needed):
            yield from place.split(parameters[name].detach() if adapter is None else adapter.merged_values(name))


def base_shares(adapter: Adapter, places: Mapping[str, Place], world: World) -> dict[str, Share]:
    """This rank's shares of frozen weights; a weight that every rank holds whole is divided evenly."""
    return {name: _share_of_base(each, places[name], world) for name, each in adapter.base.items()}


def _share_of_own(parameter: nn.Parameter, place: Place, world: World) -> Share:
    """All values that this rank holds."""
    if not _is_divided(parameter):
        return Share.whole(place, parameter)
    padded = own_part(parameter)
    span = _span_of_divided(place, padded.numel(), world)
    return Share(place, span, padded.view(-1)[: len(span)])


def _share_of_base(parameter: nn.Parameter, place: Place, world: World) -> Share:
    if _is_divided(parameter):
        return _share_of_own(parameter, place, world)
    span = rows_of(world.index, world.count, place.shape.numel())
    return Share(place, span, parameter.detach().view(-1)[span.start : span.stop])


def _span_of_divided(place: Place, num_of_each: int, world: World) -> range:
    """Stage 3 gives every rank the same number of values; padding fills up the last ranks'."""
    start = min(world.index * num_of_each, place.shape.numel())
    return range(start, min(start + num_of_each, place.shape.numel()))


def held_by_rank(division: Division) -> Held:
    """The values of a version that a rank writes: in stage 3 those that it holds, otherwise an equal share of rows."""
    rank, count = division.world.index, division.world.count

    def held(place: Place) -> range:
        if division.stage < 3:
            return held_rows(lambda place: rows_of(rank, count, place.shape[0]))(place)
        return rows_of(rank, count, place.shape.numel())  # DeepSpeed divides flat values as torch divides rows

    return held


def held_values(parameter: nn.Parameter, held: range) -> Tensor:
    """The held values, flat."""
    if _is_divided(parameter):
        return own_part(parameter)[: len(held)]  # without the padding of the last ranks
    return parameter.detach().reshape(-1)[held.start : held.stop]


def whole(*parameters: nn.Parameter, writer: int | None = None) -> AbstractContextManager[Any]:
    """Gathers all values of stage 3's parameters. On exit each rank keeps its own, as rank `writer` left them."""
    divided = [parameter for parameter in parameters if _is_divided(parameter)]
    if not divided:
        return nullcontext()
    from deepspeed.runtime.zero import GatheredParameters

    gathered: AbstractContextManager[Any] = GatheredParameters(divided, modifier_rank=writer)
    return gathered


def _is_divided(parameter: nn.Parameter) -> bool:
    return hasattr(parameter, "ds_id")


def _make_config(stage: int, *, max_grad_norm: float = 1.0, num_trained: int = 0) -> dict[str, object]:
    return {
        "train_micro_batch_size_per_gpu": 1,  # required but unused: step boundaries are set by hand
        "gradient_accumulation_steps": 1,
        "gradient_clipping": max_grad_norm,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": min(max(num_trained, 1), REDUCE_NUMEL),
            "stage3_param_persistence_threshold": PERSISTENT_NUMEL,
            "memory_efficient_linear": False,  # would replace torch.nn.functional.linear for the whole process
        },
    }
