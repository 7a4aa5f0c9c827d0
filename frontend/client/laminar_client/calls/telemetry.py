"""A job's events, metrics, log lines and trajectories, as lists or as streams until the job has ended.

Invariant: events and log lines are yielded once and in order, over any number of broken connections.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from ..answers.telemetry import Event, EventPage, LogLine, LogLines, Metrics, TeamEvent, Timeline, Trajectory
from ..wire import Emit, Procedure, Query, Stream, get
from .following import followed
from .pages import PAGE, answer, each_of

E = TypeVar("E", bound=Event)


def events(job_id: str, *, after: int = 0, follow: bool = False) -> Stream[Event]:
    """Oldest first, starting after number `after`. `follow`: stream new events until the job has ended."""
    if follow:
        request = get("jobs", job_id, "events")
        yield from followed(Event, request, last_id=str(after), is_new=_once(lambda event: job_id, {job_id: after}))
        return
    while True:
        page = yield from answer(EventPage, get("jobs", job_id, "events", query={"after": after, "limit": PAGE}))
        for event in page.data:
            yield Emit(event)
        after = page.next_after
        if not page.has_more:
            return


def team_events(*, last_id: str = "") -> Stream[TeamEvent]:
    """An endless stream of the events of all jobs of the team, from now on."""
    return followed(TeamEvent, get("events"), last_id=last_id, is_new=_once(lambda event: event.job_id, {}))


def metrics(
    job_id: str,
    *,
    names: Sequence[str] = (),
    after: int = 0,
    max_points: int | None = None,
    from_step: int | None = None,
    to_step: int | None = None,
    times: bool = False,
) -> Procedure[Metrics]:
    """One page from a cursor. With `max_points` or a range of steps, downsampled series with their bands. `times`: also
    the time at which each point was measured."""
    query = {
        "names": list(names),
        "after": after or None,
        "max_points": max_points,
        "from_step": from_step,
        "to_step": to_step,
        "times": times or None,
    }
    return (yield from answer(Metrics, get("jobs", job_id, "metrics", query=query)))


def timeline(job_id: str, *, since: datetime | None = None, until: datetime | None = None) -> Procedure[Timeline]:
    """The activity of each replica over time; by default for the newest five minutes."""
    query = {name: None if at is None else at.isoformat() for name, at in (("from", since), ("to", until))}
    return (yield from answer(Timeline, get("jobs", job_id, "timeline", query=query)))


def logs(
    job_id: str,
    *,
    component: str | None = None,
    level: str | None = None,
    q: str | None = None,
    tail: int | None = None,
    follow: bool = False,
) -> Stream[LogLine]:
    """The newest lines, oldest first. `follow`: stream new lines until the job has ended."""
    query: Query = {"component": component, "level": level, "q": q, "tail": tail}
    if follow:
        request = get("jobs", job_id, "logs", "stream", query=query)
        yield from followed(
            LogLine, request, last_id="", is_new=lambda line: True
        )  # stream ids are exact, so no line comes twice
        return
    found = yield from answer(LogLines, get("jobs", job_id, "logs", query=query))
    for line in found.lines:
        yield Emit(line)


def trajectories(
    job_id: str,
    *,
    q: str | None = None,
    step: int | None = None,
    outcome: str | None = None,
    end: str | None = None,
    min_reward: float | None = None,
    max_reward: float | None = None,
    most: int | None = None,
) -> Stream[Trajectory]:
    """Newest step first; `q`: only trajectories with these words. The key needs the scope trajectories:read."""
    query = {"q": q, "step": step, "outcome": outcome, "end": end, "min_reward": min_reward, "max_reward": max_reward}
    return each_of(Trajectory, "jobs", job_id, "trajectories", query=query, most=most)


def _once(subject: Callable[[E], str], seen: dict[str, int]) -> Callable[[E], bool]:
    """Whether an event is newer than all yielded events of its subject."""

    def is_new(event: E) -> bool:
        if event.seq <= seen.get(subject(event), 0):
            return False
        seen[subject(event)] = event.seq
        return True

    return is_new
