"""Sampling: which complete groups make the next batch.

Invariants:
- a batch is whole or absent: exactly `num_groups` groups, never fewer;
- no group is passed over for ever: first in, first out, so that short answers get no head start beyond their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyGroupView:
    version: int
    """The oldest version among the group's trajectories."""
    ready_at: float


def oldest_first(ready: Sequence[ReadyGroupView], *, num_groups: int) -> list[int] | None:
    """Positions of the groups to train on, or None while there are too few."""
    if len(ready) < num_groups:
        return None
    by_age = sorted(range(len(ready)), key=lambda position: ready[position].ready_at)
    return by_age[:num_groups]
