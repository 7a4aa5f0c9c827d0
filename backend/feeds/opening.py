"""Opens a stream: its reader is counted, rate-limited, and checked again while the stream lasts."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse

from backend.accounts.services import Caller, recognise_api_key
from backend.api.limits.rate_limit import STREAMS, take
from backend.feeds.open_streams import TooManyStreams, open_streams
from backend.feeds.streaming import Source, stream
from backend.telemetry.live.hub import Inbox, user_notice

EVENT_STREAM = "text/event-stream"


def stream_doc(what: str) -> dict[str, Any]:
    """The description of the 200 response in the schema."""
    return {
        "description": f"OK. As a stream: {what}; comment lines are heartbeats; `end` means that nothing will follow, "
        "`goodbye` that the key is no longer valid.",
        "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
    }


def wants_stream(request: HttpRequest) -> bool:
    return any(
        part.partition(";")[0].strip().lower() == EVENT_STREAM for part in request.headers.get("Accept", "").split(",")
    )


def inbox_of(caller: Caller) -> Inbox:
    """A trigger on the keys' table sends `key <id>` when a key is revoked."""
    return Inbox(user=user_notice(caller.user.pk), session=f"key {caller.key.pk}")


def streamed(request: HttpRequest, caller: Caller, source: Source, inbox: Inbox) -> HttpResponse:
    allowance = take(STREAMS, of=caller.team.pk)
    give_back = open_streams.take([caller.team.pk], refusal=TooManyStreams)
    text = request.headers["Authorization"].partition(" ")[2].strip()

    def is_allowed() -> bool:
        current = recognise_api_key(text, now=datetime.now(UTC))
        return current is not None and current.team.pk == caller.team.pk and "jobs:read" in current.scopes

    return StreamOfATeam(  # type: ignore[return-value]  # ninja passes on any HttpResponseBase
        stream(source, inbox, is_allowed=is_allowed),
        content_type=EVENT_STREAM,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"} | allowance.headers,
        at_end=give_back,
    )


class StreamOfATeam(StreamingHttpResponse):
    """Gives its place back when closed, even if the reader disconnects before the first frame."""

    def __init__(self, *args: Any, at_end: Callable[[], None], **others: Any) -> None:
        super().__init__(*args, **others)
        self._at_end = at_end

    def close(self) -> None:
        self._at_end()
        super().close()
