"""Micro-batches of trajectories: whole sequences in rectangles, up to a limit of tokens.

    T input tokens, a prompt of several once    N written tokens of one micro-batch    M written tokens of the step
    Q sequences of the step (sequences.py): a trajectory, or a segment of one

Invariants:
- every written token of the step is a target in exactly one micro-batch of one rank; a tool's tokens are only input;
- the last written token predicts nothing, so neither it nor later tokens are input;
- trajectories without gradient are in separate micro-batches, which come first in their mini-batch;
- a micro-batch is made when it is needed, from the tokens of its own trajectories only, so that a large step has only
  one micro-batch's tensors in memory.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.models.attention import PackedAttention
from engine.models.decoder import Attend
from engine.models.mixture import Choose
from engine.models.packing import (
    PADDING_PER_RECTANGLE,
    PackedTokens,
    Rectangle,
    SequenceArrays,
    pack_arrays,
    ranges,
)
from engine.models.routes import DENSE, RouteFormat, replayed
from engine.training.batch import Ints, TrainingBatch, Trajectories
from engine.training.sequences import Sequences
from engine.training.step.dealing import Costs, MicroBatchPlan, padded_fraction, plans_of_ranks, shared_fraction
from engine.training.step.routes import packed_routes


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    tokens: PackedTokens
    predicting_N: Tensor
    """The place in T of the token before each target."""
    targets_N: Tensor
    behaviour_logprobs_N: Tensor
    staleness_N: Tensor
    slots_N: Tensor
    """The place in M of each target."""
    trajectories_N: Tensor
    """The step's trajectory of each target."""
    rows_N: Tensor
    """The sequence of each target, counted within the micro-batch."""
    num_rows: int
    idle: bool
    """Whether it counts for nothing."""
    silent: bool
    """Whether it has no gradient."""
    routes_TWk: Tensor | None = None
    """The experts of the rollout's tokens; None for a dense model."""
    temperature: float | None = None
    """None: the job's."""

    @property
    def ids(self) -> Tensor:
        """The model's input."""
        return self.tokens.ids_T

    @property
    def positions(self) -> Tensor:
        return self.tokens.positions_T

    @property
    def is_repeated(self) -> bool:
        """Idle as a whole, and not because other ranks that share it have all written tokens."""
        return self.idle

    @property
    def choose(self) -> Choose:
        return replayed(self.routes_TWk)

    def attention(self, windows: Sequence[int | None]) -> Attend:
        """`windows`: the model's, by layer."""
        return PackedAttention(self.tokens, windows)


class MicroBatches(Sequence[MicroBatch]):
    """This rank's micro-batches, each made at every access."""

    def __init__(self, plans: Iterable[MicroBatchPlan], make: Callable[[MicroBatchPlan], MicroBatch]) -> None:
        self.plans = tuple(plans)
        self._make = make

    def __len__(self) -> int:
        return len(self.plans)

    @overload
    def __getitem__(self, at: int) -> MicroBatch: ...

    @overload
    def __getitem__(self, at: slice) -> "MicroBatches": ...

    def __getitem__(self, at: int | slice) -> "MicroBatch | MicroBatches":
        if isinstance(at, slice):
            return MicroBatches(self.plans[at], self._make)
        return self._make(self.plans[at])


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatch:
    """The trajectories of one update."""

    micro_batches: MicroBatches
    num_tokens: int
    """Written tokens, on all ranks."""

    @property
    def num_losses(self) -> int:
        return sum(not plan.silent for plan in self.micro_batches.plans)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedStep:
    batch: TrainingBatch
    """All trajectories of the step, on all ranks."""
    mini_batches: tuple[MiniBatch, ...]
    micro_batches: MicroBatches
    """Those of all mini-batches."""
    padding_fraction: float
    """The fraction of attention's places that are padding, on all ranks."""
    shared_fraction: float
    """The fraction of all ranks' input tokens that are not read again, since another sample of the prompt has them."""

    @property
    def num_tokens(self) -> int:
        return self.batch.num_written


Share = Callable[[MicroBatch], MicroBatch]


def whole_batch(batch: MicroBatch) -> MicroBatch:
    return batch


