"""Limits by address on pages that anybody may open."""

from backend.api.counters import take
from backend.api.request_context import stranger


def too_many(limit: tuple[str, int, int]) -> bool:
    """Counts the present request. A limit is (bucket, number, seconds)."""
    bucket, number, window_s = limit
    return not take(bucket, stranger(), number, window_s).allowed
