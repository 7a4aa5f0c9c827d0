"""Divides an update among ranks: which trajectories each computes, in which micro-batches.

    turn 1    rank 0: the longest sequence    rank 1: the next one, and shorter ones that fit in    …
    turn 2    …

Ranks synchronise in every pass, wherever weights are gathered: a rank that finishes a micro-batch early waits for the
others. So the work is balanced in every turn, not only in total.

Invariants:
- every sequence (a trajectory, or a segment of one) is in one micro-batch of one rank;
- a micro-batch holds at most `max_tokens`, or the length of its turn's longest sequence if that is more: another rank
  needs memory for so many tokens anyway;
- all ranks have the same number of micro-batches, since a pass may be collective. A rank with fewer trajectories than
  turns gets fillers of one token, which count for nothing.
"""

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from engine.models.packing import Rectangle, lay_out, padding_fraction
from engine.training.sequences import Sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchPlan:
    rectangles: tuple[Rectangle, ...]
    """Empty: a filler."""
    silent: bool

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(member for rectangle in self.rectangles for member in rectangle.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of each sequence of the step."""

    lengths: Sequence[int]
    """The tokens that the model reads."""
    work: Sequence[float]


def plans_of_ranks(
    members: Sequence[int], costs: Costs, *, max_tokens: int, padding: int, num_ranks: int, silent: bool = False
) -> list[list[MicroBatchPlan]]:
    """`padding`: the limit for each rectangle."""
    return [
        [
            MicroBatchPlan(rectangles=tuple(_lay_out_all(own, costs.lengths, padding=padding)), silent=silent)
            for own in micro_batches
        ]
        for micro_batches in deal(members, costs, max_tokens=max_tokens, num_ranks=num_ranks)
    ]


def deal(members: Sequence[int], costs: Costs, *, max_tokens: int, num_ranks: int) -> list[list[list[int]]]:
    """The sequences of each rank's micro-batches."""
    rest = sorted(members, key=costs.lengths.__getitem__)
    ranks: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    loads = [0.0] * num_ranks
    while rest:
        turn = _deal_turn(rest, costs, max_tokens=max_tokens, num_ranks=num_ranks)
        least_first = sorted(range(num_ranks), key=loads.__getitem__)
        for rank, (load, own) in zip(least_first, sorted(turn, reverse=True), strict=True):
            ranks[rank].append(own)
            loads[rank] += load
    for micro_batches in ranks:
        _fill_empty(micro_batches)
    return ranks


def _deal_turn(rest: list[int], costs: Costs, *, max_tokens: int, num_ranks: int) -> list[tuple[float, list[int]]]:
    """(work, sequences) of one micro-batch for each rank: the rank with the least work takes the longest sequence that
    fits. Removes them from `rest`, which is sorted by length."""
    room = max(max_tokens, costs.lengths[rest[-1]])
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    free, loads = [room] * num_ranks, [(0.0, number) for number in range(num_ranks)]
    while loads:
        load, number = loads[0]
        fitting = bisect_right(rest, free[number], key=costs.lengths.__getitem__)
        if not fitting:
            heapq.heappop(loads)
            continue
        member = rest.pop(fitting - 1)
        shares[number].append(member)
        free[number] -= costs.lengths[member]
        heapq.heapreplace(loads, (load + costs.work[member], number))
    return [(sum(costs.work[member] for member in share), share) for share in shares]


def _fill_empty(micro_batches: list[list[int]]) -> None:
    """Moves a sequence into each empty micro-batch, if another has several, so that fewer fillers are needed."""
    for own in micro_batches:
        giver = max(micro_batches, key=len)
        if not own and len(giver) > 1:
            own.append(giver.pop())


def _lay_out_all(members: Sequence[int], lengths: Sequence[int], *, padding: int) -> list[Rectangle]:
    """Rectangles of any width: the limit applies to the tokens of linear layers, and `_deal_turn` has enforced it."""
    widest = len(members) * max((lengths[member] for member in members), default=0)
    return lay_out(lengths, max_tokens=widest, only=sorted(members), padding=padding)


def shared_fraction(plans: Sequence[MicroBatchPlan], sequences: Sequences) -> float:
    """The fraction of input tokens that are not read again, since another sample of the prompt has them."""
    lengths, starts = sequences.input_lengths_Q.tolist(), sequences.beginning_starts_Q.tolist()
    prompts = dict(zip(starts, sequences.beginning_lengths_Q.tolist(), strict=True))
    num_tokens = num_shared = 0
    for plan in plans:
        read = [starts[member] for member in plan.members]
        num_tokens += sum(lengths[member] for member in plan.members)
        num_shared += sum(prompts[start] for start in read) - sum(prompts[start] for start in set(read))
    return num_shared / num_tokens if num_tokens else 0.0


def padded_fraction(plans: Sequence[MicroBatchPlan], lengths: Sequence[int]) -> float:
    """The fraction of attention's places that are padding."""
    return padding_fraction(lengths, [rectangle for plan in plans for rectangle in plan.rectangles])
