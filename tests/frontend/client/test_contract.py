"""The client against the server's OpenAPI document: all routes that it calls exist, and the fields that it reads."""

import dataclasses
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

from backend.rest import api
from frontend.client.laminar_client import answers
from frontend.client.laminar_client.answers.assets import Asset, AssetFile, Storage
from frontend.client.laminar_client.answers.checkpoints import Checkpoint, Download, DownloadFile, Evaluation
from frontend.client.laminar_client.answers.explanations import Evidence, Explanation, Failure, LastLine, Smaller, Wait
from frontend.client.laminar_client.answers.jobs import (
    Attempt,
    Cancelled,
    CancelledJobs,
    Fault,
    Fit,
    Hint,
    Job,
    Preset,
    Preview,
)
from frontend.client.laminar_client.answers.models import Model, ModelVersion, ModelWithVersions
from frontend.client.laminar_client.answers.people import AuditEntry, Invitation, Member, NewInvitation
from frontend.client.laminar_client.answers.pools import Holder, InLine, Pool, PoolQuota, Queue, Quota
from frontend.client.laminar_client.answers.record import Answer, Named
from frontend.client.laminar_client.answers.team import Key, Me, NewKey, Project, Template
from frontend.client.laminar_client.answers.telemetry import (
    Event,
    EventPage,
    LogLine,
    LogLines,
    Metrics,
    Passage,
    ReplicaCell,
    ReplicaSpan,
    TeamEvent,
    Timeline,
    Trajectory,
)
from frontend.client.laminar_client.answers.usage import Budget, Cost, JobUsage, Kinds, Usage, UsageGroup
from frontend.client.laminar_client.answers.webhooks import (
    Delivery,
    DeliveryAttempt,
    DeliveryWithBody,
    NewWebhook,
    Webhook,
)
from frontend.client.laminar_client.calls import assets, checkpoints, jobs, people, team, telemetry, webhooks
from frontend.client.laminar_client.decoding import read
from frontend.client.laminar_client.errors import Unreadable
from frontend.client.laminar_client.wire import API, Open, Request, Send
from tests.frontend.client.schema_comparison import Comparison

