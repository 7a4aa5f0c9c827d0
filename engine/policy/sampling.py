"""Sampling: the complete groups that make the next batch, and those that are not worth training on.

Invariants:
- a batch is whole or absent: exactly `num_groups` groups, never fewer;
- no group is passed over forever: first in, first out, so that short answers get no head start beyond their own.
"""

from collections.abc import Sequence


def oldest_first(num_ready: int, *, num_groups: int) -> range | None:
    """Positions of the groups to train on, of those ready in the order in which they became so; None: too few."""
    return range(num_groups) if num_ready >= num_groups else None


def has_signal(rewards: Sequence[float]) -> bool:
    """A group whose samples were all worth the same moves no weight."""
    return len(set(rewards)) > 1