def batch_step(
    trajectories: Trajectories,
    *,
    max_tokens: int,
    device: str | torch.device,
    parts: Sequence[Sequence[int]] = (),
    silent: Collection[int] = (),
    rank: int = 0,
    num_ranks: int = 1,
    share: Share = whole_batch,
    work_of: Callable[[int], float] = float,
    route_format: RouteFormat = DENSE,
) -> BatchedStep:
    """`parts`: the trajectories of each mini-batch; empty: one of all. `silent`: trajectories without gradient.
    `share`: takes this rank's part of a micro-batch that it shares with others. `work_of`: the cost of a sequence by
    its number of tokens, which is balanced."""
    batch = TrainingBatch.of(trajectories)
    sequences = Sequences.of(batch)
    lengths = sequences.input_lengths_Q.tolist()
    costs = Costs(lengths=lengths, work=[work_of(length) for length in lengths])
    # A GPU's kernel takes sequences of any lengths at once. With one call per rectangle, some padding is cheaper.
    padding = 0 if torch.device(device).type == "cuda" else PADDING_PER_RECTANGLE
    make = partial(_make_share, MicroBatchMaker(batch, sequences, device, route_format), share)
    owners = sequences.owners_Q.tolist()
    sequences_of = _group_by_owner(owners, len(batch))
    mini_batches: list[MiniBatch] = []
    every: list[MicroBatchPlan] = []
    for part in parts or [range(len(batch))]:
        own: list[MicroBatchPlan] = []
        for is_silent in (True, False):
            members = [each for each in sequences_of(part) if lengths[each] and (owners[each] in silent) == is_silent]
            plans = plans_of_ranks(
                members, costs, max_tokens=max_tokens, padding=padding, num_ranks=num_ranks, silent=is_silent
            )
            every += [plan for of_rank in plans for plan in of_rank]
            own += plans[rank]
        num_tokens = int(batch.num_written_N[list(part)].sum())
        mini_batches.append(MiniBatch(micro_batches=MicroBatches(own, make), num_tokens=num_tokens))
    return BatchedStep(
        batch=batch,
        mini_batches=tuple(mini_batches),
        micro_batches=MicroBatches((plan for each in mini_batches for plan in each.micro_batches.plans), make),
        padding_fraction=padded_fraction(every, lengths),
        shared_fraction=shared_fraction(every, sequences),
    )


def _make_share(maker: "MicroBatchMaker", share: Share, plan: MicroBatchPlan) -> MicroBatch:
    return share(maker.make(plan))


def _group_by_owner(owners: Sequence[int], num: int) -> Callable[[Iterable[int]], list[int]]:
    """Returns a function from trajectories to their sequences, in order. `num`: the number of all trajectories."""
    own: list[list[int]] = [[] for _ in range(num)]
    for sequence, owner in enumerate(owners):
        own[owner].append(sequence)
    return lambda part: [sequence for owner in part for sequence in own[owner]]


class MicroBatchMaker:
    def __init__(
        self, batch: TrainingBatch, sequences: Sequences, device: str | torch.device, route_format: RouteFormat
    ) -> None:
        self._batch, self._sequences, self._device, self._route_format = batch, sequences, device, route_format
        self._arrays = SequenceArrays(
            ids=batch.tokens.ids_A,
            beginning_starts_N=sequences.beginning_starts_Q,
            beginning_lengths_N=sequences.beginning_lengths_Q,
            rest_starts_N=batch.first_responses_A + sequences.rest_starts_Q,
            rest_lengths_N=sequences.last_written_Q,
        )

    def make(self, plan: MicroBatchPlan) -> MicroBatch:
        """S sequences of the micro-batch    C tokens after their beginnings, up to the last written one"""
        if not plan.rectangles:
            return self._make_filler(silent=plan.silent)
        batch, arrays, sequences = self._batch, self._batch.tokens, self._sequences
        members_S = np.array(plan.members)
        tokens = pack_arrays(self._arrays, plan.rectangles, self._device)
        lengths_S = sequences.last_written_Q[members_S] + 1
        places_C = ranges(sequences.rest_starts_Q[members_S], lengths_S)
        written_C = arrays.written_R[places_C]
        # The first of these follows its beginning's last token, so the end of each input holds the tokens before C's.
        before_C = np.concatenate(
            [tokens.places[member][-length:] for member, length in zip(plan.members, lengths_S, strict=True)]
        )
        places_N = places_C[written_C]
        counts_S = sequences.num_written_Q[members_S]
        return MicroBatch(
            tokens=tokens,
            predicting_N=self._to_tensor(before_C[written_C]),
            targets_N=self._to_tensor(arrays.ids_A[batch.first_responses_A + places_N].astype(np.int64)),
            behaviour_logprobs_N=self._to_tensor(arrays.logprobs_R[places_N]),
            staleness_N=self._to_tensor(arrays.staleness_R[places_N].astype(np.int64)),
            slots_N=self._to_tensor(ranges(sequences.slot_starts_Q[members_S], counts_S)),
            trajectories_N=self._to_tensor(np.repeat(sequences.owners_Q[members_S], counts_S)),
            rows_N=self._to_tensor(np.repeat(np.arange(len(members_S)), counts_S)),
            num_rows=len(members_S),
            idle=False,
            silent=plan.silent,
            routes_TWk=packed_routes(batch, sequences, plan.members, tokens, self._route_format),
        )

    def _make_filler(self, *, silent: bool) -> MicroBatch:
        arrays = SequenceArrays.of([[0]], [0])
        nothing_N = torch.zeros(1, dtype=torch.int64, device=self._device)
        tokens = pack_arrays(arrays, [Rectangle(members=(0,), width=1)], self._device)
        return MicroBatch(
            tokens=tokens,
            predicting_N=nothing_N,
            targets_N=nothing_N,
            behaviour_logprobs_N=torch.zeros(1, device=self._device),
            staleness_N=nothing_N,
            slots_N=nothing_N,
            trajectories_N=nothing_N,
            rows_N=nothing_N,
            num_rows=1,
            idle=True,
            silent=silent,
            routes_TWk=packed_routes(self._batch, self._sequences, (), tokens, self._route_format),
        )

    def _to_tensor(self, array: Ints | NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
