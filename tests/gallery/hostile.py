"""The gallery's world with hostile text in every column that a person, a program, a model or a node can fill.

    TEXTS   "accounts.Team.name": written over the rows of the exhibits, past every check of the borders
    INERT   columns that only hold our own words, ids and hashes

Invariants: every text column of the site is in one of the two (`test_hostile_texts.py`), so a new one is classified;
what is empty in the gallery's world stays empty. Each value starts with a mark of its own, by which a page that shows
it is recognised.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final

from django.apps import apps
from django.contrib.postgres.fields import ArrayField
from django.contrib.sessions.models import Session
from django.db import connection, models, transaction

from backend.accounts.acting import Acting
from backend.accounts.keys.service_accounts import open_service_account
from backend.accounts.models import AddressChange, Role, SignedIn
from backend.accounts.services import create_api_key
from backend.assets.models import Asset, AssetFile
from backend.checkpoints.models import Checkpoint
from backend.jobs.lifecycle import locked_job, next_cursor
from backend.jobs.models import Job, JobAttempt
from backend.operating.checks.doctor import Part
from backend.operating.checks.store import SILENT
from backend.operating.models import Examination
from backend.operating.status import OF_THE_SITE
from backend.pools.models import DrainedHost, Maintenance
from backend.quota_requests.models import QuotaRequest
from backend.telemetry.logs.batches import store_lines
from backend.usage.models import AttemptCredit
from engine.spec.facts import LogLines, TrajectorySample
from tests.frontend import seed
from tests.gallery.exhibits import Exhibits, make_exhibits

TEXTS: Final = frozenset({
    "accounts.User.email", "accounts.Team.name", "accounts.Project.name", "accounts.Invitation.email",
    "accounts.AddressChange.after", "accounts.SignedIn.user_agent", "accounts.SignedIn.ip",
    "accounts.ServiceAccount.name", "accounts.ApiKey.name",
    "assets.Asset.name", "assets.AssetFile.name",
    "audit.AuditEntry.target", "audit.AuditEntry.ip", "audit.AuditEntry.data",
    "checkpoints.Checkpoint.message", "checkpoints.Checkpoint.uri", "checkpoints.CheckpointEvaluation.environment",
    "checkpoints.ModelVersion.note", "checkpoints.Checkpoint.code_version", "checkpoints.Checkpoint.parts",
    "checkpoints.Retention.metric",
    "jobs.Job.name", "jobs.Job.tags", "jobs.Job.message", "jobs.JobAttempt.message", "jobs.JobAttempt.evidence",
    "jobs.JobEvent.message", "jobs.JobEvent.data", "jobs.Job.spec",
    "pools.ResourcePool.name", "pools.ResourcePool.ray_url", "pools.ResourcePool.flavor", "pools.ResourcePool.labels",
    "pools.ClusterProbe.hosts", "pools.ClusterProbe.problem",
    "pools.Maintenance.text", "pools.DrainedHost.reason", "pools.DrainedHost.name",
    "quota_requests.QuotaRequest.reason", "quota_requests.QuotaRequest.answer",
    "telemetry.Trajectory.prompt", "telemetry.Trajectory.response", "telemetry.Trajectory.remark",
    "telemetry.Trajectory.reason", "telemetry.MetricSeries.name",
    "webhooks.WebhookEndpoint.url", "webhooks.WebhookEndpoint.description", "webhooks.WebhookDelivery.body",
    "webhooks.WebhookDelivery.attempts", "webhooks.WebhookEndpoint.disabled_reason",
    "verdicts.JobVerdict.found", "operating.Examination.parts", "usage.AttemptCredit.reason",
})  # fmt: skip
INERT: Final = frozenset({
    "accounts.User.password", "accounts.User.first_name", "accounts.User.last_name", "accounts.User.public_id",
    "accounts.Invitation.token_sha256", "accounts.AddressChange.before", "accounts.AddressChange.proof_sha256",
    "accounts.ResetLink.token_sha256", "accounts.SignedIn.public_id", "accounts.ApiKey.prefix",
    "accounts.ApiKey.secret_sha256", "accounts.ApiKey.scopes", "accounts.SharedEntry.value",
    "pools.ResourcePool.ray_token", "pools.DrainedHost.ray_url", "pools.DrainedHost.by", "pools.DrainedHost.labels",
    "jobs.Job.phase", "jobs.Job.reason", "jobs.Job.target_state", "jobs.Job.failure_class", "jobs.Job.start_from",
    "jobs.JobAttempt.submission_id", "jobs.JobAttempt.token_sha256", "jobs.JobAttempt.resume_from",
    "jobs.JobAttempt.outcome", "jobs.JobAttempt.failure_class", "jobs.JobEvent.type", "jobs.JobEvent.actor",
    "jobs.JobEvent.from_state", "jobs.JobEvent.to_state", "jobs.JobEvent.reason", "jobs.ControlRequest.kind",
    "jobs.OutboxMessage.topic", "jobs.OutboxMessage.key", "jobs.ReconcileLease.owner", "jobs.Generation.site",
    "jobs.Generation.cluster", "jobs.Generation.reason", "telemetry.TrajectoryFile.key",
    "telemetry.Trajectory.outcome", "telemetry.Trajectory.end", "telemetry.TrajectoryWords.words",
    "telemetry.LogBatch.component", "telemetry.SampleLedger.counts", "telemetry.ReplicaMinute.doing",
    "checkpoints.Checkpoint.manifest_sha256", "checkpoints.Checkpoint.metrics", "checkpoints.RegisteredModel.name",
    "checkpoints.ModelVersion.created_by", "checkpoints.ModelVersion.lineage", "assets.Asset.place",
    "assets.Asset.sha256", "assets.Asset.config", "assets.Asset.created_by", "assets.AssetPart.sha256",
    "assets.AssetPart.stored_as", "assets.AssetUse.pointer", "usage.UsageSlice.key", "usage.PoolPrice.created_by",
    "usage.AttemptCredit.given_by", "usage.AttemptCredit.taken_back_by",
    "usage.SiteCurrency.code", "quota_requests.QuotaRequest.answered_by", "audit.AuditHead.hash",
    "audit.AuditEntry.actor", "audit.AuditEntry.action", "audit.AuditEntry.request_id",
    "audit.AuditEntry.previous_hash", "audit.AuditEntry.hash", "webhooks.WebhookEndpoint.events",
    "webhooks.WebhookEndpoint.secret", "webhooks.WebhookEndpoint.previous_secret",
    "webhooks.WebhookDelivery.message_id", "webhooks.WebhookDelivery.type", "verdicts.JobVerdict.kind",
    "verdicts.JobVerdict.alarms",
    "api.IdempotencyKey.key", "api.IdempotencyKey.method", "api.IdempotencyKey.path", "api.IdempotencyKey.body_sha256",
    "api.IdempotencyKey.response", "api.IdempotencyKey.location",
})  # fmt: skip
"""Ids, hashes, and words of ours from closed lists, which borders and constraints keep."""
ON_NO_PAGE: Final = frozenset({
    "assets.AssetFile.name", "audit.AuditEntry.ip", "checkpoints.Checkpoint.code_version",
    "checkpoints.Checkpoint.parts", "checkpoints.Checkpoint.uri", "checkpoints.Retention.metric",
    "operating.Examination.parts", "pools.ClusterProbe.problem", "pools.ResourcePool.labels",
    "pools.ResourcePool.ray_url", "telemetry.Trajectory.remark", "webhooks.WebhookEndpoint.disabled_reason", "turn",
})  # fmt: skip
"""Shown by no page of the gallery: its rows leave them empty, or only the API and programs read them."""
OF_SAMPLES: Final = ("answer", "tool", "arguments", "error", "turn", "token", "part")
"""Texts of a sample that are stored compressed."""
OF_LINES: Final = ("line",)
MARKS: Final[Mapping[str, str]] = {
    name: f"zq{at:02}q" for at, name in enumerate([*sorted(TEXTS), *OF_SAMPLES, *OF_LINES])
}
LEAVES: Final = frozenset(
    {
        "component",
        "action",
        "host",
        "reason",
        "message",
        "error",
        "name",
        "email",
        "device",
        "word",
        "sentence",
        "remedy",
        "observation",
        "cure",
        "title",
    }
)
"""Keys of JSON columns whose texts come from outside."""
_REST: Final = (
    "<svg onload=__hit()></script></style></textarea></title></noscript><script>__hit()</script>--><iframe srcdoc='"
    "<script>parent.__hit()</script>'></iframe><a href='javascript:__hit()'>a</a>{{7*7}}{% debug %}${7*7}&lt;b&gt;"
    "\u202eabc\u202c\u200b\u2066" + "w" * 3_000
)


def hostile(mark: str, most: int | None = None) -> str:
    """The text of a mark. The first 36 characters are enough to run where they are not escaped."""
    return f"{mark}\"'><img src=x onerror=__hit()>{_REST}"[:most]


def address(mark: str) -> str:
    return f"javascript:__hit()//{hostile(mark, 280)}"


def make_hostile_exhibits() -> Exhibits:
    exhibits = make_exhibits()
    _add_rows(exhibits)
    for job in exhibits.jobs.values():
        if job.num_attempts:
            _add_samples_and_lines(job)
    with _without_guards(), transaction.atomic():
        for name in sorted(TEXTS):
            _poison(name)
    return exhibits


@contextmanager
def _without_guards() -> Iterator[None]:
    """Without the triggers that keep events, specs and the audit log as they were written."""
    tables = sorted({apps.get_model(name.rpartition(".")[0])._meta.db_table for name in TEXTS})
    with connection.cursor() as db:
        db.execute(
            "SELECT tgrelid::regclass, tgname FROM pg_trigger"
            " WHERE tgrelid::regclass::text = ANY(%s) AND tgenabled = 'O' AND NOT tgisinternal",
            [tables],
        )
        triggers = db.fetchall()

    def turn(state: str) -> None:
        with connection.cursor() as db:
            for table, trigger in triggers:
                db.execute(f"ALTER TABLE {table} {state} TRIGGER {trigger}")

    turn("DISABLE")
    try:
        yield
    finally:
        turn("ENABLE")


def _add_rows(exhibits: Exhibits) -> None:
    """Of the kinds that the gallery's world lacks."""
    owner, now = exhibits.owner, datetime.now(UTC)
    team = owner.memberships.get().team
    create_api_key(team=team, created_by=owner, name="key")
    acting = Acting.person(owner, team)
    assert acting is not None
    open_service_account(acting, name="robot", role=Role.MEMBER, project=None, now=now)
    asset = Asset.objects.create(
        team=team, kind="data", name="sums", state="ready", version=1, sha256="a" * 64, num_bytes=9, num_files=1,
        num_parts=1, created_at=now, ready_at=now, created_by=f"user:{owner.pk}",
    )  # fmt: skip
    AssetFile.objects.create(asset=asset, number=0, name="sums.jsonl", num_bytes=9)
    AddressChange.objects.create(
        user=owner, before=owner.email, after="new@example.org", proof_sha256="b" * 64, asked_at=now
    )
    session = Session.objects.create(pk="s" * 32, expire_date=now + timedelta(days=1))
    SignedIn.objects.create(pk=session.pk, user=owner, began_at=now, seen_at=now, ip="::1", user_agent="curl")
    Maintenance.objects.create(text="Soon", begins_at=now, ends_at=now + timedelta(hours=1), created_at=now)
    for name in ("box-7", "gone"):
        DrainedHost.objects.create(name=name, at=now, by=f"user:{owner.pk}", reason="disk", cpus=1, gpus=0)
    neighbours = exhibits.neighbour.memberships.get().team
    QuotaRequest.objects.create(
        team=team, pool=exhibits.pool, asked_by=owner, wanted=99, reason="more", asked_at=now, answer="no",
        answered_at=now, answered_by=f"user:{owner.pk}",
    )  # fmt: skip
    QuotaRequest.objects.create(
        team=neighbours, pool=exhibits.pool, asked_by=exhibits.neighbour, wanted=99, reason="more", asked_at=now
    )
    ended = JobAttempt.objects.filter(ended_at__isnull=False).latest("ended_at")
    AttemptCredit.objects.create(attempt=ended, reason="ours", given_at=now, given_by=f"user:{owner.pk}")
    parts = [asdict(Part(title="Store", findings=(SILENT.found("it hangs"),)))]
    Examination.objects.create(name=OF_THE_SITE.name, began_at=now, ended_at=now, parts=parts)
    corrupt = exhibits.checkpoint
    Checkpoint.objects.create(
        job=corrupt.job, attempt=1, step=41, version=41, uri="file:///nowhere/41", manifest_sha256="0" * 64,
        num_bytes=1, created_at=now, state="corrupt", message="rot",
    )  # fmt: skip


