"""Answers a page's pull after a nudge.

Invariants:
- everything with a cursor in (after, answer.cursor] is in the answer, and nothing later: a page that keeps the answer's
  cursor has no gaps and no duplicates;
- points rolled back by a later attempt are left out, and its beginning is among the events: a page that drops what it
  has beyond `resume_step` and then adds these points shows the valid series;
- of trajectories only the step of the newest is included: texts are large and are loaded when a user opens them;
- an answer is bounded; `more` means pull again at once.
"""

from backend.jobs.models import Job, JobEvent
from backend.jobs.rest.representations import represent_event
from backend.telemetry.models import Trajectory
from backend.telemetry.representations import JobSummary, LiveDelta
from backend.telemetry.selectors import metrics_since

MOST_EVENTS = 500


def live_delta(job: Job, after: int) -> LiveDelta:
    job = Job.objects.get(pk=job.pk)  # reads its cursor first: later commits come with the next answer
    upto = job.cursor
    events = list(
        JobEvent.objects.filter(job=job, cursor__gt=after, cursor__lte=upto).order_by("cursor")[: MOST_EVENTS + 1]
    )
    if len(events) > MOST_EVENTS:
        upto = events[MOST_EVENTS].cursor - 1
    metrics = metrics_since(job, after, upto=upto, undone_too=False)
    upto = metrics.cursor
    sampled = Trajectory.objects.filter(job=job, cursor__gt=after, cursor__lte=upto).order_by("-cursor")
    return LiveDelta(
        cursor=upto,
        job=JobSummary.of(job),
        events=[represent_event(event) for event in events if event.cursor <= upto],
        series=dict(metrics.series),
        sampled_step=sampled.values_list("step", flat=True).first(),
        more=upto < job.cursor,
    )
