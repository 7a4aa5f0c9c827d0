"""A batch as arrays: what a trainer is given, and what its ranks share without a copy.

    ids_A         prompt a │ prompt b │ … │ response 0 │ response 1 │ …      a prompt of several samples is here once
    logprobs_R                              response 0 │ response 1 │ …

    N trajectories    A tokens of all prompts and responses    R tokens of all responses    Q sequences (sequences.py)

Invariants:
- a trajectory's numbers and the places of its tokens are small, and every rank reads them; of the arrays of tokens a
  rank reads only what it trains on, so that in shared memory no other page is its business;
- a selection of trajectories has the same arrays of tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Number = TypeVar("Number", np.int32, np.float32, np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTrajectory:
    """One trajectory as numbers, for whoever has few of them."""

    group: int
    """Trajectories with the same number are samples of one prompt."""
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    reward: float
    trusted: bool = True
    """False: nothing is learned from it, and no other trajectory is measured against it."""
    written: tuple[bool, ...] = ()
    """The response tokens that the model wrote: the others are a tool's words, which are read and not learned. Empty:
    all. `behaviour_logprobs` of the others are 0."""
    staleness: tuple[int, ...] = ()
    """Of each response token: the version that is trained less the version that wrote it. Empty: all 0."""
    cut: bool = False
    """It reached the longest length allowed."""
    routes: bytes = b""
    """The experts that its first tokens met (engine/models/routes.py), the prompt's included; of a dense model none."""
    breaks: tuple[int, ...] = ()
    """The places in the response at which later segments begin, which see nothing of what was before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryArrays:
    """One trajectory as arrays, which are not copied before the batch is put together."""

    group: int
    prompt_ids: NDArray[np.int32]
    response_ids: NDArray[np.int32]
    behaviour_logprobs: NDArray[np.float32]
    written: Bools
    """Empty: all."""
    staleness: NDArray[np.int32]
    """Empty: all 0."""
    reward: float
    trusted: bool
    cut: bool
    routes: NDArray[np.uint8]
    breaks: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenArrays:
    """What there is of each token."""

    ids_A: NDArray[np.int32]
    logprobs_R: NDArray[np.float32]
    """Of the policy that wrote them."""
    staleness_R: NDArray[np.int32]
    written_R: Bools
    routes: NDArray[np.uint8]
    """Of each trajectory, its prompt's included: samples of one prompt may have met different experts there."""
    breaks: NDArray[np.int32]
    """Of each trajectory: the places in its response at which later segments begin."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingBatch:
    tokens: TokenArrays
    lowest_id: int
    highest_id: int
    groups_N: Ints
    rewards_N: NDArray[np.float64]
    trusted_N: Bools
    cut_N: Bools
    prompt_starts_N: Ints
    """In A. Trajectories that begin at the same place have the same prompt."""
    prompt_lengths_N: Ints
    response_starts_N: Ints
    """In R."""
    response_lengths_N: Ints
    num_written_N: Ints
    last_written_N: Ints
    """The place in its response of the last written token: it predicts nothing, so neither it nor what follows is read.
    0 where nothing was written."""
    route_starts_N: Ints
    num_route_bytes_N: Ints
    break_starts_N: Ints
    num_breaks_N: Ints

    @classmethod
    def of(cls, trajectories: "Trajectories") -> "TrainingBatch":
        if isinstance(trajectories, TrainingBatch):
            return trajectories
        return cls.joined(map(_arrays, trajectories))

    @classmethod
    def joined(cls, trajectories: Iterable[TrajectoryArrays]) -> "TrainingBatch":
        every = list(trajectories)
        _check_lengths(every)
        prompts = [each.prompt_ids for each in every]
        kinds, kind_N = _distinct(prompts)
        distinct = [prompts[index] for index in kinds]
        prompt_lengths_N = _lengths(prompts)
        response_lengths_N = _lengths([each.response_ids for each in every])
        response_starts_N = _starts(response_lengths_N)
        ids_A = _one_array([*distinct, *(each.response_ids for each in every)], np.int32)
        num_written_N, last_written_N = response_lengths_N.copy(), response_lengths_N - 1
        written_R = np.ones(response_lengths_N.sum(), dtype=np.bool_)
        staleness_R = np.zeros(len(written_R), dtype=np.int32)
        num_route_bytes_N = _lengths([each.routes for each in every])
        num_breaks_N = _lengths([each.breaks for each in every])
        for index, each in enumerate(every):
            own = slice(response_starts_N[index], response_starts_N[index] + response_lengths_N[index])
            if len(each.written):
                written_R[own] = each.written
                num_written_N[index] = np.count_nonzero(each.written)
                last_written_N[index] = np.flatnonzero(each.written)[-1] if each.written.any() else 0
            if len(each.staleness):
                staleness_R[own] = each.staleness
        return cls(
            tokens=TokenArrays(
                ids_A=ids_A,
                logprobs_R=_one_array([each.behaviour_logprobs for each in every], np.float32),
                staleness_R=staleness_R,
                written_R=written_R,
                routes=_one_array([each.routes for each in every], np.uint8),
                breaks=_one_array([each.breaks for each in every], np.int32),
            ),
            lowest_id=int(ids_A.min(initial=0)),
            highest_id=int(ids_A.max(initial=0)),
            groups_N=np.array([each.group for each in every], dtype=np.int64),
            rewards_N=np.array([each.reward for each in every], dtype=np.float64),
            trusted_N=np.array([each.trusted for each in every], dtype=np.bool_),
            cut_N=np.array([each.cut for each in every], dtype=np.bool_),
            prompt_starts_N=_starts(_lengths(distinct))[kind_N],
            prompt_lengths_N=prompt_lengths_N,
            response_starts_N=response_starts_N,
            response_lengths_N=response_lengths_N,
            num_written_N=num_written_N,
            last_written_N=last_written_N,
            route_starts_N=_starts(num_route_bytes_N),
            num_route_bytes_N=num_route_bytes_N,
            break_starts_N=_starts(num_breaks_N),
            num_breaks_N=num_breaks_N,
        )

    def __len__(self) -> int:
        return len(self.groups_N)

    @property
    def num_written(self) -> int:
        return int(self.num_written_N.sum())

    @property
    def num_tokens(self) -> int:
        """Of all trajectories, a prompt as often as it has samples."""
        return int(self.prompt_lengths_N.sum() + self.response_lengths_N.sum())

    @property
    def first_responses_A(self) -> int:
        """The place in A where responses begin."""
        return len(self.tokens.ids_A) - len(self.tokens.logprobs_R)

    def routes_of(self, member: int) -> NDArray[np.uint8]:
        start = self.route_starts_N[member]
        return self.tokens.routes[start : start + self.num_route_bytes_N[member]]

    def breaks_of(self, member: int) -> NDArray[np.int32]:
        start = self.break_starts_N[member]
        return self.tokens.breaks[start : start + self.num_breaks_N[member]]

    def only(self, members_N: Ints) -> "TrainingBatch":
        of_trajectories = {name: getattr(self, name)[members_N] for name in _OF_TRAJECTORIES}
        return replace(self, **of_trajectories)

    def without_rewards(self) -> "TrainingBatch":
        return replace(self, rewards_N=np.zeros_like(self.rewards_N))


Trajectories = TrainingBatch | Sequence[TrainingTrajectory]

_OF_TRAJECTORIES = tuple(name for name in TrainingBatch.__dataclass_fields__ if name.endswith("_N"))


def _arrays(trajectory: TrainingTrajectory) -> TrajectoryArrays:
    return TrajectoryArrays(
        group=trajectory.group,
        prompt_ids=np.array(trajectory.prompt_ids, dtype=np.int32),
        response_ids=np.array(trajectory.response_ids, dtype=np.int32),
        behaviour_logprobs=np.array(trajectory.behaviour_logprobs, dtype=np.float32),
        written=np.array(trajectory.written, dtype=np.bool_),
        staleness=np.array(trajectory.staleness, dtype=np.int32),
        reward=trajectory.reward,
        trusted=trajectory.trusted,
        cut=trajectory.cut,
        routes=np.frombuffer(trajectory.routes, np.uint8),
        breaks=np.array(trajectory.breaks, dtype=np.int32),
    )


def _check_lengths(trajectories: Sequence[TrajectoryArrays]) -> None:
    for index, each in enumerate(trajectories):
        if not len(each.prompt_ids) or not len(each.response_ids):
            raise ValueError(f"trajectory {index}: prompt and response need at least one token each")
        num_tokens = len(each.response_ids)
        for what, num_given, may_be_empty in (
            ("log-prob", len(each.behaviour_logprobs), False),
            ("mark whether it was written", len(each.written), True),
            ("staleness", len(each.staleness), True),
        ):
            if num_given != num_tokens and (num_given or not may_be_empty):
                raise ValueError(
                    f"trajectory {index}: one {what} for each of {num_tokens} response tokens, got {num_given}"
                )


def _distinct(arrays: Sequence[NDArray[np.int32]]) -> tuple[list[int], Ints]:
    """(the first array of each kind, the kind of each array)."""
    firsts, kinds, known = list[int](), list[int](), dict[bytes, int]()
    for index, array in enumerate(arrays):
        kind = known.setdefault(array.tobytes(), len(known))
        if kind == len(firsts):
            firsts.append(index)
        kinds.append(kind)
    return firsts, np.array(kinds, dtype=np.int64)


def _lengths(arrays: Sequence[NDArray[Number]]) -> Ints:
    return np.array([len(each) for each in arrays], dtype=np.int64)


def _starts(lengths: Ints) -> Ints:
    """Of parts that lie one after the other."""
    return lengths.cumsum() - lengths


def _one_array(parts: Sequence[NDArray[Number]], kind: type[Number]) -> NDArray[Number]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=kind)
