"""Sampling: which complete groups form the next batch, and which carry no training signal.

Invariants:
- a batch is whole or absent: exactly `num_groups` groups, never fewer;
- no group starves: first in, first out, so that short answers gain no advantage beyond finishing early.
"""

from collections.abc import Sequence


def oldest_first(num_ready: int, *, num_groups: int) -> range | None:
    """Positions of the groups to train on, in the order in which groups became ready; None: too few are ready."""
    return range(num_groups) if num_ready >= num_groups else None


def has_signal(rewards: Sequence[float]) -> bool:
    """A group with equal rewards moves no weight."""
    return len(set(rewards)) > 1