J, C, W = "job_1", "ckpt_1", "wh_1"
CALLS: dict[str, Callable[[], Any]] = {
    "submit": lambda: jobs.submit({"name": "a"}, project="p", pool="q", start_from=C),
    "preview": lambda: jobs.preview({"name": "a"}, pool="q"),
    "show": lambda: jobs.show(J),
    "each": lambda: jobs.each(state=["queued"], project="p", tag=["t"], q="x", created_by="a@b.c"),
    "change": lambda: jobs.change(J, name="b", tags=["t"], priority=1, max_runtime_s=60, if_match='"1"'),
    "cancel": lambda: jobs.cancel(J),
    "cancel many": lambda: jobs.cancel_many([J, "job_2"]),
    "pause": lambda: jobs.pause(J),
    "resume": lambda: jobs.resume(J),
    "kill": lambda: jobs.kill(J),
    "retry": lambda: jobs.retry(J, start_from="start", changes={"training": {"steps": 1}}),
    "explain": lambda: jobs.explain(J),
    "attempts": lambda: jobs.attempts(J),
    "faults": lambda: jobs.faults(J, most=5),
    "job usage": lambda: jobs.usage(J),
    "events": lambda: telemetry.events(J, after=1),
    "event stream": lambda: telemetry.events(J, follow=True),
    "team events": lambda: telemetry.team_events(last_id="1"),
    "metrics": lambda: telemetry.metrics(
        J, names=["a"], after=1, max_points=2, from_step=0, to_step=9, times=True
    ),
    "timeline": lambda: telemetry.timeline(J, since=datetime.now(UTC), until=datetime.now(UTC)),
    "logs": lambda: telemetry.logs(J, component="driver", level="info", q="x", tail=3),
    "log stream": lambda: telemetry.logs(J, component="driver", level="info", q="x", tail=3, follow=True),
    "trajectories": lambda: telemetry.trajectories(
        J, q="a", step=1, outcome="rewarded", end="trained", min_reward=0, max_reward=1
    ),
    "checkpoints of a job": lambda: checkpoints.of_job(J),
    "checkpoints": lambda: checkpoints.each(state=["complete"], pinned=True),
    "checkpoint": lambda: checkpoints.show(C),
    "pin": lambda: checkpoints.pin(C, if_match='"1"'),
    "evaluate": lambda: checkpoints.evaluate(
        C, prompts=4, environment={"name": "running_sums"}, replicas=2, pool="q", name="n", max_runtime_s=60
    ),
    "remove": lambda: checkpoints.remove(C),
    "link": lambda: checkpoints.link(C),
    "promote": lambda: checkpoints.promote(C, "sums", note="n"),
    "models": lambda: checkpoints.models(),
    "model": lambda: checkpoints.model("sums"),
    "remove model": lambda: checkpoints.remove_model("sums"),
    "version": lambda: checkpoints.version("sums", 1),
    "change note": lambda: checkpoints.change_note("sums", 1, "n", if_match='"1"'),
    "remove version": lambda: checkpoints.remove_version("sums", 1),
    "assets": lambda: assets.each(kind="data", name="sums"),
    "asset": lambda: assets.show("asset_1"),
    "files of an asset": lambda: assets.files("asset_1"),
    "begin upload": lambda: assets.begin("data", "sums", {"a.jsonl": 3}, project="p"),
    "put part": lambda: assets.put_part("asset_1", 0, 0, b"123", sha256="0" * 64),
    "complete upload": lambda: assets.complete("asset_1", num_bytes=3, sha256="0" * 64),
    "remove asset": lambda: assets.remove("asset_1"),
    "storage": lambda: assets.storage(),
    "members": lambda: people.members(),
    "change member": lambda: people.change_member("u_1", "admin"),
    "remove member": lambda: people.remove_member("u_1"),
    "invitations": lambda: people.invitations(),
    "invite": lambda: people.invite("a@b.c", role="viewer"),
    "revoke invitation": lambda: people.revoke_invitation("inv_1"),
    "audit": lambda: people.audit(actor="a", action="b", target="c", since=datetime.now(UTC), after=1),
    "webhooks": lambda: webhooks.each(),
    "webhook": lambda: webhooks.show(W),
    "make webhook": lambda: webhooks.make("https://a.b", events=["job.*"], description="d"),
    "change webhook": lambda: webhooks.change(W, url="https://a.b", events=["*"], description="d", enabled=False),
    "remove webhook": lambda: webhooks.remove(W),
    "rotate secret": lambda: webhooks.rotate_secret(W),
    "test webhook": lambda: webhooks.send_test(W),
    "deliveries": lambda: webhooks.deliveries(W, state="dead"),
    "delivery": lambda: webhooks.delivery(W, "dlv_1"),
    "redeliver": lambda: webhooks.redeliver(W, "dlv_1"),
    "me": lambda: team.me(),
    "projects": lambda: team.projects(),
    "make project": lambda: team.make_project("a"),
    "templates": lambda: team.templates(),
    "template": lambda: team.template("a"),
    "keys": lambda: team.keys(),
    "make key": lambda: team.make_key(
        "a", scopes=["jobs:read"], expires_at=datetime.now(UTC), project="p", service_account="s", max_devices=1,
        max_gpu_hours=1.5,
    ),
    "revoke key": lambda: team.revoke_key("key_1"),
    "pools": lambda: team.pools(),
    "queue": lambda: team.queue("pool_1", mine=True, limit=5),
    "quota": lambda: team.quota(),
    "budget": lambda: team.budget(),
    "usage": lambda: team.usage(group_by="day", first=date(2026, 1, 1), last=date(2026, 1, 2), after="x"),
}  # fmt: skip
READ_AS = {
    Me: "MeOut", Project: "ProjectOut", Template: "TemplateOut", Job: "JobOut", Preview: "PreviewOut", Fit: "FitOut",
    Preset: "PresetOut", Hint: "HintOut",
    Event: "EventOut", EventPage: "EventsOut", Attempt: "AttemptOut", Metrics: "MetricsOut", LogLine: "LineOut",
    LogLines: "LinesOut", Trajectory: "TrajectoryOut", Passage: "PassageOut", Explanation: "ExplainOut",
    Wait: "WaitOut",
    Smaller: "SmallerOut", Failure: "FailureExplained", Evidence: "Evidence", LastLine: "LastLine",
    Checkpoint: "CheckpointOut", Download: "DownloadOut", DownloadFile: "FileOut", ModelVersion: "ModelVersionOut",
    Model: "ModelOut", ModelWithVersions: "ModelWithVersionsOut", Pool: "PoolOut", Quota: "QuotaOut",
    PoolQuota: "PoolQuotaOut",
    Queue: "QueueOut", Holder: "HolderOut", InLine: "InLineOut", Budget: "BudgetOut", Usage: "UsageOut",
    Cost: "CostOut",
    Kinds: "KindsOut", UsageGroup: "UsageGroupOut", JobUsage: "JobUsageOut", Key: "ApiKeyOut", NewKey: "ApiKeyMade",
    Evaluation: "EvaluationOut", Fault: "FaultOut", Cancelled: "CancelledOut", CancelledJobs: "CancelledJobsOut",
    Asset: "AssetOut", AssetFile: "AssetFileOut", Storage: "StorageOut",
    Timeline: "TimelineOut", ReplicaSpan: "SpanOut", ReplicaCell: "CellOut", Member: "MemberOut",
    Invitation: "InvitationOut", NewInvitation: "InvitationMade", AuditEntry: "AuditEntryOut", Webhook: "WebhookOut",
    NewWebhook: "WebhookWithSecret", Delivery: "DeliveryOut", DeliveryAttempt: "DeliveryAttemptOut",
    DeliveryWithBody: "DeliveryWithBody",
}  # fmt: skip


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    made: dict[str, Any] = api.get_openapi_schema()
    return made


