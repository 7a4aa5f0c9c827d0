"""Recovery: the moment at which a part counts as gone, its replacement, and the end of a run that is beyond help.

Invariants:
- a part is replaced at once the first time, later and later when it keeps dying, and not without end;
- its process is judged by its heartbeats, which come whatever it is at; its work by the signs of life in it, one for
  each unit. No limit follows from the size of the work;
- a grader that fails on most groups ends the run: training on what little it lets through would bias the job.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from engine.policy.progress import LOOP, Piece

PartKind = Literal["rollout", "relay", "data", "trainer"]
"""Those that the manager watches."""

MAX_LOSSES: Final = 5  # within the window; a part that dies more often has a cause that restarting does not cure
LOSS_WINDOW_S: Final = 600.0
FIRST_DELAY_S: Final = 0.0
BACKOFF_S: Final = 2.0  # doubles with every further loss in the window, so that a crash loop leaves the CPU to others
# Who judges others is told the time every second; a gap of several is its own.
ABSENT_AFTER_S: Final = 4.0
MIN_GROUPS_TO_JUDGE: Final = 20
MAX_FAILED_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The time to wait for a sign of life."""

    # Heartbeats come every second from a thread that does nothing else: on the busiest host, twenty are not late.
    silent_s: float = 20.0
    # A process is started and imports what its first heartbeat takes, which no job makes longer.
    start_s: float = 300.0
    # A unit of work takes seconds, on a slow device or disk tens of them; who hangs is found within two minutes.
    no_progress_s: float = 120.0
    nothing_moves_s: float = 600.0

    def silence_s(self, *, has_spoken: bool) -> float:
        """Between two heartbeats, or until the first one."""
        return self.silent_s if has_spoken else self.start_s

    def standstill_s(self, piece: Piece) -> float:
        """Between two signs of life in the work; a loop's turn with nothing to do takes none."""
        return self.silent_s if piece.what == LOOP else self.no_progress_s + piece.constant_s

    def of_the_run_s(self, pieces: Iterable[Piece]) -> float:
        """The time that a run may go without a token, a step or an answer, while its parts are at these: a part that
        stands still in its work is found and replaced before the whole run counts as still."""
        works_s = (self.standstill_s(piece) for piece in pieces if piece.what != LOOP)
        return self.nothing_moves_s + max(works_s, default=0.0)


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
