"""Micro-batches out of trajectories: whole sequences in rectangles, cut by a bound on tokens.

    T input tokens, a prompt of several once    N written tokens of one micro-batch    M written tokens of the step

Invariants:
- every written token of the step is a target in exactly one micro-batch of one rank; what a tool said is only input;
- the last written token predicts nothing, so neither it nor what follows it is input;
- trajectories of which no gradient comes are in micro-batches of their own, which come first in their mini-batch;
- all ranks have equally many micro-batches in each mini-batch, since a forward pass may be a collective: a rank that
  has fewer repeats one, marked idle, which counts for nothing.
"""

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.attention import PackedAttention
from engine.models.decoder import Attend
from engine.models.packing import (
    PADDING_PER_RECTANGLE,
    PackedTokens,
    Rectangle,
    lay_out,
    pack,
    padding_fraction,
    split_by_tokens,
)
from engine.training.port import TrainingTrajectory


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
    rows_N: Tensor
    """The trajectory of each, counted within the micro-batch."""
    num_rows: int
    idle: bool
    silent: bool
    """No gradient comes of it."""

    @property
    def ids(self) -> Tensor:
        """What the model reads."""
        return self.tokens.ids_T

    @property
    def positions(self) -> Tensor:
        return self.tokens.positions_T

    def attention(self, windows: Sequence[int | None]) -> Attend:
        """`windows`: of the model's layers."""
        return PackedAttention(self.tokens, windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatch:
    """The trajectories of one update."""

    micro_batches: tuple[MicroBatch, ...]
    """This rank's."""
    num_tokens: int
    """Written, on all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchedStep:
    mini_batches: tuple[MiniBatch, ...]
    written: tuple[tuple[int, ...], ...]
    """Of each trajectory of the step, whichever rank has it: the places of its written tokens in its response."""
    padding_fraction: float
    """Of all places that attention sees, on all ranks."""
    shared_fraction: float
    """Of all ranks' input tokens, those that are not read in since another sample of the prompt has them."""

    @property
    def num_tokens(self) -> int:
        return sum(len(places) for places in self.written)

    @property
    def micro_batches(self) -> tuple[MicroBatch, ...]:
        return tuple(batch for each in self.mini_batches for batch in each.micro_batches)


Share = Callable[[MicroBatch], MicroBatch]


def itself(batch: MicroBatch) -> MicroBatch:
    return batch


def batch_step(
    trajectories: Sequence[TrainingTrajectory],
    *,
    max_tokens: int,
    device: str | torch.device,
    parts: Sequence[Sequence[int]] = (),
    silent: Collection[int] = (),
    rank: int = 0,
    num_ranks: int = 1,
    share: Share = itself,
    work_of: Callable[[int], float] = float,
) -> BatchedStep:
    """`parts`: the trajectories of each mini-batch; none: one of all. `silent`: those of which no gradient comes.
    `share`: this rank's part of a micro-batch that it has in common with others. `work_of`: what a sequence of so many
    tokens costs, which is dealt evenly."""
    written = tuple(map(written_places, trajectories))
    inputs = [
        (*each.prompt_ids, *each.response_ids[: places[-1]]) if places else ()
        for each, places in zip(trajectories, written, strict=True)
    ]
    lengths = [len(ids) for ids in inputs]
    work = [work_of(length) for length in lengths]
    # A GPU's kernel takes sequences of any lengths at once. Where each rectangle is a call, some padding is cheaper.
    padding = 0 if torch.device(device).type == "cuda" else PADDING_PER_RECTANGLE
    starts = [0]
    for places in written:
        starts.append(starts[-1] + len(places))
    prompts = [len(each.prompt_ids) for each in trajectories]
    mini_batches: list[MiniBatch] = []
    every: list[list[Rectangle]] = []
    for part in parts or [range(len(trajectories))]:
        batches: list[MicroBatch] = []
        for is_silent in (True, False):
            members = [index for index in part if inputs[index] and (index in silent) == is_silent]
            plans = _plans(members, lengths, work, max_tokens=max_tokens, padding=padding, num_ranks=num_ranks)
            every += [each for plan in plans for each in plan]
            batches += [
                share(
                    _micro_batch(
                        trajectories,
                        pack(inputs, each, device, shareable=prompts),
                        written,
                        starts,
                        device=device,
                        idle=idle,
                        silent=is_silent,
                    )
                )
                for each, idle in _of_rank(rank, plans)
            ]
        num_tokens = sum(len(written[index]) for index in part)
        mini_batches.append(MiniBatch(micro_batches=tuple(batches), num_tokens=num_tokens))
    return BatchedStep(
        mini_batches=tuple(mini_batches),
        written=written,
        padding_fraction=padding_fraction(lengths, [rectangle for each in every for rectangle in each]),
        shared_fraction=_shared_fraction(every, trajectories, lengths),
    )


def _plans(
    members: Sequence[int],
    lengths: Sequence[int],
    work: Sequence[float],
    *,
    max_tokens: int,
    padding: int,
    num_ranks: int,
) -> list[list[list[Rectangle]]]:
    """Each rank's micro-batches."""
    return [
        split_by_tokens(lay_out(lengths, max_tokens=max_tokens, only=share, padding=padding), max_tokens=max_tokens)
        for share in deal(members, work, num_ranks)
    ]


def _of_rank(rank: int, plans: list[list[list[Rectangle]]]) -> list[tuple[list[Rectangle], bool]]:
    """(rectangles, idle) of each of its micro-batches: as many as the rank with the most has."""
    own = plans[rank]
    num_idle = max(len(plan) for plan in plans) - len(own)
    repeated = min(own or next(filter(None, plans), []), key=_num_tokens, default=[])
    return [(each, False) for each in own] + [(repeated, True)] * num_idle


def deal(members: Sequence[int], work: Sequence[float], num_ranks: int) -> list[list[int]]:
    """The largest first, each to the rank that has the least to do."""
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [(0.0, rank) for rank in range(num_ranks)]
    for member in sorted(members, key=work.__getitem__, reverse=True):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + work[member], rank))
        shares[rank].append(member)
    return shares


