"""The gallery's entries. A test fails if a URL, or a state that is declared here, has no entry."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.urls import reverse
from playwright.sync_api import Page

from backend.jobs.models import JobState
from backend.pages.job.checkpoint_acts import ACTS
from backend.pages.job.controls import CONTROLS
from backend.pages.job.tabs import TABS
from backend.pages.jobs.several import SEVERAL
from tests.gallery.exhibits import RECORDED, Exhibits

OWNER: Final = "owner"
VIEWER: Final = "viewer"
NEIGHBOUR: Final = "neighbour"
NEWCOMER: Final = "newcomer"
OPERATOR: Final = "operator"
NOBODY: Final = ""

STATES: Final[Mapping[str, frozenset[str]]] = {
    "home": frozenset({"", "first visit", "operator"}),
    "jobs": frozenset({"", "filtered", "nothing fits", "empty"}),
    "new_job": frozenset({"", "again", "with errors", "forbidden"}),
    "job": frozenset({*JobState.values, "evaluating", "ill", "evidence", "hostile", "long", "unknown", "out of order"}),
    "keys": frozenset({"", "shown once"}),
    "evaluations": frozenset({"", "empty"}),
    "accept_invitation": frozenset({"", "dead link", "too often"}),
    "several_jobs": frozenset({each.verb for each in SEVERAL}),
}
"""The states of each of these pages."""
REFUSALS: Final = frozenset({403, 404, 422, 429, 500})
"""Status codes with a page of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    page: str
    """The URL name."""
    state: str = ""
    who: str = OWNER
    of: Callable[[Exhibits], list[str]] = lambda exhibits: []
    """The URL's arguments."""
    query: str | Callable[[Exhibits], str] = ""
    status: int = 200
    """The status code of its URL, or of the request that `then` sends."""
    is_too_often: bool = False
    """Requested above the rate limit."""
    then: Callable[[Page], None] | None = None
    """Actions on the page before the screenshot."""

    @property
    def name(self) -> str:
        return "-".join(part for part in (self.page, self.state.replace(" ", "-")) if part)

    def address(self, exhibits: Exhibits) -> str:
        query = self.query if isinstance(self.query, str) else self.query(exhibits)
        return reverse(self.page, args=self.of(exhibits)) + query


def _job(kind: str) -> Callable[[Exhibits], list[str]]:
    return lambda exhibits: [exhibits.jobs[kind].pk]


_SHOWN_BY: Final = {
    JobState.SUCCEEDED: "finished",
    JobState.FAILED: "failed",
    "ill": "doubted",
    "unknown": "",
}
"""The exhibit of a state, if it has another name."""


def _trajectory(kind: str, **wanted: Any) -> Callable[[Exhibits], list[str]]:
    """The newest matching one of that job."""
    return lambda exhibits: [
        exhibits.jobs[kind].pk,
        exhibits.jobs[kind].trajectories.filter(**wanted).latest("step", "pk").trajectory_id,
    ]


def _job_pages() -> Iterator[Entry]:
    for tab in TABS[1:]:
        yield Entry(page=tab.page, state="running", of=_job("running"))
    for state in sorted(STATES["job"] - {"unknown", "out of order"}):
        yield Entry(page="job", state=state, of=_job(_SHOWN_BY.get(state, state)))
    yield Entry(page="job", state="unknown", of=lambda exhibits: ["job_" + "0" * 20], status=404)
    yield Entry(page="job", state="out of order", of=_job("out of order"), status=500)
    for kind in RECORDED:
        yield Entry(page="job", state=kind, of=_job(kind))
    for kind in ("finished", "long"):
        yield Entry(page="job_trajectories", state=kind, of=_job(kind))
    yield Entry(page="job_trajectories", state="found", of=_job("running"), query="?q=numbers&end=trained")
    for state, query in (("likely", ""), ("gap", "?colour=gap"), ("version", "?colour=version")):
        yield Entry(page="job_trajectory", state=state, of=_trajectory("running", num_turns=5), query=query)
    yield Entry(page="job_trajectory", state="stale", of=_trajectory("running", end="dropped_stale"))
    yield Entry(page="job_trajectory", state="long", of=_trajectory("long", num_turns=0))
    for kind in ("evidence", "queued"):
        yield Entry(page="job_logs", state=kind, of=_job(kind))
        yield Entry(page="job_faults", state=kind, of=_job(kind))
    yield Entry(page="job_checkpoints", state="kept", of=_job("paused"))


