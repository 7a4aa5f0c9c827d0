"""The tabs of a job's page: their URLs, scripts, and the regions that an open page refreshes.

Invariants:
- a tab loads its own scripts and content, and no other's;
- content that depends on the job's state is in a region, so that an open tab stays up to date.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from backend.jobs.models import Job

_EVERY_TAB: Final = (
    "pages/job-frame",
    "pages/tiles",
    "pages/verdict",
    "lib/clock",
    "lib/connection",
    "lib/format",
    "lib/live",
    "lib/part",
    "lib/question",
    "lib/socket",
    "lib/toasts",
    "lib/tries",
    "lib/wake",
)
_CHARTS: Final = (
    "pages/job-charts",
    "pages/last-values",
    "pages/curves",
    "pages/saving",
    *(
        f"charts/{name}"
        for name in (
            "axis",
            "buckets",
            "crosshair",
            "detail",
            "layout",
            "likeness",
            "marks",
            "pace",
            "palette",
            "panel",
            "pointing",
            "queue",
            "save",
            "smooth",
            "table",
            "traces",
            "view",
        )
    ),
    "lib/series",
    "lib/theme",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    slug: str
    """The last part of its URL; empty: the first tab."""
    title: str
    script: str = "job"
    """Its entry module in js/pages."""
    also: tuple[str, ...] = ()
    """Modules of its script, except those of every tab."""
    regions: tuple[str, ...] = ()
    only_trains: bool = False
    """The tab is hidden for evaluations."""

    @property
    def page(self) -> str:
        """The URL name of its page."""
        return f"job_{self.slug}" if self.slug else "job"

    @property
    def path(self) -> str:
        """Its path below the job's."""
        return f"{self.slug}/" if self.slug else ""

    @property
    def template(self) -> str:
        return f"pages/job/tabs/{self.slug or 'overview'}.html"

    @property
    def modules(self) -> tuple[str, ...]:
        return (*_EVERY_TAB, *self.also)


TABS: Final = (
    Tab(
        slug="",
        title="Overview",
        script="job-overview",
        also=("pages/timeline", *_CHARTS),
        regions=(
            "pages/job/_why.html",
            "pages/job/_timeline.html",
            "pages/job/_replicas.html",
            "pages/job/_events.html",
        ),
    ),
    Tab(slug="metrics", title="Metrics", script="job-metrics", also=("pages/matching", *_CHARTS)),
    Tab(
        slug="trajectories",
        title="Trajectories",
        script="job-trajectories",
        also=("pages/trajectories/opening", "pages/trajectories/step-reader"),
        regions=("pages/job/trajectories/_ledger.html",),
        only_trains=True,
    ),
    Tab(slug="faults", title="Faults", regions=("pages/job/_faults.html",)),
    Tab(slug="checkpoints", title="Checkpoints", regions=("pages/job/_checkpoints.html",), only_trains=True),
    Tab(slug="logs", title="Logs", script="job-logs", also=("pages/logs",)),
    Tab(slug="config", title="Config"),
    Tab(slug="usage", title="Usage", regions=("pages/job/_usage.html",)),
)


def tabs_of(job: Job) -> Sequence[Tab]:
    return [tab for tab in TABS if job.steps or not tab.only_trains]


def tab_of(slug: str) -> Tab:
    return next(tab for tab in TABS if tab.slug == slug)
