"""The activity of a run's replicas over time: one row per replica, each column drawn as its main activity.

    replica 0  ▇▇▇▇▅▇▇▇▁▁▇▇   wrote 71 %, idle 20 %, …     writes 12, cache 40 %, version 31
    replica 8  ▇▇▇▇▇▇▇▁▁▁▇▇   …                            …

Invariants:
- activities differ in height as well as colour, and every row lists its shares in words;
- of more than `MOST_ROWS` replicas every n-th is shown, and the page states which;
- a running job has its rows from the start, before the first report, so that the page does not shift later.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from backend.jobs.models import Job
from backend.telemetry.replicas.activity import DOINGS, ReplicaTimeline, replica_timeline
from backend.telemetry.replicas.states import ReplicaHeld, replicas_held

MOST_ROWS: Final = 8
"""The number of rows that fit on a phone without scrolling."""
COLUMNS: Final = 72
"""Columns per row: 20 pixels each on a wide page, 4 on a phone."""
MOST_WORDS: Final = 3
"""The number of activities listed per row, the longest first."""

WORDS: Final[Mapping[str, str]] = {
    "decode": "generating",
    "prefill": "reading prompts",
    "environment": "waiting for the environment",
    "weights": "loading weights",
    "move": "moving trajectories",
    "idle": "idle",
}
HEIGHTS: Final = dict(zip(DOINGS, (14, 11, 8, 6, 4, 2), strict=True))
"""Pixels: work on answers is highest."""
TRACK: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    doing: str
    x: float
    """Per cent, like `width`."""
    width: float

    @property
    def word(self) -> str:
        return WORDS[self.doing]

    @property
    def height(self) -> int:
        return HEIGHTS[self.doing]

    @property
    def y(self) -> int:
        return TRACK - self.height


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    replica: int
    pieces: Sequence[Piece]
    did: str
    """Shares of the reported time; empty: no reports."""
    held: ReplicaHeld | None
    """Its last report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRows:
    rows: Sequence[ReplicaRow]
    num: int
    """The number of replicas, present and past."""
    stride: int
    since: datetime
    until: datetime
    legend: Sequence[Piece]

    @property
    def last(self) -> int:
        return self.rows[-1].replica


def replica_rows_of(job: Job, *, now: datetime) -> ReplicaRows | None:
    """None: the job never ran, or the reports of its replicas have been deleted."""
    if job.started_at is None:
        return None
    since, until = job.started_at, job.finished_at or now
    timeline = replica_timeline(job, since, until) if since < until else ReplicaTimeline()
    seconds = _seconds_of(timeline, since, until)
    held = replicas_held(job)
    if job.is_terminal and not seconds:
        return None
    asked = int(job.spec["rollout"]["replicas"])
    known = sorted({*seconds, *(each.replica for each in held.replicas), *range(held.num_replicas or asked)})
    stride = -(-len(known) // MOST_ROWS)
    by_replica = {each.replica: each for each in held.replicas}
    rows = [
        ReplicaRow(
            replica=replica,
            pieces=_pieces(seconds.get(replica, {})),
            did=_describe_activity(seconds.get(replica, {})),
            held=None if job.is_terminal else by_replica.get(replica),
        )
        for replica in known[::stride]
    ]
    legend = [Piece(doing=doing, x=0.0, width=100.0) for doing in DOINGS]
    return ReplicaRows(rows=rows, num=len(known), stride=stride, since=since, until=until, legend=legend)


Columns = Mapping[int, Mapping[str, float]]
"""For one replica: by column, seconds per activity."""


def _seconds_of(timeline: ReplicaTimeline, since: datetime, until: datetime) -> Mapping[int, Columns]:
    column_s = (until - since).total_seconds() / COLUMNS
    seconds: dict[int, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    for replica, doing, start, end, share in _stretches(timeline):
        first, last = ((moment - since).total_seconds() / column_s for moment in (start, end))
        for column in range(max(0, int(first)), min(COLUMNS - 1, int(last)) + 1):
            part = min(last, column + 1) - max(first, column)
            if part > 0:
                seconds[replica][column][doing] += part * column_s * share
    return seconds


def _stretches(timeline: ReplicaTimeline) -> Iterator[tuple[int, str, datetime, datetime, float]]:
    """(column, activity, start, end, share of the period spent on it)."""
    for span in timeline.spans:
        yield span.replica, span.doing, span.start, span.end, 1.0
    for cell in timeline.cells:
        end = cell.start + timedelta(seconds=timeline.cell_s)
        yield cell.replica, cell.doing, cell.start, end, cell.seconds / timeline.cell_s


def _pieces(columns: Columns) -> list[Piece]:
    """Merges neighbouring columns with the same activity."""
    pieces: list[Piece] = []
    width = 100 / COLUMNS
    for column in sorted(columns):
        doing = max(DOINGS, key=lambda each: columns[column].get(each, 0.0))
        x = column * width
        last = pieces[-1] if pieces else None
        if last is not None and last.doing == doing and abs(last.x + last.width - x) < width / 2:
            pieces[-1] = Piece(doing=doing, x=last.x, width=last.width + width)
        else:
            pieces.append(Piece(doing=doing, x=x, width=width))
    return pieces


def _describe_activity(columns: Columns) -> str:
    totals = {doing: sum(column.get(doing, 0.0) for column in columns.values()) for doing in DOINGS}
    whole = sum(totals.values())
    if not whole:
        return ""
    shares = {doing: round(100 * total / whole) for doing, total in totals.items()}
    most = sorted(DOINGS, key=lambda doing: -shares[doing])[:MOST_WORDS]
    return ", ".join(f"{WORDS[doing]} {shares[doing]} %" for doing in most if shares[doing])
