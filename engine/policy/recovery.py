"""Recovery: what to do about a replica that is gone, and when a run is beyond help.

Invariants:
- a replica is replaced at once the first time, later and later when it keeps dying, and not for ever;
- a grader that fails on most groups ends the run: training on what little it lets through would bias the job.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_LOSSES: Final = 5  # within the window; a replica that dies more often has a cause that restarting does not mend
LOSS_WINDOW_S: Final = 600.0
FIRST_DELAY_S: Final = 0.0
BACKOFF_S: Final = 2.0  # doubles with every further loss in the window, so that a crash loop leaves the CPU to others
MIN_GROUPS_TO_JUDGE: Final = 20
MAX_FAILED_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    num_losses: int


def after_loss(losses_at: Sequence[float], now: float) -> Replace | GiveUp:
    """`losses_at`: when this replica was lost before, the present loss included."""
    num_recent = sum(now - at <= LOSS_WINDOW_S for at in losses_at)
    if num_recent > MAX_LOSSES:
        return GiveUp(num_losses=num_recent)
    if num_recent <= 1:
        return Replace(after_s=FIRST_DELAY_S)
    return Replace(after_s=BACKOFF_S * 2 ** (num_recent - 2))


def grader_is_broken(*, num_failed_groups: int, num_ended_groups: int) -> bool:
    return num_ended_groups >= MIN_GROUPS_TO_JUDGE and num_failed_groups / num_ended_groups > MAX_FAILED_SHARE
