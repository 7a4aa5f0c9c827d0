"""Durations of requests, by route, method and status: counted in each process, served by /metrics.

Several web processes on one port share a folder (LAMINAR_METRICS_DIR) in which prometheus_client keeps each process'
counts, so any of them can serve the totals. Without it the counts are this process' own.

Invariant: a label is one of our routes or "none", never a caller's text, so the number of labels is bounded.
"""

from django.http import HttpRequest
from prometheus_client import CollectorRegistry, Histogram

registry = CollectorRegistry()
# From a ping to the statement timeout.
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_seconds = Histogram(
    "laminar_request_seconds",
    "Time until the answer (of a stream: until it began).",
    ["route", "method", "status"],
    buckets=_BUCKETS,
    registry=registry,
)


def note_request(request: HttpRequest, status: int, seconds: float) -> None:
    match = request.resolver_match
    method = request.method if request.method in _METHODS else "other"
    _seconds.labels(route="/" + match.route if match else "none", method=method, status=str(status)).observe(seconds)
