"""A decoder whose training state DeepSpeed divides among the ranks: step it, read it whole, write it whole.

    stage   each rank holds its part of
    1       AdamW's moments and the float32 weights that they update
    2       the gradients too
    3       the weights that are computed with too; a layer's are gathered when it is its turn

Invariants:
- weights, gradients and moments are float32. Computing in bfloat16 is autocast inside of the module: in DeepSpeed's own
  bfloat16 mode norms and embeddings would be rounded too, unlike the torch trainer's, and stage 1 would go through
  another optimizer class of its;
- every method is collective: all ranks call it, in the same order;
- a step happens on every rank or on none: the global norm of the gradients decides, which has the same bits on each.
  When it is not finite, DeepSpeed leaves weights and moments as they were and drops the gradients;
- what is whole is whole for one parameter at a time.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from engine.models.decoder import Decoder, DecoderConfig
from engine.models.loading import hugging_face_views
from engine.training.deepspeed_world import World, import_deepspeed

MOMENTS: Final = ("exp_avg", "exp_avg_sq")
BETAS: Final = (0.9, 0.999)
EPS: Final = 1e-8

# DeepSpeed's default: parameters up to this size stay whole on every rank, since gathering norms costs more time than
# they cost memory.
PERSISTENT_NUMEL: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    updated: bool
    grad_norm: float


class ShardedDecoder:
    def __init__(
        self,
        model: Decoder,
        module: nn.Module,
        *,
        stage: int,
        weight_decay: float,
        max_grad_norm: float,
        world: World,
        device: str,
    ) -> None:
        """`model` from `empty_decoder`, in the world that `device`'s trainer has entered; `module` computes with it."""
        self._deepspeed = import_deepspeed(device)
        self._model, self._stage, self._world, self._device = model, stage, world, device
        self._places = _places(model)
        # torch's own AdamW: DeepSpeed's compiles for a minute at its first start.
        optimizer = torch.optim.AdamW(_decay_groups(model, weight_decay), lr=0.0, betas=BETAS, eps=EPS, fused=True)
        self._engine: Any = self._deepspeed.initialize(
            model=module, optimizer=optimizer, config=_config(stage, max_grad_norm=max_grad_norm)
        )[0]
        world.bound_collectives()
        self.reset_moments(num_updates=0)

    @property
    def num_parameters(self) -> int:
        return sum(place.shape.numel() for place in self._places.values())

    def close(self) -> None:
        self._engine.destroy()

    # One step ----------------------------------------------------------------------------------------------------

    def forward(self, *inputs: object) -> Any:
        return self._engine(*inputs)

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Losses of all calls and ranks add up; DeepSpeed takes the mean over ranks, hence the factor."""
        self._engine.set_gradient_accumulation_boundary(is_last)
        self._engine.backward(loss * self._world.count, scale_wrt_gas=False)

    def spoil_gradients(self) -> None:
        """The next step shall not happen: a loss is not finite, which need not show in the gradients."""
        parameter = self._model.final_norm_D
        self._deepspeed.utils.safe_set_full_grad(
            parameter, torch.full(_shape(parameter), torch.nan, device=self._device)
        )

    def step(self, learning_rate: float) -> StepOutcome:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        return StepOutcome(
            updated=bool(self._engine.was_step_applied()), grad_norm=float(self._engine.get_global_grad_norm())
        )

    # The whole state ---------------------------------------------------------------------------------------------

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face name and values, to be copied before the next is asked for."""
        for name, parameter in self._model.named_parameters():
            with whole(parameter):
                yield from self._places[name].split(parameter.detach())

    def moments(self, moment: str) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._model.named_parameters():
            values = self._deepspeed.utils.safe_get_full_optimizer_state(parameter, moment)
            yield from self._places[name].split(values)

    def send_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """From rank 0; what the others give is not looked at."""
        send_weights(self._model, tensors, world=self._world)
        self._engine.optimizer.refresh_fp32_params()

    def send_moment(self, moment: str, tensors: Mapping[str, Tensor]) -> None:
        for name, parameter in self._model.named_parameters():
            place = self._places[name]
            values = torch.empty(place.shape, device=self._device)
            if self._world.index == 0:
                place.fill(values, tensors)
            self._world.send(values)
            self._deepspeed.utils.safe_set_full_optimizer_state(parameter, values, moment)

    def reset_moments(self, *, num_updates: int) -> None:
        """Zero, and from here on there on every rank: DeepSpeed links those that exist after the first group's first
        update, and would never find the second group's."""
        zero = self._engine.optimizer
        flats = zero.fp32_partitioned_groups_flat if self._stage == 3 else zero.single_partition_of_fp32_groups
        for flat in flats:
            zero.optimizer.state[flat] = {
                "step": torch.tensor(float(num_updates), device=flat.device),
                **{moment: torch.zeros_like(flat) for moment in MOMENTS},
            }
        if self._stage < 3:
            zero._hp_optimizer_states_linked = False
            zero._lazy_init_hp_params_optimizer_state()


