"""Limits by address on pages that anybody may open."""

from allauth.account.adapter import get_adapter
from django.http import HttpRequest

from backend.api.counters import take


def too_many(request: HttpRequest, limit: tuple[str, int, int]) -> bool:
    """Counts this request. A limit is (bucket, number, seconds)."""
    bucket, number, window_s = limit
    return not take(bucket, get_adapter(request).get_client_ip(request), number, window_s).allowed
