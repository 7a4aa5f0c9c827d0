"""/webhooks: endpoints that receive a team's job events. Messages are signed as Standard Webhooks defines it."""

from datetime import datetime
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Status
from pydantic import BaseModel, ConfigDict, Field

from backend.accounts.keys.bearer import ApiKeyAuth, caller_of
from backend.api.etags import IfMatch, etag_of, tagged
from backend.api.pagination import DEFAULT_LIMIT, Cursor, Limit, Page, page_after
from backend.api.problems import problems
from backend.borders.types import OneLine, PathId
from backend.clock import database_now
from backend.webhooks import services
from backend.webhooks.models import DeliveryState, WebhookDelivery, WebhookEndpoint
from backend.webhooks.selectors import deliveries_of, endpoints_of, the_delivery, the_endpoint

router = Router(tags=["Webhooks"], auth=ApiKeyAuth("webhooks:write"))

EventName = Annotated[
    str,
    Field(
        pattern=r"^(\*|job\.\*|job\.[a-z_]{1,40}|budget\.warned)$",
        description="`job.succeeded`, `job.alarm_raised`, `job.alarm_ended`, `job.*`, `budget.warned` or `*`.",
    ),
]
Events = Annotated[list[EventName], Field(min_length=1, max_length=40)]
Url = Annotated[OneLine, Field(min_length=9, max_length=1_000, examples=["https://example.org/laminar"])]
Description = Annotated[OneLine, Field(max_length=200)]


class NewWebhook(BaseModel):
    model_config = ConfigDict(extra="forbid")
    url: Url
    events: Events = Field(default=["*"], examples=[["job.succeeded", "job.failed"]])
    description: Description = ""


class WebhookChange(BaseModel):
    """Changes to a webhook. Fields left out stay as they are."""

    model_config = ConfigDict(extra="forbid")
    url: Url | None = None
    events: Events | None = None
    description: Description | None = None
    enabled: bool | None = None


class WebhookOut(BaseModel):
    id: str
    url: str
    events: list[str]
    description: str
    enabled: bool
    disabled_reason: str
    num_failures: int = Field(description="Failed attempts since the last success.")
    last_success_at: datetime | None
    previous_secret_until: datetime | None = Field(description="Until then, the previous secret signs too.")
    created_at: datetime


class WebhookWithSecret(WebhookOut):
    secret: str = Field(description="Shown only once.")


class DeliveryAttemptOut(BaseModel):
    """One attempt. `status` is null without a response; response bodies are not kept."""

    at: datetime
    status: int | None
    error: str
    ms: int


class DeliveryOut(BaseModel):
    id: str
    webhook_id: str
    message_id: str = Field(description="The `webhook-id` header, the same in every attempt.")
    type: str
    state: DeliveryState
    num_attempts: int
    next_attempt_at: datetime | None
    attempts: list[DeliveryAttemptOut]
    created_at: datetime
    finished_at: datetime | None


class DeliveryWithBody(DeliveryOut):
    body: str = Field(description="The exact bytes that are sent.")


_TAKES_BODY = (400, 413, 415, 422)


@router.post("/webhooks", response={201: WebhookWithSecret} | problems(409, *_TAKES_BODY), summary="Create a webhook")
def create_webhook(request: HttpRequest, response: HttpResponse, body: NewWebhook) -> Status[WebhookWithSecret]:
    """The response contains the signing secret. It is not shown again."""
    caller = caller_of(request)
    endpoint, secret = services.create_endpoint(
        caller.team, url=body.url, events=body.events, description=body.description, actor=caller.actor,
        now=database_now(),
    )  # fmt: skip
    tagged(response, etag_of(endpoint.version))
    response["Location"] = f"/api/v1/webhooks/{endpoint.pk}"
    return Status(201, WebhookWithSecret(**_fields(endpoint), secret=secret))