def empty_decoder(config: DecoderConfig, *, stage: int, device: str) -> Decoder:
    """Weights in float32 that nobody has filled yet; in stage 3 divided among the ranks from the first one on."""
    deepspeed = import_deepspeed(device)
    if stage < 3:
        with torch.device(device):
            return Decoder(config, torch.float32)
    settings = _config(stage, max_grad_norm=1.0)
    with deepspeed.zero.Init(config_dict_or_path=settings, dtype=torch.float32, mem_efficient_linear=False):
        return Decoder(config, torch.float32)


def frozen(module: nn.Module, *, stage: int, device: str) -> Callable[..., Any]:
    """A module that is only computed with; in stage 3 its weights are gathered layer by layer too."""
    module.requires_grad_(False)
    if stage < 3:
        return module
    engine: Callable[..., Any] = import_deepspeed(device).initialize(
        model=module, config=_config(3, max_grad_norm=1.0)
    )[0]
    return engine


@torch.no_grad()
def send_weights(model: Decoder, tensors: Mapping[str, Tensor], *, world: World) -> None:
    places = _places(model)
    for name, parameter in model.named_parameters():
        with whole(parameter, writer=0):
            if world.index == 0:
                places[name].fill(parameter, tensors)
            if not _is_divided(parameter):
                world.send(parameter.detach())


def whole(parameter: nn.Parameter, *, writer: int | None = None) -> AbstractContextManager[Any]:
    """Inside, the parameter has all its values; outside, of stage 3, this rank's, as the `writer` left them."""
    if not _is_divided(parameter):
        return nullcontext()
    from deepspeed.runtime.zero import GatheredParameters

    gathered: AbstractContextManager[Any] = GatheredParameters([parameter], modifier_rank=writer)
    return gathered


def _is_divided(parameter: nn.Parameter) -> bool:
    return hasattr(parameter, "ds_id")


def _shape(parameter: nn.Parameter) -> torch.Size:
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


@dataclass(frozen=True, slots=True)
class _Place:
    """Which tensors of the Hugging Face layout are in a parameter: runs of its values."""

    shape: torch.Size
    parts: tuple[tuple[str, torch.Size, int], ...]
    """Name, shape, offset."""

    def split(self, values: Tensor) -> Iterator[tuple[str, Tensor]]:
        for name, shape, offset in self.parts:
            yield name, values.reshape(-1)[offset : offset + shape.numel()].view(shape)

    def fill(self, values: Tensor, tensors: Mapping[str, Tensor]) -> None:
        for name, part in self.split(values.detach()):
            part.copy_(tensors[name])


def _places(model: Decoder) -> dict[str, _Place]:
    """Read off the views themselves, of tensors that have a shape and nothing else."""
    own = {name: torch.empty(_shape(each), device="meta") for name, each in model.named_parameters()}
    names = {id(tensor): name for name, tensor in own.items()}
    parts: dict[str, list[tuple[str, torch.Size, int]]] = {name: [] for name in own}
    for theirs, view in hugging_face_views(model.config, own).items():
        name = names[id(view if view._base is None else view._base)]
        parts[name].append((theirs, view.shape, int(view.storage_offset())))
    return {name: _Place(tensor.shape, tuple(parts[name])) for name, tensor in own.items()}


def _config(stage: int, *, max_grad_norm: float) -> dict[str, object]:
    return {
        "train_micro_batch_size_per_gpu": 1,  # required and not looked at: boundaries of steps are set by hand
        "gradient_accumulation_steps": 1,
        "gradient_clipping": max_grad_norm,
        "zero_optimization": {
            "stage": stage,
            "stage3_param_persistence_threshold": PERSISTENT_NUMEL,
            "memory_efficient_linear": False,  # would replace torch.nn.functional.linear for the whole process
        },
    }


def _decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """As the torch trainer's, but a divided parameter has lost its axes."""
    matrices = [parameter for parameter in model.parameters() if len(_shape(parameter)) > 1]
    vectors = [parameter for parameter in model.parameters() if len(_shape(parameter)) == 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
