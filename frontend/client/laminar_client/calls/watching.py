"""A job's progress, polled until the job has ended: for a progress bar or a notebook."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..answers.jobs import Job
from ..answers.telemetry import Event, EventPage
from ..wire import Emit, Pause, Procedure, Stream, get
from .jobs import POLL_S, show
from .pages import answer
from .telemetry import metrics

MOST_PAGES = 50  # per poll; if a job produces more, the next poll a second later continues


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The current job, the newest value of each series, and the events since the last poll."""

    job: Job
    latest: dict[str, tuple[int, float]] = field(default_factory=dict)
    events: Sequence[Event] = ()


def watch(job_id: str, *, after: int = 0, names: Sequence[str] = (), interval_s: float = POLL_S) -> Stream[Progress]:
    """Polls every `interval_s`, the last time when the job has ended. `after` is the `seq` of the last event that you
    have seen; `names` are the series to read (empty: all)."""
    cursor, latest = 0, dict[str, tuple[int, float]]()
    while True:
        job = yield from show(job_id)  # read first, so that the reads below include everything before the job's end
        cursor = yield from _newest(job_id, cursor, names, latest)
        page = yield from answer(EventPage, get("jobs", job_id, "events", query={"after": after, "limit": 100}))
        after = page.next_after
        yield Emit(Progress(job=job, latest=dict(latest), events=page.data))
        if page.has_more:
            continue
        if job.is_over:
            return
        yield Pause(interval_s)


def _newest(job_id: str, cursor: int, names: Sequence[str], latest: dict[str, tuple[int, float]]) -> Procedure[int]:
    for _ in range(MOST_PAGES):
        page = yield from metrics(job_id, names=names, after=cursor)
        for name, points in page.series.items():
            step, value = max(points, key=lambda point: point[0])
            if step >= latest.get(name, (-1, 0.0))[0]:
                latest[name] = (int(step), float(value))
        cursor = page.cursor
        if not page.more:
            break
    return cursor
