"""Live pages under load: 1,000 sockets that watch jobs which move ten times a second; how late is each notified?

    python -m infra.local.testing -- python -m tests.bench.site.sockets [--json]

Real throughout: uvicorn, Postgres, NOTIFY, the hub, WebSockets with a session's cookie. A writer moves the cursor of
each job at the given rate, in transactions as ingest does; a nudge of a socket is as late as the newest cursor that it
carries. In the middle a tenth of the sockets is cut off and comes back; at the end every socket must know of the last
cursor, or the bench fails.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import psycopg
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Origin

from tests.bench.site.ingest import machine
from tests.bench.site.served import Site, laminar

NUM_READERS = 2  # processes that hold the sockets: one alone would measure itself


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.site.sockets", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--sockets", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=1, help="watched in turn; each moves at the rate")
    parser.add_argument("--rate", type=float, default=10.0, help="updates a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader is not None:
        print(json.dumps(asyncio.run(read(Order(**json.loads(arguments.reader))))))
        return 0
    with laminar() as site:
        found = measure(site, arguments)
    print(json.dumps(found) if arguments.json else "\n".join(f"{name}  {value}" for name, value in found.items()))
    return 0 if found["num_missing"] == 0 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order to one reading process. Times are of the machine's monotonic clock, which processes share."""

    url: str
    origin: str
    cookie: str
    jobs: list[str]
    num_sockets: int
    starts_at: float
    ends_at: float


@dataclass(slots=True, kw_only=True)
class Watcher:
    job: str
    cursor: int = 0
    heard: list[tuple[int, float]] = field(default_factory=list)
    num_pulls: int = 0
    num_cuts: int = 0


def measure(site: Site, arguments: argparse.Namespace) -> dict[str, Any]:
    jobs, cookie = prepare(site, arguments.jobs)
    opening_s = 5.0 + arguments.sockets / 100
    starts_at = time.monotonic() + opening_s
    ends_at = starts_at + arguments.seconds
    share = arguments.sockets // NUM_READERS
    order = {"url": site.url.replace("http", "ws") + "/ws/live", "origin": site.url, "cookie": cookie, "jobs": jobs}
    order |= {"num_sockets": share, "starts_at": starts_at, "ends_at": ends_at + 5.0}
    command = [sys.executable, "-m", "tests.bench.site.sockets", "--reader", json.dumps(order)]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(NUM_READERS)]
    time.sleep(max(0.0, starts_at - time.monotonic()))
    written = write(jobs, rate=arguments.rate, until=ends_at)
    answers = [json.loads(reader.communicate(timeout=120)[0]) for reader in readers]
    return judged(written, answers, arguments)


def prepare(site: Site, num_jobs: int) -> tuple[list[str], str]:
    """Running jobs to watch, and the cookie of somebody who may."""
    from backend.accounts.models import User
    from backend.jobs.models import Job

    user = User.objects.get(email="bench@example.org")
    first = Job.objects.get(pk=site.job)
    jobs = [first.pk]
    for _ in range(num_jobs - 1):
        from backend.jobs.submitting.submit import Submitter, submit_job
        from engine.spec.job import JobSpec

        made = submit_job(
            team=first.team,
            project=first.project,
            by=Submitter(user=user, key=None),
            spec=JobSpec.model_validate(first.spec),
            pool=first.pool,
            now=first.created_at,
        )
        jobs.append(made.pk)
    return jobs, signed_in()


def signed_in() -> str:
    """The cookie of a new session of the bench's user."""
    from importlib import import_module

    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY

    from backend.accounts.models import User

    user = User.objects.get(email="bench@example.org")
    session = import_module(settings.SESSION_ENGINE).SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    return f"{settings.SESSION_COOKIE_NAME}={session.session_key}"


