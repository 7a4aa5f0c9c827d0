"""Frequent queries: planned once per connection instead of on every execution.

Postgres takes three times as long to plan a join of four tables as to execute it (backend/api/decisions.md).

Invariant: a query's text is constant, and only its values vary; a connection keeps every text.
"""

from collections.abc import Sequence
from typing import Any

from django.db import connection
from django.db.backends.postgresql.base import ServerBindingCursor


def fetch_prepared(query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """All rows, with Django's errors and its query log as for any other cursor."""
    connection.ensure_connection()
    wrapper: Any = connection  # django-stubs know neither how it wraps a cursor nor what makes one
    binding: Any = ServerBindingCursor
    with wrapper._prepare_cursor(binding(connection.connection)) as db:
        db.execute(query, values)
        rows: list[tuple[Any, ...]] = db.fetchall()
    return rows