def first_request(name: str) -> Request:
    effect = next(CALLS[name]())
    assert isinstance(effect, Send | Open)
    return effect.request


def operation_of(document: dict[str, Any], request: Request) -> dict[str, Any]:
    found = [
        methods[request.method.lower()]
        for path, methods in document["paths"].items()
        if request.method.lower() in methods and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), f"{API}{request.path}")
    ]
    assert len(found) == 1, f"{request.method} {request.path} is {len(found)} operations"
    operation: dict[str, Any] = found[0]
    return operation


@pytest.mark.parametrize("name", CALLS)
def test_the_server_has_what_a_call_asks_for(document: dict[str, Any], name: str) -> None:
    request = first_request(name)
    operation = operation_of(document, request)
    known = {(place["in"], place["name"].lower()) for place in operation.get("parameters", ())}
    asked = {("query", key.lower()) for key, _ in request.query}
    asked |= {("header", key.lower()) for key in request.headers if key != "Accept"}
    assert asked <= known
    body = request.body
    if isinstance(body, dict):
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        assert set(body) <= set(schema["properties"])
        assert set(schema.get("required", ())) <= set(body)


@pytest.mark.parametrize("kind", READ_AS, ids=lambda kind: kind.__name__)
def test_the_server_tells_what_the_client_reads(document: dict[str, Any], kind: Any) -> None:
    assert not list(Comparison(document).of_record(kind, document["components"]["schemas"][READ_AS[kind]]))


def test_every_answer_is_compared_with_the_document(document: dict[str, Any]) -> None:
    comparison = Comparison(document)
    for kind, name in READ_AS.items():
        list(comparison.of_record(kind, document["components"]["schemas"][name]))
    modules = [import_module(f"{answers.__name__}.{each.name}") for each in iter_modules(answers.__path__)]
    every = {kind for module in modules for kind in vars(module).values() if dataclasses.is_dataclass(kind)}
    assert every - comparison.compared == {Answer, TeamEvent}  # the base, and an Event of a stream


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (str, {"type": "integer"}),
        (str, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        (str | None, {"type": "string"}),
        (datetime, {"type": "string"}),
        (int, {"type": "number"}),
        (list[int], {"type": "array", "items": {"type": "string"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (float | int | None, {"anyOf": [{"type": "number"}, {"type": "string"}, {"type": "null"}]}),
        (Named, {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}),
        (
            Named,
            {"type": "object", "properties": {key: {"type": "string"} for key in ("id", "name")}, "required": ["id"]},
        ),
    ],
)
def test_comparison_finds_each_kind_of_divergence(kind: Any, schema: dict[str, Any]) -> None:
    assert list(Comparison({}).of_value(kind, schema, at="x"))


def test_answers_with_null_or_several_types_are_decoded() -> None:
    """Another team's job in the queue has no reason; a preset is a number or a word."""
    waiting = {"position": 1, "team": "others", "job": None, "name": None, "devices": 2, "reason": None}
    assert read(InLine, waiting | {"queued_at": "2026-01-01T00:00:00+00:00"}).reason is None
    for value in ("vllm", 2, 0.5, None):
        assert read(Preset, {"path": "rollout.engine", "value": value, "reason": ""}).value == value
    with pytest.raises(Unreadable, match="is not a float or int or str"):
        read(Preset, {"path": "rollout.engine", "value": [], "reason": ""})


def test_every_call_of_the_client_is_held_to_the_document() -> None:
    from frontend.client.laminar_client import namespaces

    spaces = (
        *(namespaces.Jobs, namespaces.Checkpoints, namespaces.Models, namespaces.Assets),
        *(namespaces.TeamCalls, namespaces.Webhooks),
    )
    calls = {
        call.make
        for space in spaces
        for call in vars(space).values()
        if isinstance(call, namespaces.Call | namespaces.Streaming)
    }
    composed = {"wait", "watch", "download", "upload", "export"}  # composed of other calls
    twice = {"events", "logs"}  # also as a followed stream
    assert len({call for call in calls if call.__name__ not in composed}) == len(CALLS) - len(twice)
