"""Trace spans of a job in OTLP's JSON encoding. Pure: the callers send the documents.

    job ─┬─ submission, queue, admission, start, run, …, end     sent by the control plane when the job has ended
         └─ driver ─┬─ start, phases                             sent by the engine, per attempt, as they end
                    └─ first step, step, step, …

Invariants:
- a job is one trace; both planes compute the same ids without communication, as digests of each span's subject;
- attributes are numbers and words of our own lists: no customer text, no host, no address.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

JOB: Final = ("job",)
"""The subject of the trace's root span."""
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
    attributes: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    events: Sequence[tuple[float, str]] = ()
    is_failure: bool = False


def traces_address(url: str) -> str:
    """The collector's URL for spans. Raises `ValueError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"LAMINAR_OTLP_URL must be a collector's URL such as http://collector:4318, got {url!r}")
    return f"{url.rstrip('/')}/v1/traces"


def document(job: str, spans: Sequence[Span], *, service: str) -> dict[str, Any]:
    """An ExportTraceServiceRequest."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes({"service.name": service})},
                "scopeSpans": [{"scope": {"name": "laminar"}, "spans": [_encode(job, span) for span in spans]}],
            }
        ]
    }


def trace_id(job: str) -> str:
    return _digest("trace", job)[:32]


def span_id(job: str, of: Of) -> str:
    return _digest("span", job, *of)[:16]


def _encode(job: str, span: Span) -> dict[str, Any]:
    document: dict[str, Any] = {
        "traceId": trace_id(job),
        "spanId": span_id(job, span.of),
        "name": span.name,
        "kind": _SERVER if span.parent is None else _INTERNAL,
        "startTimeUnixNano": _nanoseconds(span.began),
        "endTimeUnixNano": _nanoseconds(max(span.began, span.ended)),
        "attributes": _attributes({"laminar.job": job, **span.attributes}),
        "events": [{"timeUnixNano": _nanoseconds(at), "name": name} for at, name in span.events],
    }
    if span.parent is not None:
        document["parentSpanId"] = span_id(job, span.parent)
    if span.is_failure:
        document["status"] = {"code": _ERROR}
    return document


def _attributes(values: Mapping[str, str | int | float | bool]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


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
