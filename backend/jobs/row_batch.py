"""Writes rows that belong together in one trip to the database.

    execute_batch([insert_of(job), insert_of(event), …]) ──▶ the last statement's row, if it returns one

Invariants:
- the statements run in this order, in the caller's transaction; if one fails, all are rolled back;
- values are never formatted into a statement by hand: psycopg binds them.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from django.db import connection, models

Statement = tuple[str, Sequence[Any]]


def insert_of(row: models.Model) -> Statement:
    """Insert of a new row with all its values; database defaults are not used."""
    values = [field.get_db_prep_save(getattr(row, field.attname), connection) for field in _fields(type(row))]
    return _insert_into(type(row)), values


def execute_batch(statements: Sequence[Statement]) -> Any:
    assert connection.in_atomic_block, "the batch needs a transaction to be atomic"
    with connection.cursor() as db:
        db.execute(";\n".join(text for text, _ in statements), [value for _, values in statements for value in values])
        while db.nextset():
            pass
        return db.fetchone() if db.description else None


@cache
def _fields(model: type[models.Model]) -> list[Any]:
    return [field for field in model._meta.concrete_fields if not isinstance(field, models.AutoField)]


@cache
def _insert_into(model: type[models.Model]) -> str:
    fields = _fields(model)
    columns = ", ".join(f'"{field.column}"' for field in fields)
    placeholders = ", ".join(
        field.get_placeholder([], None, connection) if hasattr(field, "get_placeholder") else "%s" for field in fields
    )
    return f'INSERT INTO "{model._meta.db_table}" ({columns}) VALUES ({placeholders})'  # noqa: S608  # names of the models
