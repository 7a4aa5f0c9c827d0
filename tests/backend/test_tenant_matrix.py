"""Every route × every kind of caller: what is another team's does not exist, what a role may not do is refused.

The routes come from the routers themselves, so a route without a row here fails; a row says only what to send and what
one who may is answered. What everybody else must be answered follows from the scope that the route asks for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from backend.accounts.bearer import ApiKeyAuth
from backend.audit.models import AuditEntry
from backend.jobs.models import Job
from backend.pages import urls as page_urls
from backend.pages.checkpoint_views import FORM
from backend.rest import api
from tests.backend.browser_sockets import ORIGIN, Watcher
from tests.backend.conftest import NOW, Api
from tests.backend.tenant_world import ACTORS, NOBODY, OUTSIDER, SECRET_WORDS, World, make_world

pytestmark = pytest.mark.django_db

Body = Callable[[World], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    method: str
    path: str
    scope: str | None
    """None: any good key."""

    @property
    def key(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def names_ours(self) -> bool:
        return "{" in self.path and not self.path.startswith("/templates/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    body: Body | None = None
    query: str = ""
    ok: frozenset[int]
    """What one who may is answered: done, or not possible in this state (409, 425, 422). Never 401, 403, 404."""
    names_ours: bool = False
    """Its body names something of ours."""
    is_shared: bool = False
    """What its path names is the other team's as well."""
    only_rulers: bool = False
    """Beside the scope it needs the role of an admin or owner."""
    speaks_of_itself: bool = False
    """Any key may do it to itself, and needs a right to do it to another."""


def row(body: Body | None = None, *also: int, query: str = "", **flags: bool) -> Row:
    return Row(body=body, query=query, ok=frozenset({200, 201, 202, 204, *also}), **flags)


def _routes() -> list[Route]:
    found: list[Route] = []
    for prefix, router in api._routers:
        for path, view in router.path_operations.items():
            for operation in view.operations:
                asked = operation.auth_callbacks or [router.auth]  # its own, or its router's
                assert len(asked) == 1, f"{operation.methods} {path}: one way to sign in, and no route without"
                owner: object = getattr(asked[0], "__self__", asked[0])
                assert isinstance(owner, ApiKeyAuth), f"{operation.methods} {path}: signs in by {owner}"
                found += [Route(method=each, path=prefix + path, scope=owner.scope) for each in operation.methods]
    return found


