"""A batch as arrays: the trainer's input, which its ranks share without a copy.

    ids_A         prompt a │ prompt b │ … │ response 0 │ response 1 │ …      a prompt of several samples is stored once
    logprobs_R                              response 0 │ response 1 │ …

    N trajectories    A tokens of all prompts and responses    R tokens of all responses    Q sequences (sequences.py)

Invariants:
- a trajectory's numbers and the places of its tokens are small, and every rank reads them; of the token arrays a rank
  reads only what it trains on, so that it touches no other pages of shared memory;
- a selection of trajectories shares the token arrays.
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
    """One trajectory as tuples of numbers, for small batches."""

    group: int
    """Trajectories with the same number are samples of one prompt."""
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    behaviour_logprobs: tuple[float, ...]
    reward: float
    trusted: bool = True
    """False: the trajectory is not trained on, and is left out of other trajectories' baselines."""
    written: tuple[bool, ...] = ()
    """True for response tokens that the model wrote; the others are a tool's, which are read but not trained on, with
    `behaviour_logprobs` of 0. Empty: all written."""
    staleness: tuple[int, ...] = ()
    """For each response token: the trained version less the version that wrote it. Empty: all 0."""
    cut: bool = False
    """Whether it was cut off at the maximum length."""
    routes: bytes = b""
    """The experts of its first tokens, prompt included (engine/models/routes.py); empty for a dense model."""
    breaks: tuple[int, ...] = ()
    """The places in the response at which later segments begin, which do not see earlier tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryArrays:
    """One trajectory as arrays, which are copied only into the batch."""

    group: int
    prompt_ids: NDArray[np.int32]
    response_ids: NDArray[np.int32]
    behaviour_logprobs: NDArray[np.float32]
    written: Bools
    """Empty: all written."""
    staleness: NDArray[np.int32]
    """Empty: all 0."""
    reward: float
    trusted: bool
    cut: bool
    routes: NDArray[np.uint8]
    breaks: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenArrays:
    """The batch's values per token."""

    ids_A: NDArray[np.int32]
    logprobs_R: NDArray[np.float32]
    """By the policy that wrote the token."""
    staleness_R: NDArray[np.int32]
    written_R: Bools
    routes: NDArray[np.uint8]
    """Per trajectory, prompt included: samples of one prompt may have different experts there."""
    breaks: NDArray[np.int32]
    """Per trajectory: the places in its response at which later segments begin."""


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
    """Places in A; the same for trajectories with the same prompt."""
    prompt_lengths_N: Ints
    response_starts_N: Ints
    """Places in R."""
    response_lengths_N: Ints
    num_written_N: Ints
    last_written_N: Ints
    """The place in the response of the last written token: it predicts nothing, so the model reads neither it nor later
    tokens. 0 if no token was written."""
    route_starts_N: Ints
    num_route_bytes_N: Ints
    break_starts_N: Ints
    num_breaks_N: Ints

    @classmethod
    def of(cls, trajectories: "Trajectories") -> "TrainingBatch":
        if isinstance(trajectories, TrainingBatch):
            return trajectories
        return cls.joined(map(_to_arrays, trajectories))

    @classmethod
    def joined(cls, trajectories: Iterable[TrajectoryArrays]) -> "TrainingBatch":
        every = list(trajectories)
        _check_lengths(every)
        prompts = [each.prompt_ids for each in every]
        kinds, kind_N = _find_distinct(prompts)
        distinct = [prompts[index] for index in kinds]
        prompt_lengths_N = _measure_lengths(prompts)
        response_lengths_N = _measure_lengths([each.response_ids for each in every])
        response_starts_N = _find_starts(response_lengths_N)
        ids_A = _concatenate([*distinct, *(each.response_ids for each in every)], np.int32)
        num_written_N, last_written_N = response_lengths_N.copy(), response_lengths_N - 1
        written_R = np.ones(response_lengths_N.sum(), dtype=np.bool_)
        staleness_R = np.zeros(len(written_R), dtype=np.int32)
        num_route_bytes_N = _measure_lengths([each.routes for each in every])
        num_breaks_N = _measure_lengths([each.breaks for each in every])
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
                logprobs_R=_concatenate([each.behaviour_logprobs for each in every], np.float32),
                staleness_R=staleness_R,
                written_R=written_R,
                routes=_concatenate([each.routes for each in every], np.uint8),
                breaks=_concatenate([each.breaks for each in every], np.int32),
            ),
            lowest_id=int(ids_A.min(initial=0)),
            highest_id=int(ids_A.max(initial=0)),
            groups_N=np.array([each.group for each in every], dtype=np.int64),
            rewards_N=np.array([each.reward for each in every], dtype=np.float64),
            trusted_N=np.array([each.trusted for each in every], dtype=np.bool_),
            cut_N=np.array([each.cut for each in every], dtype=np.bool_),
            prompt_starts_N=_find_starts(_measure_lengths(distinct))[kind_N],
            prompt_lengths_N=prompt_lengths_N,
            response_starts_N=response_starts_N,
            response_lengths_N=response_lengths_N,
            num_written_N=num_written_N,
            last_written_N=last_written_N,
            route_starts_N=_find_starts(num_route_bytes_N),
            num_route_bytes_N=num_route_bytes_N,
            break_starts_N=_find_starts(num_breaks_N),
            num_breaks_N=num_breaks_N,
        )

    def __len__(self) -> int:
        return len(self.groups_N)

    @property
    def num_written(self) -> int:
        return int(self.num_written_N.sum())

    @property
    def num_tokens(self) -> int:
        """All trajectories' tokens, with a prompt counted once per sample."""
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


def _to_arrays(trajectory: TrainingTrajectory) -> TrajectoryArrays:
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
            ("written mark", len(each.written), True),
            ("staleness", len(each.staleness), True),
        ):
            if num_given != num_tokens and (num_given or not may_be_empty):
                raise ValueError(
                    f"trajectory {index}: needs one {what} per response token ({num_tokens}), got {num_given}"
                )


def _find_distinct(arrays: Sequence[NDArray[np.int32]]) -> tuple[list[int], Ints]:
    """(index of the first array of each kind, kind of each array)."""
    firsts, kinds, known = list[int](), list[int](), dict[bytes, int]()
    for index, array in enumerate(arrays):
        kind = known.setdefault(array.tobytes(), len(known))
        if kind == len(firsts):
            firsts.append(index)
        kinds.append(kind)
    return firsts, np.array(kinds, dtype=np.int64)


def _measure_lengths(arrays: Sequence[NDArray[Number]]) -> Ints:
    return np.array([len(each) for each in arrays], dtype=np.int64)


def _find_starts(lengths: Ints) -> Ints:
    """The starts of adjacent parts with these lengths."""
    return lengths.cumsum() - lengths


def _concatenate(parts: Sequence[NDArray[Number]], kind: type[Number]) -> NDArray[Number]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=kind)
