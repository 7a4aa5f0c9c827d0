"""Every route × every kind of caller: another team's resource does not exist, and a role's limits hold.

The routes come from the routers themselves, so one without a row in tenant_world fails; a row states the scope that
the route must require, what to send, and the response to an authorized caller. The responses to all other callers
follow from the row's scope.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, reverse
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from backend.accounts.keys.bearer import ApiKeyAuth
from backend.audit.models import AuditEntry
from backend.jobs.models import Job
from backend.pages import urls as page_urls
from backend.pages.job.making import FORM
from backend.rest import api
from tests.backend.browser_sockets import ORIGIN, Watcher
from tests.backend.conftest import NOW, Api
from tests.backend.tenant_callers import ACTORS, EVERYBODY, NOBODY, OUTSIDER, Page, Row, World
from tests.backend.tenant_world import OPEN_PAGES, PAGES, ROWS, SECRET_WORDS, make_world

pytestmark = pytest.mark.django_db


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    method: str
    path: str
    scope: str | None
    """None: any valid key."""

    @property
    def key(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def noun(self) -> str:
        return self.path.split("/")[1]

    @property
    def names_ours(self) -> bool:
        return "{" in self.path and not self.path.startswith("/templates/")


def _routes() -> list[Route]:
    routes_found: list[Route] = []
    for prefix, router in api._routers:
        for path, view in router.path_operations.items():
            for operation in view.operations:
                auths = operation.auth_callbacks or [router.auth]  # its own, or its router's
                assert len(auths) == 1, f"{operation.methods} {path}: one way to sign in, and no route without"
                owner: object = getattr(auths[0], "__self__", auths[0])
                assert isinstance(owner, ApiKeyAuth), f"{operation.methods} {path}: signs in by {owner}"
                routes_found += [
                    Route(method=each, path=prefix + path, scope=owner.scope) for each in operation.methods
                ]
    return routes_found


ROUTES: Final = _routes()


def test_every_route_has_a_row_and_requires_its_scope() -> None:
    assert {route.key: route.scope for route in ROUTES} == {key: row.scope for key, row in ROWS.items()}


COVERING: Final = ("anonymous", OUTSIDER, "viewer", "single key")
"""Callers of the gate: signed out, another team, a viewer, and one with exactly the required scope."""


@pytest.mark.proof
def test_covering_callers_are_answered_by_their_rights() -> None:
    world, for_rulers = make_world(NOW), [route for route in ROUTES if ROWS[route.key].only_rulers]
    assert_no_complaints([*_complaints(world, ROUTES, COVERING), *_complaints(world, for_rulers, ["member"])])


@pytest.mark.long
@pytest.mark.parametrize("noun", sorted({route.noun for route in ROUTES}))
def test_each_caller_is_answered_by_its_rights(noun: str) -> None:
    routes = [route for route in ROUTES if route.noun == noun]
    assert_no_complaints(_complaints(make_world(NOW), routes, [actor for actor in ACTORS if actor not in COVERING]))


def assert_no_complaints(complaints: Iterable[str]) -> None:
    all_complaints = list(complaints)
    assert not all_complaints, "\n".join(all_complaints)


def _complaints(world: World, routes: Iterable[Route], actors: Sequence[str]) -> Iterator[str]:
    """All in one world: the effects of a call are rolled back."""
    for route, actor in itertools.product(routes, actors):
        row = ROWS[route.key]
        with transaction.atomic():
            before = _num_done(world)
            answer = _ask(world, route, row, actor)
            complaint = _judge(world, route, row, actor, answer)
            if answer.status_code >= 400 and _num_done(world) != before:
                complaint = "what is refused changes nothing"
            transaction.set_rollback(True)
        if complaint:
            yield f"{route.key}, {actor}: {answer.status_code}, {complaint}: {answer.content[:200]!r}"


def _ask(world: World, route: Route, wanted: Row, actor: str) -> Any:
    caller = Api(world.key_of(actor, scope=wanted.scope))
    body = None if wanted.body is None else wanted.body(world)
    return caller.request(route.method, world.path(route.path) + wanted.query, body)


def _judge(world: World, route: Route, wanted: Row, actor: str, answer: Any) -> str:
    """What is wrong with the response; empty: nothing."""
    status = answer.status_code
    if actor in NOBODY:
        return "" if status == 401 else "must be 401"
    if actor == OUTSIDER and _says_a_secret(world, route, wanted, answer):
        return "leaks a name of the team"
    if wanted.only_rulers and actor in ("member", "operator"):
        return "" if status == 403 else "rules nothing"
    if not world.may(actor, wanted.scope):
        return "" if status == 403 else f"needs {wanted.scope}"
    if actor == OUTSIDER and (route.names_ours or wanted.names_ours) and not wanted.is_shared:
        return "" if status == 404 else "ours does not exist for them"
    return "" if status in wanted.ok or (wanted.speaks_of_itself and status == 403) else "may do it"


def _says_a_secret(world: World, route: Route, wanted: Row, answer: Any) -> bool:
    """A response may repeat the request, which the caller knew."""
    if answer.streaming:
        return False  # a stream: test_sse.py and test_log_stream.py read them
    request_text = f"{world.path(route.path)} {wanted.body(world) if wanted.body else None}"
    open_to_all = ("pool_id", "price_id", "credit_id", "notice_id", "name", "number", "part", "trajectory_id")
    ours = [value for name, value in world.ids.items() if name not in open_to_all and value not in request_text]
    return any(secret.encode() in answer.content for secret in (SECRET_WORDS, "Ants", *ours))


def test_an_outsider_cannot_tell_ours_from_what_does_not_exist() -> None:
    world = make_world(NOW)
    outsider = Api(world.key_of(OUTSIDER, scope=None))
    ours, unknown = world.ids["job_id"], "job_" + "0" * 20
    for route in ROUTES:
        if "{job_id}" not in route.path:
            continue
        answers = []
        for job in (ours, unknown):
            document = outsider.request(route.method, world.path(route.path).replace(ours, job), None).json()
            answers.append({name: value for name, value in document.items() if name not in ("request_id", "instance")})
        assert answers[0] == answers[1], route.key


# ── sockets ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SOCKETS: Final = {"ws/live"}


def test_every_socket_is_known_here() -> None:
    from backend.asgi import sockets

    *known, rest = sockets.routes
    assert {str(route.pattern) for route in known} == SOCKETS
    assert str(rest.pattern) == ""  # other subscriptions are refused


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("actor", ["viewer", "member", "admin", "owner", "operator", OUTSIDER, "key of one who left"])
def test_socket_reports_jobs_to_their_team_only(actor: str, watch: Callable[..., Watcher]) -> None:
    world = make_world(NOW)
    job = world.ids["job_id"]
    watcher = watch(world.people[actor])
    watcher.settle()  # when the hub begins to listen, one pull replaces all news
    watcher.say({"watch": job})
    answer = watcher.hear_until(lambda frame: "job" in frame)[-1]
    if actor in (OUTSIDER, "key of one who left"):
        assert answer == {"error": "not_found", "job": job}
    else:
        assert answer["job"] == job and "error" not in answer


@pytest.mark.django_db(transaction=True)
def test_a_socket_opens_for_sessions_and_for_no_key(watch: Callable[..., Watcher], server: str) -> None:
    world = make_world(NOW)
    with pytest.raises(InvalidStatus) as refused:
        watch(None)
    assert refused.value.response.status_code == 403
    key = world.key_of("owner", scope=None)
    with pytest.raises(InvalidStatus) as refused_key:
        connect(server, origin=Origin(ORIGIN), additional_headers={"Authorization": f"Bearer {key}"})
    assert refused_key.value.response.status_code == 403


# ── pages ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_page_has_a_row() -> None:
    assert {pattern.name for pattern in page_urls.urlpatterns} == set(PAGES) | OPEN_PAGES


PATTERNS: Final = [pattern for pattern in page_urls.urlpatterns if pattern.name in PAGES]


def test_post_only_page_has_no_get_unless_its_row_says_so() -> None:
    world, faults = make_world(NOW), []
    browser = Client()
    browser.force_login(world.people["owner"])
    for pattern in PATTERNS:
        page = PAGES[str(pattern.name)]
        if page.method != "POST" or page.may == frozenset({"operator"}):
            continue
        parameters = {parameter: world.ids[parameter] for parameter in pattern.pattern.converters}
        status = browser.get(reverse(str(pattern.name), kwargs=parameters)).status_code
        if (status != 405) != page.asks:
            faults.append(f"{pattern.name}: {status}")
    assert not faults


def _noun_of(pattern: URLPattern) -> str:
    return str(pattern.pattern).partition("/")[0]


VISITORS: Final = ("anonymous", OUTSIDER, *sorted(EVERYBODY))
COVERING_VISITORS: Final = ("anonymous", OUTSIDER, "viewer", "owner")


@pytest.mark.proof
def test_covering_visitors_are_shown_what_is_theirs() -> None:
    assert_no_complaints(_page_complaints(make_world(NOW), PATTERNS, COVERING_VISITORS))


@pytest.mark.long
@pytest.mark.parametrize("noun", sorted({_noun_of(pattern) for pattern in PATTERNS}))
def test_each_visitor_is_shown_what_is_theirs(noun: str) -> None:
    patterns = [pattern for pattern in PATTERNS if _noun_of(pattern) == noun]
    others = [visitor for visitor in VISITORS if visitor not in COVERING_VISITORS]
    assert_no_complaints(_page_complaints(make_world(NOW), patterns, others))


def _page_complaints(world: World, patterns: Iterable[URLPattern], visitors: Sequence[str]) -> Iterator[str]:
    for pattern, visitor in itertools.product(patterns, visitors):
        page = PAGES[str(pattern.name)]
        parameters = {parameter: world.ids[parameter] for parameter in pattern.pattern.converters}
        address = reverse(str(pattern.name), kwargs=parameters)
        with transaction.atomic():
            browser = Client(raise_request_exception=False)
            if visitor != "anonymous":
                browser.force_login(world.people[visitor])
            sent = urlencode({} if page.form is None else page.form(world))
            before = _num_done(world)
            answer = browser.post(address, sent, FORM) if page.method == "POST" else browser.get(address)
            complaint = _judge_page(world, page, visitor, bool(parameters), answer)
            if visitor not in page.may and _num_done(world) != before:
                complaint = "something was done all the same"
            transaction.set_rollback(True)
        if complaint:
            yield f"{pattern.name}, {visitor}: {answer.status_code} {complaint}"


def _num_done(world: World) -> int:
    """A denied request's own log entry does not count."""
    entries = AuditEntry.objects.filter(team_id=world.ids["team_id"]).exclude(action="request.denied")
    return entries.count() + Job.objects.count()


def _judge_page(world: World, page: Page, visitor: str, names_ours: bool, answer: Any) -> str:
    status = answer.status_code
    if visitor == "anonymous":
        goes_to = answer.headers.get("Location", "")
        leads_to_sign_in = status == 302 and goes_to.startswith("/accounts/login/")
        return "" if leads_to_sign_in or status == 401 else "must lead to sign-in"
    if visitor == OUTSIDER:
        if names_ours:
            return "" if status == 404 else "ours does not exist for them"
        secrets = [SECRET_WORDS, world.ids["job_id"], world.ids["team_id"], world.ids["key_id"]]
        return "leaks a name of the team" if any(each.encode() in answer.content for each in secrets) else ""
    if visitor not in page.may:
        return "" if status in (302, 403, 404) else "may not do that"  # redirected with a message, without effect
    return "" if status in (200, 302) else "may do it"