ROUTES: Final = _routes()
# A body is what one who may would really send; what it needs to exist is in tenant_world.
ROWS: Final[dict[str, Row]] = {
    "POST /jobs": row(lambda world: {"project": _project(world), "spec": {"name": "another"}}, names_ours=True),
    "GET /jobs": row(),
    "POST /jobs:preview": row(lambda world: {"spec": {"name": "another"}}),
    "GET /jobs/{job_id}": row(),
    "POST /jobs/{job_id}/cancel": row(),
    "POST /jobs/{job_id}/pause": row(None, 409),
    "POST /jobs/{job_id}/resume": row(None, 409),
    "POST /jobs/{job_id}/retry": row(lambda world: {"from": "start"}, 409),
    "POST /jobs/{job_id}/kill": row(None, 409, only_rulers=True),
    "POST /jobs:cancel": row(lambda world: {"ids": [world.ids["job_id"]]}),
    "PATCH /jobs/{job_id}": row(lambda world: {"priority": 3}, 409),
    "GET /jobs/{job_id}/faults": row(),
    "GET /jobs/{job_id}/metrics/names": row(),
    "GET /jobs/{job_id}/attempts": row(),
    "GET /jobs/{job_id}/metrics": row(),
    "GET /jobs/{job_id}/trajectories": row(),
    "GET /jobs/{job_id}/trajectories/{trajectory_id}": row(),
    "GET /jobs/{job_id}/distributions": row(query="?name=reward"),
    "GET /jobs/{job_id}/timeline": row(),
    "GET /jobs/{job_id}/logs": row(),
    "GET /jobs/{job_id}/logs/stream": row(),
    "GET /jobs/{job_id}/events": row(),
    "GET /jobs/{job_id}/usage": row(),
    "GET /jobs/{job_id}/checkpoints": row(),
    "GET /jobs/{job_id}/retention": row(),
    "PUT /jobs/{job_id}/retention": row(lambda world: {"keep_last": 3}),
    "GET /templates": row(),
    "GET /templates/{name}": row(),
    "GET /schemas/job-spec": row(),
    "GET /pools": row(),
    "GET /quota": row(),
    "GET /pools/{pool_id}/quotas": row(),
    "GET /pools/{pool_id}/queue": row(is_shared=True),
    "GET /jobs/{job_id}/explain": row(),
    "PUT /pools/{pool_id}/quotas/{team_id}": row(lambda world: {"nominal": 7}),
    "GET /budgets": row(),
    "PUT /budgets/{team_id}": row(lambda world: {"gpu_seconds": 5_000_000}),
    "GET /me": row(),
    "GET /teams": row(),
    "PATCH /team": row(lambda world: {"name": "Bigger ants"}),
    "GET /projects": row(),
    "POST /projects": row(lambda world: {"name": "Second steps"}),
    "GET /projects/{project_id}": row(),
    "PATCH /projects/{project_id}": row(lambda world: {"name": "Other steps"}),
    "DELETE /projects/{project_id}": row(None, 409),
    "GET /audit-log": row(),
    "GET /events": row(),
    "POST /webhooks": row(lambda world: {"url": "https://example.com/hook"}),
    "GET /webhooks": row(),
    "GET /webhooks/{webhook_id}": row(),
    "PATCH /webhooks/{webhook_id}": row(lambda world: {"description": "ours"}),
    "DELETE /webhooks/{webhook_id}": row(),
    "POST /webhooks/{webhook_id}/rotate-secret": row(),
    "POST /webhooks/{webhook_id}/test": row(),
    "GET /webhooks/{webhook_id}/deliveries": row(),
    "GET /webhooks/{webhook_id}/deliveries/{delivery_id}": row(),
    "POST /webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver": row(),
    "GET /usage": row(),
    "GET /checkpoints": row(),
    "GET /checkpoints/{checkpoint_id}": row(),
    "PATCH /checkpoints/{checkpoint_id}": row(lambda world: {"pinned": True}),
    "DELETE /checkpoints/{checkpoint_id}": row(None, 409),
    "POST /checkpoints/{checkpoint_id}/download": row(None, 409),
    "POST /checkpoints/{checkpoint_id}/promote": row(lambda world: {"name": "better-adder"}, 409),
    "POST /checkpoints/{checkpoint_id}/evaluate": row(lambda world: {"prompts": 4}),
    "GET /models": row(),
    "GET /models/{model_name}": row(),
    "DELETE /models/{model_name}": row(None, 409, only_rulers=True),
    "GET /models/{model_name}/versions/{number}": row(),
    "PATCH /models/{model_name}/versions/{number}": row(lambda world: {"note": "ours"}),
    "DELETE /models/{model_name}/versions/{number}": row(None, only_rulers=True),
    "GET /members": row(),
    "GET /members/{user_id}": row(),
    "PATCH /members/{user_id}": row(lambda world: {"role": "member"}),
    "DELETE /members/{user_id}": row(),
    "GET /invitations": row(),
    "POST /invitations": row(lambda world: {"email": "ina@example.org"}),
    "DELETE /invitations/{invitation_id}": row(),
    "GET /service-accounts": row(),
    "POST /service-accounts": row(lambda world: {"name": "second robot"}),
    "PATCH /service-accounts/{account_id}": row(lambda world: {"role": "viewer"}),
    "DELETE /service-accounts/{account_id}": row(),
    "GET /api-keys": row(),
    "POST /api-keys": row(lambda world: {"name": "spare"}),
    "DELETE /api-keys/{key_id}": row(speaks_of_itself=True),
}


def _project(world: World) -> str:
    return world.ids["project_id"]


def test_every_route_has_a_row_and_every_row_a_route() -> None:
    assert {route.key for route in ROUTES} == set(ROWS)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.key)
def test_each_caller_is_answered_by_its_rights(route: Route) -> None:
    world, wanted = make_world(NOW), ROWS[route.key]
    wrong: list[str] = []
    for actor in ACTORS:
        with transaction.atomic():
            before = _num_done(world)
            answer = _ask(world, route, wanted, actor)
            complaint = _judge(world, route, wanted, actor, answer)
            if answer.status_code >= 400 and _num_done(world) != before:
                complaint = "what is refused changes nothing"
            transaction.set_rollback(True)
        if complaint:
            wrong.append(f"{actor}: {answer.status_code}, {complaint}: {answer.content[:200]!r}")
    assert not wrong, "\n".join(wrong)


def _ask(world: World, route: Route, wanted: Row, actor: str) -> Any:
    caller = Api(world.key_of(actor, scope=route.scope))
    body = None if wanted.body is None else wanted.body(world)
    return caller.request(route.method, world.path(route.path) + wanted.query, body)


def _judge(world: World, route: Route, wanted: Row, actor: str, answer: Any) -> str:
    """What is wrong with it; empty: nothing."""
    status = answer.status_code
    if actor in NOBODY:
        return "" if status == 401 else "nobody is let in"
    if actor == OUTSIDER and _says_a_secret(world, route, wanted, answer):
        return "it says something of ours"
    if wanted.only_rulers and actor in ("member", "operator"):
        return "" if status == 403 else "rules nothing"
    if not world.may(actor, route.scope):
        return "" if status == 403 else f"needs {route.scope}"
    if actor == OUTSIDER and (route.names_ours or wanted.names_ours) and not wanted.is_shared:
        return "" if status == 404 else "ours does not exist for them"
    return "" if status in wanted.ok or (wanted.speaks_of_itself and status == 403) else "may do it"


