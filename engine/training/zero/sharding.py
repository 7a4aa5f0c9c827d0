"""Parameters whose training state DeepSpeed divides among the ranks: step them, read them whole, fill them whole.

    stage   each rank holds its part of
    1       AdamW's moments and the float32 weights that they update
    2       the gradients too
    3       the weights that are computed with too; a layer's are gathered when it is its turn

A trained part (the policy or its adapter, the critic) has an engine of its own, since DeepSpeed clips all gradients of
an engine together, and a critic's must not shorten the policy's step. Parameters that an adapter leaves as they are
belong to the module and not to the optimizer: no moments, no gradients, and in stage 3 divided like the others.

Invariants:
- weights, gradients and moments are float32. Computing in bfloat16 is autocast inside of the module: in DeepSpeed's own
  bfloat16 mode norms and embeddings would be rounded too, unlike the torch trainer's, and stage 1 would go through
  another optimizer class of its;
- every method is collective: all ranks call it, in the same order;
- an update happens on every rank or on none: the global norm of the gradients decides, which has the same bits on each.
  When it is not finite, DeepSpeed leaves weights and moments as they were and drops the gradients;
- one matrix at a time is made whole.
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

# DeepSpeed's default: parameters up to this size stay whole on every rank, since gathering norms costs more time than
# they cost memory.
PERSISTENT_NUMEL: Final = 100_000

# DeepSpeed's default, at most: it takes that much memory for every engine, though an adapter's gradients are far fewer.
REDUCE_NUMEL: Final = 500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The way in which DeepSpeed divides, and the ranks among which it does."""

    stage: int
    world: World
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    updated: bool
    grad_norm: float


class ShardedPart:
    def __init__(self, part: TrainedPart, module: nn.Module, optimizer: OptimizerSpec, division: Division) -> None:
        """`module` computes with the part's parameters. It stands on decoders from `empty_decoder`, in a world that has
        been entered."""
        self._deepspeed = import_deepspeed(division.device)
        self._part, self._division = part, division
        self._places = places_of(part.parameters, part.views)
        groups = [
            {"params": parameters, "weight_decay": decay}
            for parameters, decay in part.decay_groups(optimizer.weight_decay)
        ]
        # torch's own AdamW: DeepSpeed's compiles for a minute at its first start.
        adamw = torch.optim.AdamW(groups, lr=0.0, betas=optimizer.betas, eps=optimizer.eps, fused=True)
        num_trained = sum(place.shape.numel() for place in self._places.values())
        config = _config(division.stage, max_grad_norm=optimizer.max_grad_norm, num_trained=num_trained)
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
        """Losses of all calls and ranks add up; DeepSpeed takes the mean over ranks, hence the factor."""
        self._engine.set_gradient_accumulation_boundary(is_last)
        self._engine.backward(loss * self._division.world.count, scale_wrt_gas=False)

    def has_finite_gradients(self) -> bool:
        """After the last backward pass. What `step` asks itself, for those who must know before."""
        zero = self._engine.optimizer
        groups = zero.fp16_groups if self._division.stage == 3 else zero.params_in_partition
        norms = [zero.get_grad_norm_direct(zero.averaged_gradients[i], group) for i, group in enumerate(groups)]
        return all(norm.item() >= 0.0 for norm in norms)  # DeepSpeed says -1 of one that is not finite

    def spoil_gradients(self) -> None:
        """The next step shall not happen: something is not finite, which need not show in these gradients."""
        parameter = next(iter(self._part.parameters.values()))
        spoiled = torch.full(whole_shape(parameter), torch.nan, device=self._division.device)
        self._deepspeed.utils.safe_set_full_grad(parameter, spoiled)

    def step(self, share: float) -> StepOutcome:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = self._part.learning_rate * share
        self._engine.step()
        return StepOutcome(
            updated=bool(self._engine.was_step_applied()), grad_norm=float(self._engine.get_global_grad_norm())
        )

    # The whole state ---------------------------------------------------------------------------------------------

    def shares(self) -> PartShares:
        """What this rank has of it."""
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
        """Weights whole, one matrix at a time, which rank 0 reads: DeepSpeed fills its parts of them from whole ones.
        Of moments every rank reads its own."""
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
        """Zero, and from here on there on every rank: DeepSpeed links those that exist after the first group's first
        update, and would never find the second group's."""
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
    """Weights in float32 that nobody has filled yet; in stage 3 divided among the ranks from the first one on."""
    deepspeed = import_deepspeed(division.device)
    if division.stage < 3:
        with torch.device(division.device):
            return Decoder(config, torch.float32)
    # The configuration, which asks for no 16 bits, makes it float32. A `dtype` given here would be ignored wherever the
    # processor does not compute in float16 (DeepSpeed 0.19.8), and weights rounded to bfloat16 would be trained.
    with deepspeed.zero.Init(config_dict_or_path=_config(division.stage), mem_efficient_linear=False):
        return Decoder(config, torch.float32)


