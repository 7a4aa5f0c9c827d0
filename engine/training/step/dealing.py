"""The share of each rank in an update: which trajectories it computes, in which micro-batches.

    turn 1    rank 0: the longest sequence    rank 1: the next one, and what fits beside it    …
    turn 2    …

Ranks meet in every pass, wherever weights are gathered: who is done with a micro-batch waits for the others. So it is
not enough that ranks have as much work as each other in all; they have it in every turn.

Invariants:
- every sequence (a trajectory, or a segment of one) is in one micro-batch of one rank;
- a micro-batch holds at most `max_tokens`, or, where a sequence is longer, as many as the longest of its turn: another
  rank needs memory for so many anyway;
- ranks have equally many micro-batches, since a pass may be a collective. Only where a rank has fewer trajectories than
  there are turns, a filler of one token counts for nothing.
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
    """None: a filler."""
    silent: bool

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(member for rectangle in self.rectangles for member in rectangle.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of each trajectory of the step."""

    lengths: Sequence[int]
    """The tokens that are read."""
    work: Sequence[float]


def plans_of_ranks(
    members: Sequence[int], costs: Costs, *, max_tokens: int, padding: int, num_ranks: int, silent: bool = False
) -> list[list[MicroBatchPlan]]:
    """`padding`: at most, in each rectangle."""
    return [
        [
            MicroBatchPlan(rectangles=tuple(_rectangles(own, costs.lengths, padding=padding)), silent=silent)
            for own in micro_batches
        ]
        for micro_batches in deal(members, costs, max_tokens=max_tokens, num_ranks=num_ranks)
    ]


def deal(members: Sequence[int], costs: Costs, *, max_tokens: int, num_ranks: int) -> list[list[list[int]]]:
    """The trajectories of each rank's micro-batches."""
    rest = sorted(members, key=costs.lengths.__getitem__)
    ranks: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    loads = [0.0] * num_ranks
    while rest:
        turn = _turn(rest, costs, max_tokens=max_tokens, num_ranks=num_ranks)
        least_first = sorted(range(num_ranks), key=loads.__getitem__)
        for rank, (load, own) in zip(least_first, sorted(turn, reverse=True), strict=True):
            ranks[rank].append(own)
            loads[rank] += load
    for micro_batches in ranks:
        _give_to_the_empty(micro_batches)
    return ranks


def _turn(rest: list[int], costs: Costs, *, max_tokens: int, num_ranks: int) -> list[tuple[float, list[int]]]:
    """(work, trajectories) of one micro-batch for each rank: the one with the least to do takes the longest that fits.
    They are taken out of `rest`, which is in order of lengths."""
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


def _give_to_the_empty(micro_batches: list[list[int]]) -> None:
    """A sequence of another one, as long as there is one with several: work in one more pass, and no filler."""
    for own in micro_batches:
        giver = max(micro_batches, key=len)
        if not own and len(giver) > 1:
            own.append(giver.pop())


def _rectangles(members: Sequence[int], lengths: Sequence[int], *, padding: int) -> list[Rectangle]:
    """However wide: the bound is on what linear layers see, and was kept when these were chosen."""
    widest = len(members) * max((lengths[member] for member in members), default=0)
    return lay_out(lengths, max_tokens=widest, only=sorted(members), padding=padding)


def shared_fraction(plans: Sequence[MicroBatchPlan], sequences: Sequences) -> float:
    """Of the input tokens, those that are not read in since another sample of the prompt has them."""
    lengths, starts = sequences.input_lengths_Q.tolist(), sequences.beginning_starts_Q.tolist()
    prompts = dict(zip(starts, sequences.beginning_lengths_Q.tolist(), strict=True))
    num_tokens = num_shared = 0
    for plan in plans:
        read = [starts[member] for member in plan.members]
        num_tokens += sum(lengths[member] for member in plan.members)
        num_shared += sum(prompts[start] for start in read) - sum(prompts[start] for start in set(read))
    return num_shared / num_tokens if num_tokens else 0.0


def padded_fraction(plans: Sequence[MicroBatchPlan], lengths: Sequence[int]) -> float:
    """Of the places that attention sees."""
    return padding_fraction(lengths, [rectangle for plan in plans for rectangle in plan.rectangles])
