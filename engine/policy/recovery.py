"""Recovery: what to do about a part that is gone, and when a run is beyond help.

Invariants:
- a part is replaced at once the first time, later and later when it keeps dying, and not for ever;
- silence is death only where a heartbeat is due: the trainer is silent while it computes a step;
- a grader that fails on most groups ends the run: training on what little it lets through would bias the job.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

PartKind = Literal["rollout", "relay", "data", "trainer"]
"""Those that the manager watches."""

MAX_LOSSES: Final = 5  # within the window; a part that dies more often has a cause that restarting does not mend
LOSS_WINDOW_S: Final = 600.0
FIRST_DELAY_S: Final = 0.0
BACKOFF_S: Final = 2.0  # doubles with every further loss in the window, so that a crash loop leaves the CPU to others
MIN_GROUPS_TO_JUDGE: Final = 20
MAX_FAILED_SHARE: Final = 0.5
SLOWER_THAN_EVER: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a part may be silent."""

    # Heartbeats come every second from the thread that works. On a busy host one decode or install may take seconds.
    silent_s: float = 20.0
    # The trainer's comes between two steps: it may take five times as long as its slowest so far, and before the first
    # nobody knows.
    trainer_silent_s: float = 600.0
    trainer_least_s: float = 60.0
    # Until its first heartbeat a part imports, loads and pulls, on a host where others do the same.
    start_s: float = 300.0

    def allows(
        self, kind: PartKind | Literal["environment"], *, has_spoken: bool, slowest_s: float | None = None
    ) -> float:
        """`slowest_s`: the longest silence of a trainer that has trained, so far; None: it has not."""
        if kind == "trainer" and has_spoken and slowest_s is not None:
            return min(self.trainer_silent_s, max(self.trainer_least_s, SLOWER_THAN_EVER * slowest_s))
        if kind == "trainer":
            return max(self.trainer_silent_s, 0.0 if has_spoken else self.start_s)
        return self.silent_s if has_spoken else self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    num_losses: int


def after_loss(losses_at: Sequence[float], now: float) -> Replace | GiveUp:
    """`losses_at`: when this part was lost before, the present loss included."""
    num_recent = sum(now - at <= LOSS_WINDOW_S for at in losses_at)
    if num_recent > MAX_LOSSES:
        return GiveUp(num_losses=num_recent)
    if num_recent <= 1:
        return Replace(after_s=FIRST_DELAY_S)
    return Replace(after_s=BACKOFF_S * 2 ** (num_recent - 2))


def breaks_the_run(given_up: Collection[PartKind], left: Collection[PartKind]) -> bool:
    """Data and trainer are one each; of the others some must be left."""
    return any(kind not in left for kind in given_up)


def what_follows(kind: PartKind) -> str:
    """For a person, after "replaced"."""
    match kind:
        case "rollout":
            return "its unfinished groups went back"
        case "relay":
            return "the chain goes round it"
        case "data":
            return "it goes on from its log"
        case "trainer":
            return "it goes on from the newest checkpoint that verifies"


def grader_is_broken(*, num_failed_groups: int, num_ended_groups: int) -> bool:
    return num_ended_groups >= MIN_GROUPS_TO_JUDGE and num_failed_groups / num_ended_groups > MAX_FAILED_SHARE
