"""What the replicas of a run did, as rows on its timeline: one a replica, in so many columns, each by what it did most.

    replica 0  ▇▇▇▇▅▇▇▇▁▁▇▇   wrote 71 %, idle 20 %, …     writes 12, cache 40 %, version 31
    replica 8  ▇▇▇▇▇▇▇▁▁▁▇▇   …                            …

Invariants:
- every doing has a height of its own beside its colour, and every row says its shares in words;
- of more than `MOST_ROWS` replicas every so-manieth is shown, and the page says which;
- a run that goes on has its rows from its beginning, before anything was told: nothing is pushed down later.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from backend.jobs.models import Job
from backend.telemetry.activity import DOINGS, ReplicaTimeline, replica_timeline
from backend.telemetry.replica_states import ReplicaHeld, replicas_held

MOST_ROWS: Final = 8
"""What a telephone shows of them below one another without being scrolled."""
COLUMNS: Final = 72
"""Of a row that is at most as wide as the page: twenty pixels each, or four of a telephone's."""
MOST_WORDS: Final = 3
"""Of a row's shares: those that take most of its time."""

WORDS: Final[Mapping[str, str]] = {
    "decode": "wrote",
    "prefill": "read",
    "environment": "waited for the environment",
    "weights": "took weights",
    "move": "moved answers",
    "idle": "idle",
}
HEIGHTS: Final = dict(zip(DOINGS, (14, 11, 8, 6, 4, 2), strict=True))
"""Pixels: what is done for the answers stands highest."""
TRACK: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    doing: str
    x: float
    """Per cent, as is `width`."""
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
    """Shares of the time that it told of; empty: it told nothing."""
    held: ReplicaHeld | None
    """What it said last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRows:
    rows: Sequence[ReplicaRow]
    num: int
    """Replicas that there are or were."""
    stride: int
    since: datetime
    until: datetime
    legend: Sequence[Piece]

    @property
    def last(self) -> int:
        return self.rows[-1].replica


def replica_rows_of(job: Job, *, now: datetime) -> ReplicaRows | None:
    """None: it never ran, or what its replicas did is forgotten."""
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
            did=_did(seconds.get(replica, {})),
            held=None if job.is_terminal else by_replica.get(replica),
        )
        for replica in known[::stride]
    ]
    legend = [Piece(doing=doing, x=0.0, width=100.0) for doing in DOINGS]
    return ReplicaRows(rows=rows, num=len(known), stride=stride, since=since, until=until, legend=legend)


Columns = Mapping[int, Mapping[str, float]]
"""Of one replica: by column seconds of each doing."""


def _seconds_of(timeline: ReplicaTimeline, since: datetime, until: datetime) -> Mapping[int, Columns]:
    column_s = (until - since).total_seconds() / COLUMNS
    found: dict[int, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    for replica, doing, start, end, share in _stretches(timeline):
        first, last = ((moment - since).total_seconds() / column_s for moment in (start, end))
        for column in range(max(0, int(first)), min(COLUMNS - 1, int(last)) + 1):
            part = min(last, column + 1) - max(first, column)
            if part > 0:
                found[replica][column][doing] += part * column_s * share
    return found


def _stretches(timeline: ReplicaTimeline) -> Iterator[tuple[int, str, datetime, datetime, float]]:
    """Each with the share of it that was so."""
    for span in timeline.spans:
        yield span.replica, span.doing, span.start, span.end, 1.0
    for cell in timeline.cells:
        end = cell.start + timedelta(seconds=timeline.cell_s)
        yield cell.replica, cell.doing, cell.start, end, cell.seconds / timeline.cell_s


def _pieces(columns: Columns) -> list[Piece]:
    """Neighbours that did the same are one."""
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


def _did(columns: Columns) -> str:
    totals = {doing: sum(column.get(doing, 0.0) for column in columns.values()) for doing in DOINGS}
    whole = sum(totals.values())
    if not whole:
        return ""
    shares = {doing: round(100 * total / whole) for doing, total in totals.items()}
    most = sorted(DOINGS, key=lambda doing: -shares[doing])[:MOST_WORDS]
    return ", ".join(f"{WORDS[doing]} {shares[doing]} %" for doing in most if shares[doing])