def _add_samples_and_lines(job: Job) -> None:
    text = {name: hostile(MARKS[name], 2_500) for name in (*OF_SAMPLES, *OF_LINES)}
    tokens = {"token_ids": [1, 2], "logprobs": [-0.1, -0.2], "versions": [1, 1], "written": [True, True]}
    turn = {"author": "model", "text": text["turn"], "first_token": 0, "num_tokens": 1, "tool": text["tool"][:200]}
    sample = TrajectorySample.model_validate({
        "prompt_ordinal": 1, "sample": 0, "version": 1, "staleness": 0, "num_tokens": 2, "reward": 1.0, "advantage": 1,
        "prompt": text["answer"], "response": text["answer"], "remark": text["answer"], "end": "failed",
        "reason": text["answer"], "group_size": 1, "parts": {text["part"][:60]: 1.0},
        "turns": [turn | {"arguments": text["arguments"]},
                  turn | {"author": "environment", "first_token": 1, "error": text["error"]}],
        "trace": tokens | {"texts": [text["token"][:60], text["token"][60:120]]},
    })  # fmt: skip
    seed.sampled(job, job.step + 1, [sample])
    row = {"at": datetime.now(UTC), "level": "error", "message": text["line"][:900]}
    lines = LogLines.model_validate({"component": "driver", "lines": [row]})
    with transaction.atomic():
        locked = locked_job(job.pk)
        store_lines(locked, 1, lines, cursor=next_cursor(locked), now=datetime.now(UTC))


