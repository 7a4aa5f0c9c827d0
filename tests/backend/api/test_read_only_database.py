"""A read-only Postgres (a standby, an operator's lock) is a retryable error and not an internal one."""

from typing import Any

from django.db import connection


def test_what_it_does_not_take_is_503(api: Any, job: Any) -> None:
    with connection.cursor() as db:
        db.execute("SET TRANSACTION READ ONLY")
    answer = api.post(f"/jobs/{job.pk}/cancel")
    assert answer.status_code == 503 and answer.json()["retryable"] is True
