"""The progress of the last action requested for a job.

    request ──▶ acknowledged by the engine ──▶ checkpoint saved ──▶ job at rest, or running again
                       (a fact)                    (a fact)           (an event with its actor)

Invariants:
- the request itself only shows its actor and time; every later line is an event of the engine,
  the scheduler or reconciliation;
- a request that was closed because its attempt ended is never shown as acknowledged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.db.models import Q

from backend.jobs.attempts.ending import KILLED, PREEMPTED
from backend.jobs.models import TERMINAL_STATES, ControlRequest, Job, JobEvent, JobState, OutboxMessage
from backend.pages.job.panels.event_sentences import EventSentence, event_sentences_of

_MOST_LINES: Final = 12
_TOLD: Final = (
    "request_acknowledged",
    "checkpoint_saved",
    "run_finished",
    "state_changed",
    "driver_started",
    "stalled",
    "cluster_stopped",
)
_ASKED: Final = {
    JobState.PAUSING: ("Pause requested", JobState.PAUSED),
    JobState.STOPPING: ("Cancel requested", JobState.CANCELLED),
    JobState.QUEUED: ("Resume requested", JobState.RUNNING),
    JobState.CANCELLED: ("Cancelled", JobState.CANCELLED),
}
UNHEARD: Final = "Waiting for the engine to acknowledge the request. It polls every two seconds."
CLUSTER_ASKED: Final = "Stopping the job's remaining processes on the cluster."


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    title: str
    asked: EventSentence
    lines: Sequence[tuple[EventSentence, str]]
    """The events since the request, each with a short label, oldest first."""
    waits: str
    """The next expected event; empty: complete."""


def story_of(job: Job) -> Story | None:
    """None: there was no request, or later events have superseded it."""
    asked = _find_newest_request(job)
    if asked is None:
        return None
    if asked.type == "pause_requested":
        title, goal = _ASKED[JobState.PAUSING]
    elif asked.type == "resume_requested":
        title, goal = _ASKED[JobState.QUEUED]
    elif asked.reason == PREEMPTED:
        title, goal = "Returned to the queue", JobState.QUEUED
    elif asked.reason == KILLED:
        title, goal = "Killed", JobState(asked.to_state)
    else:
        title, goal = _ASKED[JobState(asked.to_state)]
    since = list(job.events.filter(seq__gt=asked.seq, type__in=_TOLD).order_by("seq")[: _MOST_LINES + 1])
    events, is_over = _cut_at_goal(goal, since, already=asked.to_state == goal)
    if is_over and _is_overtaken(job, events[-1] if events else asked, goal):
        return None
    sentences = event_sentences_of([asked, *events], job)
    waits = _describe_wait(job, _is_acknowledged(job, asked)) if not is_over else _describe_cluster_wait(job, events)
    lines = [(sentence, _label_event(event)) for event, sentence in zip(events, sentences[1:], strict=True)]
    return Story(title=title, asked=sentences[0], lines=lines[:_MOST_LINES], waits=waits)


def _find_newest_request(job: Job) -> JobEvent | None:
    by_somebody = Q(actor__startswith="user:") | Q(actor__startswith="key:")
    wish = (
        Q(type__in=("pause_requested", "resume_requested"))
        | Q(type="state_changed", to_state__in=_ASKED)
        | Q(reason=KILLED)
    )
    return job.events.filter(by_somebody & wish).order_by("-seq").first()


def _cut_at_goal(goal: JobState, since: Sequence[JobEvent], *, already: bool) -> tuple[list[JobEvent], bool]:
    """Up to the event that reached the goal, or that ended the job."""
    if already:
        return [event for event in since if event.type != "state_changed"], True
    events: list[JobEvent] = []
    for event in since:
        events.append(event)
        if event.to_state == goal or event.to_state in TERMINAL_STATES:
            return events, True
    return events, False


def _is_overtaken(job: Job, last: JobEvent, goal: JobState) -> bool:
    """By a later change of state, or, for a job that runs again, by its first step."""
    if job.events.filter(seq__gt=last.seq, type="state_changed").exists():
        return True
    if goal != JobState.RUNNING:
        return False
    attempt = job.attempts.order_by("-n").first()
    return attempt is None or job.num_done > attempt.resume_step


def _is_acknowledged(job: Job, asked: JobEvent) -> bool | None:
    """By the engine's acknowledgement. None: no engine was involved, or its attempt ended without acknowledging."""
    request = job.requests.filter(kind__in=("pause", "cancel"), created_at__gte=asked.at).order_by("created_at").first()
    if request is None:
        return None
    if job.events.filter(type="request_acknowledged", data__request=request.pk).exists():
        return True
    return None if _is_closed(request) else False


def _is_closed(request: ControlRequest) -> bool:
    return request.acknowledged_at is not None


def _describe_cluster_wait(job: Job, events: Sequence[JobEvent]) -> str:
    """For a killed job: only the cluster can confirm that none of its processes runs."""
    has_answered = any(event.type == "cluster_stopped" for event in events)
    if job.reason != KILLED or has_answered:
        return ""
    return CLUSTER_ASKED if OutboxMessage.objects.filter(topic="stop", key=job.pk).exists() else ""


def _describe_wait(job: Job, heard: bool | None) -> str:
    if heard is False:
        return UNHEARD
    match job.state:
        case JobState.PAUSING:
            return "Waiting for the job to save a checkpoint and release its devices."
        case JobState.STOPPING:
            return "Waiting for the job to release its devices."
        case JobState.QUEUED:
            return "Waiting for devices."
        case JobState.STARTING | JobState.RECOVERING:
            return "The engine is starting."
    return ""


def _label_event(event: JobEvent) -> str:
    match event.type:
        case "request_acknowledged":
            return "request acknowledged"
        case "checkpoint_saved":
            return "checkpoint saved"
        case "run_finished":
            return f"the engine ended: {event.reason}"
        case "driver_started":
            return "a new attempt started"
        case "cluster_stopped":
            return "confirmed by the cluster"
        case "stalled":
            return "the driver stalled"
    return event.to_state
