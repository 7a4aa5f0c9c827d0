"""The answer to an open page's pull, over HTTP or over its socket."""

from backend.clock import database_now
from backend.jobs.models import Job
from backend.pages.job.panels.tiles import Tiles, tiles_of
from backend.pages.job.panels.verdict_line import verdict_line_of
from backend.telemetry.live.pulls import live_delta
from backend.telemetry.representations import LiveDelta


class PageNews(LiveDelta):
    """Everything new since the page's cursor, and the current tiles."""

    tiles: Tiles
    verdict: str
    """Identifies the current verdict: when it changes, `?part=verdict` returns another one."""


def page_news(job: Job, after: int) -> PageNews:
    news = live_delta(job, after)
    job.refresh_from_db()  # tiles are never older than the points in the same response
    verdict = verdict_line_of(job)
    tiles = verdict.calmed(tiles_of(job, now=database_now()))
    return PageNews(**dict(news), tiles=tiles, verdict=verdict.stands)


def news_text(job_id: str, after: int) -> str | None:
    """As JSON; None: no such job. The caller has checked that the reader may see it."""
    job = Job.objects.select_related("team", "project", "pool", "created_by").filter(pk=job_id).first()
    try:
        return page_news(job, after).model_dump_json() if job else None
    except Job.DoesNotExist:  # deleted meanwhile
        return None
