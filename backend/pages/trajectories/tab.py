"""The trajectories tab of a job: one step, or search results."""

from typing import Any

from django.http import QueryDict

from backend.jobs.models import Job
from backend.pages import curl
from backend.pages.trajectories.asked import Asked
from backend.pages.trajectories.meanings import ENDS, OUTCOMES, meaning_of_end, meaning_of_outcome
from backend.pages.trajectories.reading import reading_of
from backend.pages.trajectories.search_page import search_page


def reading_part(job: Job, sent: QueryDict) -> dict[str, Any]:
    """The part that an open page refreshes."""
    return {"job": job, "reading": reading_of(job, Asked.of(sent).step)}


def tab_content(job: Job, sent: QueryDict) -> dict[str, Any]:
    asked = Asked.of(sent)
    if asked.is_filter:
        shown = {
            "found": search_page(job, asked, sent.get("from", "")),
            "found_curl": curl.get(f"/jobs/{job.pk}/trajectories", **asked.parameters),
        }
    else:
        shown = reading_part(job, sent)
    return shown | {
        "asked": asked,
        "ends": [meaning_of_end(each) for each in ENDS],
        "outcomes": [meaning_of_outcome(each) for each in OUTCOMES],
    }
