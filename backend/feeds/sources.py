"""Sources of a stream: the events of one job, or of all jobs of a team.

Invariants:
- each job's events are sent in order of `seq`, without gaps;
- a job's stream is exact, also across reconnections: its id is the event's `seq`;
- a team's stream is exact while it lasts (it keeps the last `seq` of each job). After a reconnection the last `OVERLAP`
  is repeated, because a transaction may commit after one with a higher id: at-least-once, and `job_id` and `seq` reveal
  duplicates.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Max, Min, Q

from backend.accounts.models import Team
from backend.clock import database_now
from backend.errors import Refusal
from backend.feeds.streaming import Pulled, frame
from backend.jobs.models import TERMINAL_STATES, Job, JobEvent
from backend.jobs.rest.representations import represent_event
from backend.jobs.selectors import events_after

AT_ONCE = 200
OVERLAP = timedelta(seconds=60)  # longer than any transaction may be open (see DATABASES in settings)
REPLAYED_FOR = timedelta(hours=24)
MOST_REPLAYED = 5_000


class Gone(Refusal):
    """These events are no longer stored. Read the job again and resume from its newest event."""

    status = 410
    code = "gone"


def refuse_forgotten(job: Job, after: int) -> None:
    """Raises `Gone` if the next event is no longer stored but later ones are."""
    oldest = JobEvent.objects.filter(job=job).aggregate(oldest=Min("seq"))["oldest"]
    if oldest is not None and after + 1 < oldest:
        raise Gone(oldest_seq=oldest)


class JobSource:
    def __init__(self, job: Job, after: int) -> None:
        self._job_id, self._seq = job.pk, after

    def pull(self, news: Sequence[Mapping[str, Any]]) -> Pulled:
        job = Job.objects.get(pk=self._job_id)  # read first: a terminal state and its event are one transaction
        events = list(events_after(job, self._seq)[:AT_ONCE])
        frames = [frame(event.type, _document(event), id=str(event.seq)) for event in events]
        if events:
            self._seq = events[-1].seq
        is_over = job.state in TERMINAL_STATES and len(events) < AT_ONCE
        if is_over:
            frames.append(frame("end", {"state": job.state}))
        return Pulled(frames=frames, again=len(events) == AT_ONCE, is_over=is_over)


class TeamSource:
    """Events of a team after the id `after`, the last one received; None: from now on. Raises `Gone`."""

    def __init__(self, team: Team, after: int | None) -> None:
        self._events = JobEvent.objects.filter(job__team=team)
        now = database_now()
        self._since = now if after is None else self._time_of(after, now)
        self._seen = self._seen_before(now if after is None else self._since - OVERLAP, now)
        """The last `seq` sent of each job that may still have news."""
        self._is_first = True

    def pull(self, news: Sequence[Mapping[str, Any]]) -> Pulled:
        started = database_now()
        if self._is_first or any("pull" in item for item in news):
            new = Q(at__gte=self._since - OVERLAP)
        else:
            new = Q(pk=None)
            for job_id in (item["job"] for item in news):
                known = job_id in self._seen
                later = Q(seq__gt=self._seen[job_id]) if known else Q(at__gte=self._since - OVERLAP)
                new |= later & Q(job=job_id)
        rows = self._events.filter(new).order_by("pk")
        frames = []
        for event in rows:
            if event.seq > self._seen.get(event.job_id, 0):
                self._seen[event.job_id] = event.seq
                frames.append(frame(event.type, {"job_id": event.job_id} | _document(event), id=str(event.pk)))
        self._since, self._is_first = started, False
        return Pulled(frames=frames)

    def _seen_before(self, cut: datetime, now: datetime) -> dict[str, int]:
        jobs = self._events.filter(Q(job__finished_at__isnull=True) | Q(at__gte=min(cut, now - 2 * OVERLAP)))
        ends = jobs.values_list("job_id").annotate(last=Max("seq"), first_new=Min("seq", filter=Q(at__gte=cut)))
        return {job_id: last if first_new is None else first_new - 1 for job_id, last, first_new in ends.order_by()}

    def _time_of(self, event_id: int, now: datetime) -> datetime:
        at = self._events.filter(pk=event_id).values_list("at", flat=True).first()
        too_long = at is None or at < now - REPLAYED_FOR or self._events.filter(at__gte=at)[MOST_REPLAYED:].exists()
        if at is None or too_long:
            raise Gone("This stream replays at most one day and 5,000 events. Start without Last-Event-ID.")
        return at


def _document(event: JobEvent) -> dict[str, Any]:
    return represent_event(event).model_dump(mode="json")