def write(jobs: list[str], *, rate: float, until: float) -> dict[str, dict[int, float]]:
    """Of each job, when each cursor was committed."""
    written: dict[str, dict[int, float]] = {job: {} for job in jobs}
    with psycopg.connect(os.environ["LAMINAR_DATABASE_URL"], autocommit=True) as db:
        due = time.monotonic()
        while due < until:
            time.sleep(max(0.0, due - time.monotonic()))
            for job in jobs:
                with db.transaction():
                    row = db.execute(
                        "UPDATE jobs_job SET cursor = cursor + 1 WHERE id = %s RETURNING team_id, cursor", [job]
                    ).fetchone()
                    assert row is not None
                    db.execute("SELECT pg_notify('laminar_live', %s)", [f"{row[0]} {job} {row[1]}"])
                    at = time.monotonic()  # before the commit: what the database itself takes is counted too
                written[job][row[1]] = at
            due += 1 / rate
    return written


# ── the reading process ───────────────────────────────────────────────────────────────────────────────────────────────


async def read(order: Order) -> dict[str, Any]:
    watchers = [Watcher(job=order.jobs[at % len(order.jobs)]) for at in range(order.num_sockets)]
    opening = asyncio.Semaphore(20)
    chance = random.Random(3)
    cut = {id(watcher) for watcher in chance.sample(watchers, len(watchers) // 10)}
    middle = (order.starts_at + order.ends_at) / 2
    await asyncio.gather(
        *(watch(order, watcher, opening, middle if id(watcher) in cut else None) for watcher in watchers)
    )
    return {
        "heard": [[watcher.job, *each] for watcher in watchers for each in watcher.heard],
        "last": [[watcher.job, watcher.cursor] for watcher in watchers],
        "num_cuts": sum(watcher.num_cuts for watcher in watchers),
        "num_pulls": sum(watcher.num_pulls for watcher in watchers),
    }


async def watch(order: Order, watcher: Watcher, opening: asyncio.Semaphore, cut_at: float | None) -> None:
    """Until the end; comes back whenever it is cut off, as the page does."""
    headers = {"Cookie": order.cookie}
    while time.monotonic() < order.ends_at:
        try:
            async with opening:
                socket = await connect(
                    order.url,
                    origin=Origin(order.origin),
                    additional_headers=headers,
                    open_timeout=60,
                    compression=None,
                )
            async with socket:
                await socket.send(json.dumps({"watch": watcher.job}))
                await listen(order, watcher, socket, cut_at)
        except (ConnectionClosed, OSError, TimeoutError):
            await asyncio.sleep(0.5)
        if cut_at is not None and time.monotonic() >= cut_at:
            watcher.num_cuts += 1
            cut_at = None


async def listen(order: Order, watcher: Watcher, socket: ClientConnection, cut_at: float | None) -> None:
    ends_at = order.ends_at if cut_at is None else min(cut_at, order.ends_at)
    while (left := ends_at - time.monotonic()) > 0:
        try:
            frame = json.loads(await asyncio.wait_for(socket.recv(), left))
        except TimeoutError:
            break
        if "cursor" in frame:
            watcher.cursor = max(watcher.cursor, frame["cursor"])
            watcher.heard.append((frame["cursor"], time.monotonic()))
        else:
            watcher.num_pulls += 1
    if cut_at is not None and ends_at == cut_at:
        socket.transport.abort()  # as a network does it: without a word


def judged(
    written: dict[str, dict[int, float]], answers: list[dict[str, Any]], arguments: argparse.Namespace
) -> dict[str, Any]:
    late = sorted(
        1000 * (at - written[job][cursor])
        for answer in answers
        for job, cursor, at in answer["heard"]
        if cursor in written[job]
    )
    last = {job: max(cursors) for job, cursors in written.items()}
    missing = [row for answer in answers for row in answer["last"] if row[1] < last[row[0]]]
    return {
        "machine": machine(),
        "sockets": sum(len(answer["last"]) for answer in answers),
        "jobs": arguments.jobs,
        "updates_per_s": arguments.rate * arguments.jobs,
        "updates": sum(len(cursors) for cursors in written.values()),
        "nudges": len(late),
        "p50_ms": round(late[len(late) // 2], 1),
        "p99_ms": round(late[int(0.99 * len(late))], 1),
        "longest_ms": round(late[-1], 1),
        "num_cut_off": sum(answer["num_cuts"] for answer in answers),
        "num_missing": len(missing),
    }


if __name__ == "__main__":
    sys.exit(main())
