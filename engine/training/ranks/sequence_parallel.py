"""Sequence parallelism: ranks with the same model share sequences. Each computes a slice of a micro-batch's tokens, and
in attention all tokens for a part of the heads (DeepSpeed-Ulysses, arXiv 2309.14509).

    layers      rank 0: tokens 0 … L-1    rank 1: tokens L … 2L-1    …
                      all-to-all: each rank sends every other rank that rank's heads of its own tokens
    attention   rank 0: all tokens, heads 0 … H/P-1    rank 1: all tokens, the next H/P heads    …
                      all-to-all: each rank receives all heads of its own tokens

    P ranks that share    L tokens of a slice, the last one padded    T tokens of the micro-batch
    H query heads    K key/value heads    E width of a head    A = H·E

Invariants:
- each written token is a target on exactly one of the ranks that share it; losses and gradients add up over all ranks,
  as over micro-batches;
- a rank without written tokens in its slice still computes the slice, since the others attend to it, and marks its part
  idle;
- with fewer key/value heads than ranks, each head goes to all ranks whose query heads read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as torch_distributed
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional

from engine.models.decoder import Attend
from engine.models.families.trained_model import ModelConfig
from engine.models.mixture import Choose
from engine.models.routes import replayed
from engine.training.ranks.world import World
from engine.training.step.micro_batch import MicroBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMicroBatch(MicroBatch):
    """A rank's slice of a micro-batch; `predicting_N` are places in the slice."""

    ids_L: Tensor
    positions_L: Tensor
    routes_LWk: Tensor | None
    repeats: bool
    sharers: "Sharers"

    @property
    def ids(self) -> Tensor:
        return self.ids_L

    @property
    def positions(self) -> Tensor:
        return self.positions_L

    @property
    def is_repeated(self) -> bool:
        return self.repeats

    @property
    def choose(self) -> Choose:
        return replayed(self.routes_LWk)

    def attention(self, windows: Sequence[int | None]) -> Attend:
        # super() without arguments fails in a dataclass with slots, which is a copy of the class.
        return self.sharers.around(MicroBatch.attention(self, windows), num_tokens=len(self.tokens.ids_T))


class Sharers:
    """Groups of ranks that share sequences, of which this rank is in one."""

    def __init__(self, world: World, *, num_sharers: int) -> None:
        """`world`: must have been entered. Collective."""
        self._world, self._num_sharers = world, num_sharers
        self._place = world.index % num_sharers
        self._group = world.make_group(
            range(first, first + num_sharers) for first in range(0, world.count, num_sharers)
        )

    # The step's ranks: each group that shares sequences is one ------------------------------------------------------

    @property
    def index(self) -> int:
        return self._world.index // self._num_sharers

    @property
    def count(self) -> int:
        return self._world.count // self._num_sharers

    def sum(self, tensor: Tensor) -> Tensor:
        return self._world.sum(tensor)

    def max(self, tensor: Tensor) -> Tensor:
        return self._world.max(tensor)

    def share(self, batch: MicroBatch) -> MicroBatch:
        """This rank's slice of the micro-batch."""
        ids_T, positions_T = batch.tokens.ids_T, batch.tokens.positions_T
        length = self._slice_length(len(ids_T))
        start = self._place * length
        own_N = (batch.predicting_N >= start) & (batch.predicting_N < start + length)
        is_empty = not own_N.any()
        if is_empty:
            own_N = torch.zeros_like(own_N)
            own_N[0] = True  # a placeholder target, which an idle part does not count
        shared = {
            name: getattr(batch, name)[own_N]
            for name in ("targets_N", "behaviour_logprobs_N", "staleness_N", "slots_N", "trajectories_N", "rows_N")
        }
        return SharedMicroBatch(
            tokens=batch.tokens,
            predicting_N=(batch.predicting_N[own_N] - start).clamp(0, length - 1),
            **shared,
            num_rows=batch.num_rows,
            idle=batch.idle or is_empty,
            silent=batch.silent,
            ids_L=_slice(ids_T, start, length),
            positions_L=_slice(positions_T, start, length),
            routes_TWk=batch.routes_TWk,
            temperature=batch.temperature,
            routes_LWk=None if batch.routes_TWk is None else _slice(batch.routes_TWk, start, length),
            repeats=batch.idle,
            sharers=self,
        )

    # Attention -----------------------------------------------------------------------------------------------------

    def around(self, attend: Attend, *, num_tokens: int) -> Attend:
        length = self._slice_length(num_tokens)

        def attend_to_all(layer: int, q_LHE: Tensor, k_LKE: Tensor, v_LKE: Tensor) -> Tensor:
            whole = (self._gather_tokens(part)[:num_tokens] for part in (q_LHE, k_LKE, v_LKE))
            mixed_Ta = attend(layer, *whole)
            padded = functional.pad(mixed_Ta, (0, 0, 0, self._num_sharers * length - num_tokens))
            mixed_PLa = _exchange(padded.view(self._num_sharers, length, -1), self._group)
            return mixed_PLa.transpose(0, 1).reshape(length, -1)

        return attend_to_all

    def _gather_tokens(self, x_LKE: Tensor) -> Tensor:
        """All tokens of this rank's heads."""
        if x_LKE.shape[1] < self._num_sharers:
            x_LKE = x_LKE.repeat_interleave(self._num_sharers // x_LKE.shape[1], dim=1)
        length, head_dim = len(x_LKE), x_LKE.shape[2]
        for_each = x_LKE.view(length, self._num_sharers, -1, head_dim).transpose(0, 1)
        return _exchange(for_each, self._group).reshape(self._num_sharers * length, -1, head_dim)

    def _slice_length(self, num_tokens: int) -> int:
        return -(-num_tokens // self._num_sharers)


def refuse_heads(config: ModelConfig, *, num_sharers: int) -> None:
    """Raises `ValueError` if the model's heads cannot be divided among so many ranks."""
    heads, kv_heads = config.num_heads, config.num_kv_heads
    if heads % num_sharers:
        raise ValueError(f"trainer.sequence_parallel must divide the model's {heads} heads, got {num_sharers}")
    if kv_heads % num_sharers and num_sharers % kv_heads:
        raise ValueError(
            f"trainer.sequence_parallel must divide the model's {kv_heads} key/value heads, or be a multiple of them; "
            f"got {num_sharers}"
        )


class _Exchange(torch.autograd.Function):
    """All-to-all: sends part p to rank p and receives rank p's part in its place. Its gradient is the same exchange."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _run_all_to_all(parts, group)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None]:
        return _run_all_to_all(gradients, ctx.group), None


def _exchange(parts: Tensor, group: ProcessGroup) -> Tensor:
    received: Tensor = _Exchange.apply(parts, group)  # type: ignore[no-untyped-call]
    return received


def _run_all_to_all(parts: Tensor, group: ProcessGroup) -> Tensor:
    parts = parts.contiguous()
    received = torch.empty_like(parts)
    torch_distributed.all_to_all_single(received, parts, group=group)
    return received


def _slice(values_T: Tensor, start: int, length: int) -> Tensor:
    """The slice, padded with zeros after the last token."""
    values_L = values_T[start : start + length]
    return functional.pad(values_L, (*[0] * (2 * values_L.dim() - 1), length - len(values_L)))
