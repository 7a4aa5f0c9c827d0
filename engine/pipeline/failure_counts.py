"""Failures of tools, graders and environments in training groups, counted since the attempt began.

Invariant: counts only grow; steps that a new trainer trains again count again.
"""

from dataclasses import dataclass
from typing import Final, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCounts:
    num_samples: int = 0
    """Samples that ended without a reward, hung ones included."""
    num_replacements: int = 0
    """Samples started in the place of failed ones."""
    num_short_groups: int = 0
    """Groups trained with fewer samples than the group size."""
    num_groups: int = 0
    """Groups dropped, since too few of their samples had a reward."""

    def add(self, *, samples: int = 0, replacements: int = 0, short_groups: int = 0, groups: int = 0) -> Self:
        return type(self)(
            num_samples=self.num_samples + samples,
            num_replacements=self.num_replacements + replacements,
            num_short_groups=self.num_short_groups + short_groups,
            num_groups=self.num_groups + groups,
        )

    def since(self, before: Self) -> dict[str, float]:
        """The metrics of a step."""
        return {
            "failures/samples": float(self.num_samples - before.num_samples),
            "failures/replacements": float(self.num_replacements - before.num_replacements),
            "failures/short_groups": float(self.num_short_groups - before.num_short_groups),
            "failures/groups": float(self.num_groups - before.num_groups),
        }


NO_FAILURES: Final = FailureCounts()
