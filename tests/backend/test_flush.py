"""The flush after a transactional test is repeated when Postgres ends it to resolve a deadlock."""

import pytest
from django.db import OperationalError, connection

pytestmark = pytest.mark.django_db(transaction=True)

DEADLOCK, LOCK_TIMEOUT = "40P01", "55P03"


def failing_once(code: str) -> str:
    """A statement that fails at its first execution; a rollback does not reset a sequence."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE flushes")
    return f"DO $$ BEGIN IF nextval('flushes') = 1 THEN RAISE EXCEPTION USING ERRCODE = '{code}'; END IF; END $$"


def num_flushes() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM flushes")
        [num] = cursor.fetchone() or [0]
        cursor.execute("DROP SEQUENCE flushes")
    return int(num)


def test_flush_is_repeated_after_a_deadlock() -> None:
    connection.ops.execute_sql_flush([failing_once(DEADLOCK)])
    assert num_flushes() == 2


def test_flush_is_not_repeated_after_another_error() -> None:
    with pytest.raises(OperationalError):
        connection.ops.execute_sql_flush([failing_once(LOCK_TIMEOUT)])
    assert num_flushes() == 1
