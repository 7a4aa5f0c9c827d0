"""Questions that are asked all the time: planned once a connection, and not each time.

Postgres takes three times as long to plan a join of four tables as to answer it (backend/api/decisions.md).

Invariant: the question's text is always the same, and what differs is among the values; a connection keeps each text.
"""

from collections.abc import Sequence
from typing import Any

from django.db import connection
from django.db.backends.postgresql.base import ServerBindingCursor


def fetch_prepared(question: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """All rows of the answer, with Django's errors and its log of queries as for any other cursor."""
    connection.ensure_connection()
    wrapper: Any = connection  # django-stubs know neither how it wraps a cursor nor what makes one
    binding: Any = ServerBindingCursor
    with wrapper._prepare_cursor(binding(connection.connection)) as db:
        db.execute(question, values)
        rows: list[tuple[Any, ...]] = db.fetchall()
    return rows