@router.get("/webhooks", response={200: Page[WebhookOut]} | problems(422), summary="List webhooks")
def list_webhooks(request: HttpRequest, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Page[WebhookOut]:
    rows, following = page_after(endpoints_of(caller_of(request).team), cursor=cursor, limit=limit)
    data = [WebhookOut(**_fields(row)) for row in rows]
    return Page(data=data, has_more=following is not None, next_cursor=following)


@router.get("/webhooks/{webhook_id}", response={200: WebhookOut} | problems(404), summary="Get a webhook")
def show_webhook(request: HttpRequest, response: HttpResponse, webhook_id: PathId) -> WebhookOut:
    endpoint = the_endpoint(caller_of(request).team, webhook_id)
    tagged(response, etag_of(endpoint.version))
    return WebhookOut(**_fields(endpoint))


@router.patch(
    "/webhooks/{webhook_id}",
    response={200: WebhookOut} | problems(404, 412, *_TAKES_BODY),
    summary="Change, disable or enable a webhook",
)
def change_webhook(
    request: HttpRequest, response: HttpResponse, webhook_id: PathId, body: WebhookChange, if_match: IfMatch = None
) -> WebhookOut:
    caller = caller_of(request)
    endpoint = services.change_endpoint(
        caller.team, webhook_id, if_match=if_match, actor=caller.actor, now=database_now(), **body.model_dump()
    )
    tagged(response, etag_of(endpoint.version))
    return WebhookOut(**_fields(endpoint))


@router.delete("/webhooks/{webhook_id}", response={204: None} | problems(404, 412, 422), summary="Delete a webhook")
def delete_webhook(request: HttpRequest, webhook_id: PathId, if_match: IfMatch = None) -> Status[None]:
    """Also deletes its deliveries."""
    caller = caller_of(request)
    services.delete_endpoint(caller.team, webhook_id, if_match=if_match, actor=caller.actor, now=database_now())
    return Status(204, None)


@router.post(
    "/webhooks/{webhook_id}/rotate-secret", response={200: WebhookWithSecret} | problems(404), summary="Rotate secret"
)
def rotate_webhook_secret(request: HttpRequest, webhook_id: PathId) -> WebhookWithSecret:
    """For a day messages carry two signatures, by the new and the previous secret."""
    caller = caller_of(request)
    endpoint, secret = services.rotate_secret(caller.team, webhook_id, actor=caller.actor, now=database_now())
    return WebhookWithSecret(**_fields(endpoint), secret=secret)


@router.post(
    "/webhooks/{webhook_id}/test", response={202: DeliveryOut} | problems(404, 409), summary="Send a test message"
)
def test_webhook(request: HttpRequest, webhook_id: PathId) -> Status[DeliveryOut]:
    """Sends a message of type `webhook.test`. See its result under `/deliveries`."""
    caller = caller_of(request)
    row = services.send_test(caller.team, webhook_id, actor=caller.actor, now=database_now())
    return Status(202, DeliveryOut(**_delivery_fields(row)))


@router.get(
    "/webhooks/{webhook_id}/deliveries",
    response={200: Page[DeliveryOut]} | problems(404, 422),
    summary="List deliveries",
)
def list_deliveries(
    request: HttpRequest,
    webhook_id: PathId,
    state: Annotated[DeliveryState | None, Query(description="`dead`: deliveries that failed for good.")] = None,
    cursor: Cursor = None,
    limit: Limit = DEFAULT_LIMIT,
) -> Page[DeliveryOut]:
    """Newest first; kept for 30 days."""
    rows = deliveries_of(the_endpoint(caller_of(request).team, webhook_id))
    page, following = page_after(rows.filter(state=state) if state else rows, cursor=cursor, limit=limit)
    data = [DeliveryOut(**_delivery_fields(row)) for row in page]
    return Page(data=data, has_more=following is not None, next_cursor=following)


@router.get(
    "/webhooks/{webhook_id}/deliveries/{delivery_id}",
    response={200: DeliveryWithBody} | problems(404),
    summary="Get a delivery with its message",
)
def show_delivery(request: HttpRequest, webhook_id: PathId, delivery_id: PathId) -> DeliveryWithBody:
    row = the_delivery(the_endpoint(caller_of(request).team, webhook_id), delivery_id)
    return DeliveryWithBody(**_delivery_fields(row), body=row.body)


@router.post(
    "/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver",
    response={202: DeliveryOut} | problems(404, 409),
    summary="Redeliver a message",
)
def redeliver_webhook(request: HttpRequest, webhook_id: PathId, delivery_id: PathId) -> Status[DeliveryOut]:
    caller = caller_of(request)
    row = services.redeliver(caller.team, webhook_id, delivery_id, actor=caller.actor, now=database_now())
    return Status(202, DeliveryOut(**_delivery_fields(row)))


def _fields(endpoint: WebhookEndpoint) -> dict[str, Any]:
    same = ("id", "url", "events", "description", "disabled_reason", "num_failures", "last_success_at", "created_at")
    return {name: getattr(endpoint, name) for name in same} | {
        "enabled": endpoint.disabled_at is None,
        "previous_secret_until": endpoint.previous_until,
    }


def _delivery_fields(row: WebhookDelivery) -> dict[str, Any]:
    same = ("id", "message_id", "type", "state", "num_attempts", "attempts", "created_at", "finished_at")
    return {name: getattr(row, name) for name in same} | {
        "webhook_id": row.endpoint_id,
        "next_attempt_at": row.due_at,
    }
