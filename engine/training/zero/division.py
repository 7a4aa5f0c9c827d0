"""Models whose weights DeepSpeed shards: makes and fills them, and finds the values that a rank has.

Invariant: only one matrix at a time is gathered whole.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from engine.models.decoder import Decoder, DecoderConfig
from engine.training.checkpoint.shares import Share
from engine.training.checkpoint.stored_state import StoredState
from engine.training.parts.layout import Place, decoder_places, own_part, rows_of
from engine.training.ranks.world import World
from engine.training.zero.guest import import_deepspeed

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

    def empty_decoder(self, config: DecoderConfig) -> Decoder:
        """A decoder with unfilled float32 weights; in stage 3 they are sharded from the start."""
        deepspeed = import_deepspeed(self.device)
        if self.stage < 3:
            with torch.device(self.device):
                return Decoder(config, torch.float32)
        # float32 follows from the configuration, which sets no 16-bit mode. DeepSpeed 0.19.8 ignores a `dtype` given
        # here on processors without float16, and would train weights rounded to bfloat16.
        with deepspeed.zero.Init(config_dict_or_path=make_config(self.stage), mem_efficient_linear=False):
            return Decoder(config, torch.float32)

    def fill(self, model: Decoder, stored: StoredState) -> None:
        """Fills this rank's values from files that all ranks can read, so that no rank holds the whole model just to
        load it. To be called before DeepSpeed makes an engine, which keeps small parameters whole."""
        parameters = dict(model.named_parameters())
        for name, place in decoder_places(model.config, parameters).items():
            stored.fill(self._share_of_own(parameters[name], place), under="")

    def freeze(self, module: nn.Module) -> Callable[..., Any]:
        """In stage 3 its weights are gathered layer by layer too."""
        if self.stage < 3:
            return module
        engine: Callable[..., Any] = import_deepspeed(self.device).initialize(model=module, config=make_config(3))[0]
        return engine

    def written_span(self, place: Place) -> range:
        """In stage 3 the values that this rank holds, otherwise an equal share of rows."""
        rank, count = self.world.index, self.world.count
        if self.stage == 3:
            return rows_of(rank, count, place.shape.numel())  # DeepSpeed divides flat values as torch divides rows
        rows, width = rows_of(rank, count, place.shape[0]), place.shape[1:].numel()
        return range(rows.start * width, rows.stop * width)

    def values_at(self, parameter: nn.Parameter, span: range) -> Tensor:
        """The values of a written span, flat."""
        if is_divided(parameter):
            return own_part(parameter)[: len(span)]  # without the padding of the last ranks
        return parameter.detach().reshape(-1)[span.start : span.stop]

    def _share_of_own(self, parameter: nn.Parameter, place: Place) -> Share:
        """All values that this rank holds."""
        if not is_divided(parameter):
            return Share.whole(place, parameter)
        padded = own_part(parameter)
        span = self.span_of_divided(place, padded.numel())
        return Share(place, span, padded.view(-1)[: len(span)])

    def span_of_divided(self, place: Place, num_of_each: int) -> range:
        """Stage 3 gives every rank the same number of values; padding fills up the last ranks'."""
        start = min(self.world.index * num_of_each, place.shape.numel())
        return range(start, min(start + num_of_each, place.shape.numel()))


def whole(parameter: nn.Parameter, *, writer: int) -> AbstractContextManager[Any]:
    """Gathers all values of stage 3's parameter. On exit each rank keeps its own, as rank `writer` left them."""
    if not is_divided(parameter):
        return nullcontext()
    from deepspeed.runtime.zero import GatheredParameters

    gathered: AbstractContextManager[Any] = GatheredParameters([parameter], modifier_rank=writer)
    return gathered


def is_divided(parameter: nn.Parameter) -> bool:
    return hasattr(parameter, "ds_id")


def make_config(stage: int, *, max_grad_norm: float = 1.0, num_trained: int = 0) -> dict[str, object]:
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