def _poison(name: str) -> None:
    model, column = apps.get_model(name.rpartition(".")[0]), name.rpartition(".")[2]
    field, mark = model._meta.get_field(column), MARKS[name]
    for row, number in zip(model._default_manager.all(), count()):
        before = getattr(row, column)
        if before in ("", None, [], {}):
            continue
        value = _poisoned(field, before, f"{mark}{number}" if _must_differ(name) else mark)
        model._default_manager.filter(pk=row.pk).update(**{column: value})


def _must_differ(name: str) -> bool:
    """Columns that are unique, alone or within their row's parent."""
    return name.rpartition(".")[2] in ("email", "name") or name.endswith("Checkpoint.uri")


def _poisoned(field: Any, before: Any, mark: str) -> Any:
    if isinstance(field, models.JSONField):
        if field.name == "spec":
            return before | {"name": hostile(mark, 110), "tags": [hostile(mark, 40)]}
        return _leaves(before, mark, field.name)
    if isinstance(field, ArrayField):
        return [hostile(mark, field.base_field.max_length)]
    if field.name in ("url", "uri", "ray_url"):
        return address(mark)[: field.max_length]
    most = field.max_length or 100_000
    return f"{hostile(mark, 120)}@x.org" if isinstance(field, models.EmailField) else hostile(mark, most)


def _leaves(value: Any, mark: str, key: str) -> Any:
    match value:
        case dict():
            labels = {hostile(mark, 60): hostile(mark, 60)} if key == "labels" else {}
            return {name: _leaves(each, mark, name) for name, each in value.items()} | labels
        case list():
            return [_leaves(each, mark, key) for each in value]
        case str() if key in LEAVES or key in ("tags", "faults", "log_tail", "exit_reason"):
            return hostile(mark, 40 if key == "tags" else 110)
        case _:
            return value
