"""A client that loses its connection before the response retries with the same key: that is one job."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from backend.accounts.models import Project
from backend.api.models import IdempotencyKey
from backend.jobs.models import Job
from backend.pools.models import ResourcePool
from tests.uvicorn_server import run_uvicorn
from tests.waiting import eventually

TRIES = 24


@pytest.fixture
def server(transactional_db: None) -> Iterator[str]:
    from backend.asgi import application

    with run_uvicorn(application, log_level="error", timeout_graceful_shutdown=2) as base_url:
        yield base_url


def send_and_hang_up(base_url: str, body: bytes, headers: dict[str, str], *, after_s: float) -> None:
    """The whole request is sent; the response is never read."""
    target = urlsplit(base_url)
    lines = ["POST /api/v1/jobs HTTP/1.1", f"Host: {target.netloc}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection((target.hostname or "", target.port or 0)) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        time.sleep(after_s)


def is_final(answer: httpx.Response) -> bool:
    """Whether the first request has ended."""
    if answer.status_code == 409:
        assert answer.json()["code"] == "in_flight" and answer.headers["Retry-After"]
    return answer.status_code != 409


@pytest.mark.long
def test_a_cut_answer_and_a_second_try_are_one_job(server: str, api: Any, project: Project, pool: ResourcePool) -> None:
    """Disconnects at once, in the middle, or during the response; some retries race the first request."""
    ids = []
    for number in range(TRIES):
        body = json.dumps({"project": project.pk, "spec": {"name": f"Sums {number}"}}).encode()
        headers = {"Authorization": f"Bearer {api.key}", "Content-Type": "application/json"}
        headers["Idempotency-Key"] = f"cut-{number}"
        cut = threading.Thread(
            target=send_and_hang_up, args=(server, body, headers), kwargs={"after_s": 0.004 * (number % 12)}
        )
        cut.start()
        if number % 2:
            cut.join()
        retry = partial(httpx.post, f"{server}/api/v1/jobs", content=body, headers=headers, timeout=120)
        answer = eventually(retry, "the first request has ended", until=is_final)
        assert answer.status_code == 202, answer.text
        ids.append(answer.json()["id"])
        cut.join()
    assert len(set(ids)) == TRIES == Job.objects.count() == IdempotencyKey.objects.count()
    assert {job.pk for job in Job.objects.all()} == set(ids)