def frozen(module: nn.Module, division: Division) -> Callable[..., Any]:
    """A module that is only computed with; in stage 3 its weights are gathered layer by layer too."""
    module.requires_grad_(False)
    if division.stage < 3:
        return module
    engine: Callable[..., Any] = import_deepspeed(division.device).initialize(model=module, config=_config(3))[0]
    return engine


def fill(model: Decoder, stored: StoredState, division: Division) -> None:
    """This rank's values, from files that all can read: no rank has a whole model that it does not compute with. Before
    DeepSpeed has made an engine of it, which keeps more than a rank's values of what is small."""
    parameters = dict(model.named_parameters())
    for name, place in decoder_places(model.config, parameters).items():
        stored.fill(_own_share(parameters[name], place, division.world), under="")


def whole_weights(model: Decoder, adapter: Adapter | None) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face name and values, to be copied before the next is asked for. An adapter is merged."""
    parameters = dict(model.named_parameters()) if adapter is None else adapter.base
    for name, place in decoder_places(model.config, parameters).items():
        needed = [parameters[name]] if adapter is None else adapter.needed_for(name)
        with whole(*needed):
            yield from place.split(parameters[name].detach() if adapter is None else adapter.merged_values(name))


def base_shares(adapter: Adapter, places: Mapping[str, Place], world: World) -> dict[str, Share]:
    """This rank's, of weights that are not trained: of one that every rank has whole, a part like the others'."""
    return {name: _base_share(each, places[name], world) for name, each in adapter.base.items()}


def _own_share(parameter: nn.Parameter, place: Place, world: World) -> Share:
    """All that this rank has."""
    if not _is_divided(parameter):
        return Share.whole(place, parameter)
    padded = own_part(parameter)
    span = _span_of_divided(place, padded.numel(), world)
    return Share(place, span, padded.view(-1)[: len(span)])


def _base_share(parameter: nn.Parameter, place: Place, world: World) -> Share:
    if _is_divided(parameter):
        return _own_share(parameter, place, world)
    span = rows_of(world.index, world.count, place.shape.numel())
    return Share(place, span, parameter.detach().view(-1)[span.start : span.stop])


def _span_of_divided(place: Place, num_of_each: int, world: World) -> range:
    """Stage 3 gives every rank as many values of a parameter; what is beyond its end fills up the last ones'."""
    start = min(world.index * num_of_each, place.shape.numel())
    return range(start, min(start + num_of_each, place.shape.numel()))


def held_by_rank(division: Division) -> Held:
    """The values that a rank writes of a version: in stage 3 those that it has, else as many rows as any other."""
    rank, count = division.world.index, division.world.count

    def held(place: Place) -> range:
        if division.stage < 3:
            return held_rows(lambda place: rows_of(rank, count, place.shape[0]))(place)
        return rows_of(rank, count, place.shape.numel())  # DeepSpeed divides what is flat, as torch divides rows

    return held


def held_values(parameter: nn.Parameter, held: range) -> Tensor:
    """Flat."""
    if _is_divided(parameter):
        return own_part(parameter)[: len(held)]  # the last ranks' are padded
    return parameter.detach().reshape(-1)[held.start : held.stop]


def whole(*parameters: nn.Parameter, writer: int | None = None) -> AbstractContextManager[Any]:
    """Inside, parameters have all their values; outside, of stage 3, this rank's, as the `writer` left them."""
    divided = [parameter for parameter in parameters if _is_divided(parameter)]
    if not divided:
        return nullcontext()
    from deepspeed.runtime.zero import GatheredParameters

    gathered: AbstractContextManager[Any] = GatheredParameters(divided, modifier_rank=writer)
    return gathered


def _is_divided(parameter: nn.Parameter) -> bool:
    return hasattr(parameter, "ds_id")


def _config(stage: int, *, max_grad_norm: float = 1.0, num_trained: int = 0) -> dict[str, object]:
    return {
        "train_micro_batch_size_per_gpu": 1,  # required and not looked at: boundaries of steps are set by hand
        "gradient_accumulation_steps": 1,
        "gradient_clipping": max_grad_norm,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": min(max(num_trained, 1), REDUCE_NUMEL),
            "stage3_param_persistence_threshold": PERSISTENT_NUMEL,
            "memory_efficient_linear": False,  # would replace torch.nn.functional.linear for the whole process
        },
    }
