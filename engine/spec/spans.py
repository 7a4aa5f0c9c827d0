"""Spans of the way of one job, as OTLP writes them in JSON. Pure: whoever has some sends them.

    job ─┬─ submission, queue, admission, start, run, …, end     the control plane's, when the job has ended
         └─ driver ─┬─ start, phases                             the engine's, an attempt each, as it goes
                    └─ first step, step, step, …

Invariants:
- a job is one trace, and both planes know its ids without telling each other: they are digests of what a span is of;
- a span tells numbers and words of our own lists: nothing that a customer wrote, no host, no address.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

JOB: Final = ("job",)
"""What the trace's first span is of."""
Of = tuple[str | int, ...]
_SERVER, _INTERNAL, _ERROR = 2, 1, 2  # SPAN_KIND_SERVER, SPAN_KIND_INTERNAL, STATUS_CODE_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    name: str
    of: Of
    parent: Of | None = JOB
    began: float
    ended: float
    """Both in seconds since 1970, UTC."""
    told: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    events: Sequence[tuple[float, str]] = ()
    is_failure: bool = False


def traces_address(url: str) -> str:
    """Where a collector takes spans. Raises `ValueError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"LAMINAR_OTLP_URL: the address of a collector, such as http://collector:4318, got {url!r}")
    return f"{url.rstrip('/')}/v1/traces"


def document(job: str, spans: Sequence[Span], *, service: str) -> dict[str, Any]:
    """An ExportTraceServiceRequest."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes({"service.name": service})},
                "scopeSpans": [{"scope": {"name": "laminar"}, "spans": [_written(job, span) for span in spans]}],
            }
        ]
    }


def trace_id(job: str) -> str:
    return _digest("trace", job)[:32]


def span_id(job: str, of: Of) -> str:
    return _digest("span", job, *of)[:16]


def _written(job: str, span: Span) -> dict[str, Any]:
    written: dict[str, Any] = {
        "traceId": trace_id(job),
        "spanId": span_id(job, span.of),
        "name": span.name,
        "kind": _SERVER if span.parent is None else _INTERNAL,
        "startTimeUnixNano": _nanoseconds(span.began),
        "endTimeUnixNano": _nanoseconds(max(span.began, span.ended)),
        "attributes": _attributes({"laminar.job": job, **span.told}),
        "events": [{"timeUnixNano": _nanoseconds(at), "name": name} for at, name in span.events],
    }
    if span.parent is not None:
        written["parentSpanId"] = span_id(job, span.parent)
    if span.is_failure:
        written["status"] = {"code": _ERROR}
    return written


def _attributes(told: Mapping[str, str | int | float | bool]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in told.items()]


def _value(value: str | int | float | bool) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}  # as protobuf writes 64 bits in JSON
        case float():
            return {"doubleValue": value}
        case _:
            return {"stringValue": value}


def _nanoseconds(seconds: float) -> str:
    return str(int(seconds * 1e6) * 1_000)


def _digest(*words: str | int) -> str:
    return hashlib.sha256("\n".join(("laminar", *map(str, words))).encode()).hexdigest()
