"""A job's progress, again and again until it is over: what a progress bar or a notebook shows."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..answers.jobs import Job
from ..answers.telemetry import Event, EventPage
from ..wire import Emit, Pause, Procedure, Stream, get
from .jobs import POLL_S, show
from .pages import answer
from .telemetry import metrics

MOST_PAGES = 50  # of one look; a job that measures faster than this is looked at again in a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The job as it is now, the newest value of each series, and the events since the last look."""

    job: Job
    latest: dict[str, tuple[int, float]] = field(default_factory=dict)
    events: Sequence[Event] = ()


def watch(job_id: str, *, after: int = 0, names: Sequence[str] = (), interval_s: float = POLL_S) -> Stream[Progress]:
    """One look every `interval_s`, the last one when the job is over. `after` is the last event's `seq` you have seen;
    `names` are the series that matter (empty: all)."""
    cursor, latest = 0, dict[str, tuple[int, float]]()
    while True:
        job = yield from show(job_id)  # first: whatever happened before its end is among what is read next
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