def _questions() -> Iterator[Entry]:
    """Confirmation pages."""
    for control in CONTROLS:
        yield Entry(page=control.page, of=_job("paused" if control.verb == "resume" else "running"))
    yield Entry(page="cancel_job", state="too late", of=_job("finished"))
    yield Entry(page="retry_job", of=_job("failed"))
    yield Entry(page="change_job", of=_job("running"))
    yield Entry(page="evaluate_checkpoint", of=lambda exhibits: [exhibits.checkpoint.pk])
    yield Entry(page="job_retention", of=_job("running"))
    for act in ACTS:
        yield Entry(page=act.page, of=_checkpoint_for(act.verb))
    for each in SEVERAL:
        yield Entry(page="several_jobs", state=each.verb, query=_chosen_for(each.verb))


def _checkpoint_for(verb: str) -> Callable[[Exhibits], list[str]]:
    return lambda exhibits: [(exhibits.pinned if verb == "unpin" else exhibits.checkpoint).pk]


def _chosen_for(verb: str) -> Callable[[Exhibits], str]:
    kinds = ("running", "doubted", "paused", "failed", "queued")
    return lambda exhibits: f"?act={verb}&" + "&".join(f"job={exhibits.jobs[kind].pk}" for kind in kinds)


def _typed_wrong(page: Page) -> None:
    page.locator("[name='training.steps']").fill("0,05")
    page.get_by_role("button", name="Preview").click()
    page.locator("#summary").wait_for()


def _key_made(page: Page) -> None:
    page.get_by_label("Name", exact=True).fill("on my laptop")
    page.get_by_role("button", name="Create key").click()
    page.locator(".shown-once").wait_for()


def _invited(exhibits: Exhibits) -> list[str]:
    return [exhibits.invitation]


ENTRIES: Final = (
    Entry(page="account_login", who=NOBODY),
    Entry(page="account_signup", who=NOBODY),
    Entry(page="account_inactive", who=NOBODY),
    Entry(page="account_reset_password", who=NOBODY),
    Entry(page="accept_invitation", who=NOBODY, of=_invited),
    Entry(page="accept_invitation", state="dead link", who=NOBODY, of=lambda exhibits: ["t" * 43], status=404),
    Entry(page="account_email"),
    Entry(page="account_sessions"),
    Entry(page="account_change_password"),
    Entry(page="account_logout"),
    Entry(page="account_reauthenticate"),
    Entry(page="mfa_index"),
    Entry(page="home"),
    Entry(page="home", state="first visit", who=NEWCOMER),
    Entry(page="home", state="operator", who=OPERATOR),
    Entry(page="jobs"),
    Entry(page="jobs", state="filtered", query="?state=failed&tag=sweep&sort=-progress"),
    Entry(page="jobs", state="nothing fits", query="?q=nothing+is+called+so"),
    Entry(page="jobs", state="empty", who=NEWCOMER),
    Entry(page="new_job"),
    Entry(page="new_job", state="again", query="?from=JOB"),
    Entry(page="new_job", state="with errors", status=422, then=_typed_wrong),
    Entry(page="new_job", state="forbidden", who=VIEWER, status=403),
    *_job_pages(),
    *_questions(),
    Entry(page="environments"),
    Entry(page="queue"),
    Entry(page="queue", state="of another team", who=NEIGHBOUR),
    Entry(page="usage"),
    Entry(page="usage", state="by job", query="?by=job"),
    Entry(page="assets"),
    Entry(page="model", of=lambda exhibits: ["adder"]),
    Entry(page="evaluations"),
    Entry(page="evaluations", state="empty", who=NEWCOMER),
    Entry(page="keys"),
    Entry(page="keys", state="shown once", then=_key_made),
    Entry(page="members"),
    Entry(page="audit"),
    Entry(page="webhooks"),
    Entry(page="webhooks", state="empty", who=NEWCOMER),
    Entry(page="webhook", of=lambda exhibits: [exhibits.webhook.pk]),
    Entry(page="help"),
    Entry(page="api_guide"),
    Entry(page="client"),
    Entry(page="api_reference", who=NOBODY),
    Entry(page="status", who=OPERATOR),
    Entry(page="operator_pools", who=OPERATOR),
    Entry(page="operator_pool", who=OPERATOR, of=lambda exhibits: [exhibits.pool.pk]),
    Entry(page="operator_teams", who=OPERATOR),
    Entry(page="operator_credits", who=OPERATOR),
    Entry(page="operator_people", who=OPERATOR),
    Entry(page="operator_questions", who=OPERATOR),
    Entry(page="operator_maintenance", who=OPERATOR),
    Entry(page="accept_invitation", state="too often", who=NOBODY, of=_invited, status=429, is_too_often=True),
)
IN_MAKE_TEST: Final = frozenset({
    "home", "jobs", "new_job", "job-running", "job-evidence", "job-long", "job_metrics-running",
    "job_trajectories-long", "job_trajectory-likely", "job_logs-evidence", "queue", "account_login",
})  # fmt: skip
"""The most visited pages; all others are checked only in the soak test."""