def _says_a_secret(world: World, route: Route, wanted: Row, answer: Any) -> bool:
    """Answers may repeat what was asked for; that much the caller knew."""
    if answer.streaming:
        return False  # a stream: test_sse.py and test_log_stream.py read them
    asked = f"{world.path(route.path)} {wanted.body(world) if wanted.body else None}"
    open_to_all = ("pool_id", "name", "number", "trajectory_id")
    ours = [value for name, value in world.ids.items() if name not in open_to_all and value not in asked]
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
            answers.append({name: said for name, said in document.items() if name not in ("request_id", "instance")})
        assert answers[0] == answers[1], route.key


# ── sockets ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SOCKETS: Final = {"ws/live"}


def test_every_socket_is_known_here() -> None:
    from backend.asgi import sockets

    *known, rest = sockets.routes
    assert {str(route.pattern) for route in known} == SOCKETS
    assert str(rest.pattern) == ""  # whatever else is asked for is refused


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("actor", ["viewer", "member", "admin", "owner", "operator", OUTSIDER, "key of one who left"])
def test_a_socket_tells_of_a_job_only_whom_its_team_knows(actor: str, watch: Callable[..., Watcher]) -> None:
    world = make_world(NOW)
    job = world.ids["job_id"]
    watcher = watch(world.people[actor], {"watch": job})
    if actor in (OUTSIDER, "key of one who left"):
        assert watcher.hear() == {"error": "not_found", "job": job}
        return
    frames = watcher.hear_until(lambda frame: "job" in frame)
    assert frames[-1]["job"] == job and "error" not in frames[-1]


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

RULERS: Final = frozenset({"admin", "owner"})
WORKERS: Final = RULERS | {"member", "operator"}
EVERYBODY: Final = WORKERS | {"viewer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    method: str = "GET"
    form: Body | None = None
    may: frozenset[str] = EVERYBODY
    """Who of the team; the others are refused."""


PAGES: Final[dict[str, Page]] = {
    "jobs": Page(),
    "new_job": Page(may=WORKERS),
    "job": Page(),
    "cancel_job": Page(method="POST", may=WORKERS),
    "job_live": Page(),
    "evaluate_checkpoint": Page(method="POST", form=lambda world: {"token": "a" * 24}, may=WORKERS),
    "queue": Page(),
    "usage": Page(),
    "keys": Page(),
    "revoke_key": Page(method="POST", may=RULERS),
    "members": Page(),
    "team_rules": Page(method="POST", form=lambda world: {"name": "Ants"}, may=RULERS),
    "change_member": Page(method="POST", form=lambda world: {"role": "member"}, may=RULERS),
    "revoke_invitation": Page(method="POST", may=RULERS),
    "new_service_account": Page(method="POST", form=lambda world: {"name": "second", "role": "viewer"}, may=RULERS),
    "close_service_account": Page(method="POST", may=RULERS),
    "audit": Page(may=RULERS),
    "webhooks": Page(may=RULERS),
    "webhook": Page(may=RULERS),
    "change_webhook": Page(method="POST", form=lambda world: {"act": "disable"}, may=RULERS),
    "renew_webhook_secret": Page(method="POST", may=RULERS),
    "redeliver": Page(method="POST", may=RULERS),
}
OPEN_PAGES: Final = {"home", "help", "accept_invitation"}
"""Home only leads on. Whoever holds an invitation's link may look; test_invitations.py says who may accept."""


def test_every_page_has_a_row() -> None:
    assert {pattern.name for pattern in page_urls.urlpatterns} == set(PAGES) | OPEN_PAGES


@pytest.mark.parametrize("name", PAGES)
def test_each_visitor_is_shown_what_is_theirs(name: str) -> None:
    world, page = make_world(NOW), PAGES[name]
    [pattern] = [pattern for pattern in page_urls.urlpatterns if pattern.name == name]
    parameters = {parameter: world.ids[parameter] for parameter in pattern.pattern.converters}
    address = reverse(name, kwargs=parameters)
    wrong: list[str] = []
    for visitor in ("anonymous", OUTSIDER, *sorted(EVERYBODY)):
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
            wrong.append(f"{visitor}: {answer.status_code} {complaint}")
    assert not wrong, "\n".join(wrong)


def _num_done(world: World) -> int:
    return AuditEntry.objects.filter(team_id=world.ids["team_id"]).count() + Job.objects.count()


def _judge_page(world: World, page: Page, visitor: str, names_ours: bool, answer: Any) -> str:
    status = answer.status_code
    if visitor == "anonymous":
        goes_to = answer.headers.get("Location", "")
        leads_to_sign_in = status == 302 and goes_to.startswith("/accounts/login/")
        return "" if leads_to_sign_in or status == 401 else "nobody is let in"
    if visitor == OUTSIDER:
        if names_ours:
            return "" if status == 404 else "ours does not exist for them"
        secrets = [SECRET_WORDS, world.ids["job_id"], world.ids["team_id"], world.ids["key_id"]]
        return "it says something of ours" if any(each.encode() in answer.content for each in secrets) else ""
    if visitor not in page.may:
        return "" if status in (302, 403, 404) else "may not do that"  # back with a message; nothing is done (above)
    return "" if status in (200, 302) else "may do it"
