"""The content of each tab of a job's page, and the frame that all tabs share.

Invariant: a tab queries only what it shows. The same functions refresh the regions of an open tab.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Q
from django.http import QueryDict

from backend.accounts.acting import Acting
from backend.checkpoints.selectors import retention_of
from backend.jobs.models import Job, JobEvent, JobState
from backend.jobs.queue.explain import explain_wait
from backend.pages import curl
from backend.pages.job.checkpoint_acts import may_change
from backend.pages.job.checkpoint_views import rows_of
from backend.pages.job.controls import controls_of
from backend.pages.job.log_lines import levels, log_curl, log_of, parts_of
from backend.pages.job.panels.charts import CHARTS, Chart, charts_of
from backend.pages.job.panels.event_sentences import event_sentences_of
from backend.pages.job.panels.failure_panel import failure_panel_of
from backend.pages.job.panels.faults import faults_shown_of
from backend.pages.job.panels.lineage import lineage_of
from backend.pages.job.panels.replica_rows import replica_rows_of
from backend.pages.job.panels.timeline import timeline_of
from backend.pages.job.request_progress import story_of
from backend.pages.job.spec_changes import changes_since, forerunner_of
from backend.pages.job.tabs import Tab
from backend.pages.job.use import use_of
from backend.pages.queue_views import EXPLAINED_UNASKED
from backend.pages.trajectories.ledger import whereabouts_of_job
from backend.pages.trajectories.tab import tab_content

NUM_EVENTS: Final = 100
_MOST_MARKS: Final = 400
ON_OVERVIEW: Final = ("reward", "entropy", "throughput")
"""The charts on the overview: does the job learn, explore, and make progress? All others are on the Metrics tab."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curls:
    job: str
    reward: str
    evaluation: str
    trajectories: str
    verdict: str


def frame_of(job: Job, acting: Acting, *, now: datetime) -> dict[str, Any]:
    """The context of every tab."""
    path = f"/jobs/{job.pk}"
    return {
        "job": job,
        "now": now,
        "controls": controls_of(job, acting),
        "may_submit": "jobs:write" in acting.scopes,
        "story": story_of(job),
        "lineage": lineage_of(job),
        "curls": Curls(
            job=curl.get(path),
            reward=curl.get(f"{path}/metrics", names=("reward/mean",), max_points="500"),
            evaluation=curl.get(f"{path}/metrics", names=("evaluation/reward",)),
            trajectories=curl.get(f"{path}/trajectories"),
            verdict=curl.get(f"{path}/verdict"),
        ),
    }


def regions_of(tab: Tab, job: Job, acting: Acting, *, now: datetime) -> dict[str, Any]:
    """What an open tab fetches again when its job's state or events have changed."""
    match tab.slug:
        case "":
            return {**_history(job, now=now), **_why(job, now=now)}
        case "trajectories":
            return {
                "whereabouts": whereabouts_of_job(job),
                "ledger_curl": curl.get(f"/jobs/{job.pk}/ledger"),
            }
        case "faults":
            return {
                "faults": faults_shown_of(job, now=now),
                "faults_curl": curl.get(f"/jobs/{job.pk}/faults"),
                "attempts_curl": curl.get(f"/jobs/{job.pk}/attempts"),
            }
        case "checkpoints":
            return {
                "checkpoints": rows_of(job, acting),
                "may_change": may_change(acting),
                "rule": retention_of(job),
                "checkpoints_curl": curl.get(f"/jobs/{job.pk}/checkpoints"),
            }
        case "usage":
            return use_of(job, now=now)
    return {}


def content_of(tab: Tab, job: Job, asked: QueryDict) -> dict[str, Any]:
    """The context of the initial page only; scripts keep it up to date."""
    match tab.slug:
        case "":
            return {"charts": [each for each in _charts(job) if each[0].slug in ON_OVERVIEW]}
        case "metrics":
            return {"charts": _charts(job)}
        case "trajectories":
            return tab_content(job, asked)
        case "logs":
            log = log_of(job, asked)
            return {"log": log, "parts": parts_of(job), "levels": levels(), "log_curl": log_curl(job, log.asked)}
        case "config":
            forerunner = forerunner_of(lineage_of(job))
            return {
                "spec_json": json.dumps(job.spec, indent=2, ensure_ascii=False),
                "forerunner": forerunner,
                "spec_changes": changes_since(forerunner, job) if forerunner else [],
            }
    return {}


def drawn_on(tab: Tab) -> Collection[str]:
    """The slugs of the tab's charts."""
    return {"": ON_OVERVIEW, "metrics": [chart.slug for chart in CHARTS]}.get(tab.slug, ())


def _charts(job: Job) -> list[tuple[Chart, str]]:
    """Each with its API call."""
    path = f"/jobs/{job.pk}/metrics"
    return [(chart, curl.get(path, names=chart.keys, max_points="500")) for chart in charts_of(job)]


def _history(job: Job, *, now: datetime) -> Mapping[str, Any]:
    newest = list(job.events.order_by("-seq")[:NUM_EVENTS])
    return {
        "timeline": timeline_of(_milestones(job), now=now),
        "replicas": replica_rows_of(job, now=now),
        "replicas_curl": curl.get(f"/jobs/{job.pk}/timeline"),
        "event_sentences": event_sentences_of(newest, job),
        "num_events": newest[0].seq if newest else 0,
        "events_curl": curl.get(f"/jobs/{job.pk}/events"),
    }


def _why(job: Job, *, now: datetime) -> Mapping[str, Any]:
    """Why the job waits, or failed. For a long queue, only the queue page explains it, on request."""
    waiting = Job.objects.filter(pool=job.pool_id, state=JobState.QUEUED)
    num_waiting = waiting.count() if job.state == JobState.QUEUED else 0
    return {
        "failure": failure_panel_of(job) if job.state == JobState.FAILED else None,
        "wait": explain_wait(job, now=now) if 0 < num_waiting <= EXPLAINED_UNASKED else None,
        "num_waiting": num_waiting,
        "explain_curl": curl.get(f"/jobs/{job.pk}/explain"),
        "logs_curl": curl.get(f"/jobs/{job.pk}/logs", level="warning"),
    }


def _milestones(job: Job) -> list[JobEvent]:
    """State changes, and the newest events that are marked between them."""
    kept = ~Q(to_state="") | Q(type__in=("fault_detected", "checkpoint_saved", "evaluated"))
    newest = job.events.filter(kept).order_by("-seq")[:_MOST_MARKS]
    return sorted(newest, key=lambda event: event.seq)