def check_trajectories(trajectories: Sequence[TrainingTrajectory], *, vocab_size: int, max_positions: int) -> None:
    if not trajectories:
        raise ValueError("trajectories: a step needs at least one")
    for index, each in enumerate(trajectories):
        if not each.prompt_ids or not each.response_ids:
            raise ValueError(f"trajectory {index}: prompt and response need at least one token each")
        num_tokens = len(each.response_ids)
        for what, given in (
            ("log-prob", each.behaviour_logprobs),
            ("mark whether it was written", each.written or each.response_ids),
            ("staleness", each.staleness or each.response_ids),
        ):
            if len(given) != num_tokens:
                raise ValueError(
                    f"trajectory {index}: one {what} for each of {num_tokens} response tokens, got {len(given)}"
                )
        if not math.isfinite(each.reward):
            raise ValueError(f"trajectory {index}: reward must be finite, got {each.reward}")
        length = len(each.prompt_ids) + num_tokens
        if length - 1 > max_positions:
            raise ValueError(f"trajectory {index}: at most {max_positions} tokens fit this model, got {length}")
        if not 0 <= min(*each.prompt_ids, *each.response_ids) <= max(*each.prompt_ids, *each.response_ids) < vocab_size:
            raise ValueError(f"trajectory {index}: token ids must be from 0 to {vocab_size - 1}")
    if not any(any(each.written or (True,)) for each in trajectories):
        raise ValueError("trajectories: a step needs at least one token that the model wrote")


def written_places(trajectory: TrainingTrajectory) -> tuple[int, ...]:
    if not trajectory.written:
        return tuple(range(len(trajectory.response_ids)))
    return tuple(place for place, written in enumerate(trajectory.written) if written)


def _shared_fraction(
    batches: Sequence[Sequence[Rectangle]], trajectories: Sequence[TrainingTrajectory], lengths: Sequence[int]
) -> float:
    num_tokens = num_shared = 0
    for rectangles in batches:
        members = [member for rectangle in rectangles for member in rectangle.members]
        num_tokens += sum(lengths[member] for member in members)
        num_shared += sum(len(trajectories[member].prompt_ids) for member in members)
        num_shared -= sum(map(len, {trajectories[member].prompt_ids for member in members}))
    return num_shared / num_tokens if num_tokens else 0.0


def _num_tokens(rectangles: list[Rectangle]) -> int:
    return sum(rectangle.num_tokens for rectangle in rectangles)


def _micro_batch(
    trajectories: Sequence[TrainingTrajectory],
    tokens: PackedTokens,
    written: Sequence[Sequence[int]],
    starts: Sequence[int],
    *,
    device: str | torch.device,
    idle: bool,
    silent: bool,
) -> MicroBatch:
    predicting: list[int] = []
    targets: list[int] = []
    behaviour: list[float] = []
    staleness: list[int] = []
    slots: list[int] = []
    rows: list[int] = []
    for row, (member, inputs) in enumerate(tokens.places.items()):
        trajectory, places = trajectories[member], written[member]
        before = len(trajectory.prompt_ids) - 1
        predicting += [inputs[before + place] for place in places]
        targets += [trajectory.response_ids[place] for place in places]
        behaviour += [trajectory.behaviour_logprobs[place] for place in places]
        staleness += [trajectory.staleness[place] if trajectory.staleness else 0 for place in places]
        slots += range(starts[member], starts[member] + len(places))
        rows += [row] * len(places)
    return MicroBatch(
        tokens=tokens,
        predicting_N=torch.tensor(predicting, device=device),
        targets_N=torch.tensor(targets, device=device),
        behaviour_logprobs_N=torch.tensor(behaviour, device=device),
        staleness_N=torch.tensor(staleness, device=device),
        slots_N=torch.tensor(slots, device=device),
        rows_N=torch.tensor(rows, device=device),
        num_rows=len(tokens.places),
        idle=idle,
        silent=silent,
    )
