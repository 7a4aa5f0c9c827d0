"""Recovery: when a part counts as lost, when it is replaced, and when the run fails.

Invariants:
- a part is replaced at once the first time, with a growing back-off when it keeps dying, and not forever;
- a process is judged by its heartbeats, which come whatever work it does; the work by its signs of life, one for each
  unit. No limit depends on the size of the work;
- a grader that fails on most groups ends the run: training on the few that pass would bias the job.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from engine.policy.progress import LOOP, Piece

PartKind = Literal["rollout", "relay", "data", "trainer"]
"""The parts that the manager watches."""

MAX_LOSSES: Final = 5  # within the window; if a part dies more often, restarting does not help
LOSS_WINDOW_S: Final = 600.0
FIRST_DELAY_S: Final = 0.0
BACKOFF_S: Final = 2.0  # doubles with every further loss in the window: a crash loop must not take the CPU from others
# A judging process ticks every second; a gap of several seconds is its own.
ABSENT_AFTER_S: Final = 4.0
MIN_GROUPS_TO_JUDGE: Final = 20
MAX_FAILED_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Time limits for a sign of life."""

    # Heartbeats come every second from a thread that does nothing else: even on a busy host they are not twenty late.
    silent_s: float = 20.0
    # Process start and imports before the first heartbeat; the job's size does not matter.
    start_s: float = 300.0
    # A unit of work takes seconds, tens of them on a slow device or disk; a hang is found within two minutes.
    no_progress_s: float = 120.0
    nothing_moves_s: float = 600.0

    def silence_s(self, *, has_spoken: bool) -> float:
        """Limit between two heartbeats, or until the first one."""
        return self.silent_s if has_spoken else self.start_s

    def standstill_s(self, piece: Piece) -> float:
        """Limit between two signs of life in the work; an idle loop must turn within the heartbeat limit."""
        return self.silent_s if piece.what == LOOP else self.no_progress_s + piece.constant_s

    def stall_limit_s(self, pieces: Iterable[Piece]) -> float:
        """Limit for a run without a token, a step or an answer while its parts do these pieces of work: a part that
        hangs is found and replaced before the whole run counts as stalled."""
        works_s = (self.standstill_s(piece) for piece in pieces if piece.what != LOOP)
        return self.nothing_moves_s + max(works_s, default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    num_losses: int


def after_loss(losses_at: Sequence[float], now: float) -> Replace | GiveUp:
    """`losses_at`: times of this part's losses, the current one included."""
    num_recent = sum(now - at <= LOSS_WINDOW_S for at in losses_at)
    if num_recent > MAX_LOSSES:
        return GiveUp(num_losses=num_recent)
    if num_recent <= 1:
        return Replace(after_s=FIRST_DELAY_S)
    return Replace(after_s=BACKOFF_S * 2 ** (num_recent - 2))


def breaks_the_run(given_up: Collection[PartKind], left: Collection[PartKind]) -> bool:
    """There is one data part and one trainer; of the other kinds at least one part must be left."""
    return any(kind not in left for kind in given_up)


def describe_recovery(kind: PartKind) -> str:
    """Text for people, after "replaced"."""
    match kind:
        case "rollout":
            return "its unfinished groups returned to data"
        case "relay":
            return "the chain skips it"
        case "data":
            return "it resumes from its log"
        case "trainer":
            return "it resumes from the newest checkpoint that verifies"


def grader_is_broken(*, num_failed_groups: int, num_ended_groups: int) -> bool:
    return num_ended_groups >= MIN_GROUPS_TO_JUDGE and num_failed_groups / num_ended_groups > MAX_FAILED_SHARE
