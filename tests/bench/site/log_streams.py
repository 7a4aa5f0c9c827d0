"""Followed logs under load: hundreds of streams of one web process, a tenth of them cut off and back.

    python -m infra.local.testing -- python -m tests.bench.site.log_streams [--json]

Real throughout: uvicorn, Postgres, NOTIFY, the hub, Server-Sent Events over HTTP. A writer stores batches of lines as
ingest does; a line is as late as the stream gives it after its commit began. At the end every listener must have had
every line once and in order, or the bench fails. Clients, web and Postgres share the machine.
"""

import argparse
import asyncio
import json
import random
import statistics
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.bench.site.ingest import machine
from tests.bench.site.served import Site, laminar

LINES_A_BATCH = 5
STREAMS_A_KEY = 10
SETTLES_WITHIN_S = 30.0


@dataclass(slots=True, kw_only=True)
class Listener:
    key: str
    last_id: str = ""
    heard: list[tuple[int, float]] = field(default_factory=list)
    num_cuts: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.site.log_streams")
    parser.add_argument("--streams", type=int, default=300)
    parser.add_argument("--rate", type=float, default=5.0, help="batches a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with laminar() as site:
        found = asyncio.run(measure(site, arguments))
    print(json.dumps(found) if arguments.json else "\n".join(f"{name}  {value}" for name, value in found.items()))
    return 0 if found["num_wrong"] == 0 else 1


async def measure(site: Site, arguments: argparse.Namespace) -> dict[str, Any]:
    keys = await asyncio.to_thread(make_keys, site, -(-arguments.streams // STREAMS_A_KEY))
    listeners = [Listener(key=keys[at // STREAMS_A_KEY]) for at in range(arguments.streams)]
    before = of_process(site.process.pid)
    cut = {id(each) for each in random.Random(3).sample(listeners, len(listeners) // 10)}
    written: list[float] = []
    opening, opened = asyncio.Semaphore(20), asyncio.Barrier(len(listeners) + 1)
    tasks = [asyncio.create_task(listen(site, each, opening, opened, id(each) in cut)) for each in listeners]
    await opened.wait()
    during = of_process(site.process.pid)
    writer = threading.Thread(target=write, args=(site.job, arguments.rate, arguments.seconds, written))
    writer.start()
    await asyncio.to_thread(writer.join)
    num_lines, deadline = len(written), time.monotonic() + SETTLES_WITHIN_S
    while any(len(each.heard) < num_lines for each in listeners) and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    late = sorted(
        1_000 * (at - written[number]) for each in listeners if not each.num_cuts for number, at in each.heard
    )
    wrong = [each for each in listeners if [number for number, _ in each.heard] != list(range(num_lines))]
    return {
        "num_streams": len(listeners), "num_lines": num_lines, "num_cuts": sum(each.num_cuts for each in listeners),
        "num_wrong": len(wrong), "p50_ms": round(statistics.median(late), 1),
        "p99_ms": round(late[int(len(late) * 0.99)], 1), "threads_before": before[0], "threads_with_all": during[0],
        "megabytes_before": before[1], "megabytes_with_all": during[1], "machine": machine(),
    }  # fmt: skip


async def listen(
    site: Site, listener: Listener, opening: asyncio.Semaphore, opened: asyncio.Barrier, is_cut: bool
) -> None:
    """Forever; comes back whenever it is cut off. The one that is cut reads forty lines, and half of another."""
    address, first = urlsplit(site.url), True
    while True:
        async with opening:
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(request(site, listener).encode())
            status = (await reader.readline()).split()[1]
            assert status == b"200", status
            while await reader.readline() != b"\r\n":
                pass
        if first:
            await opened.wait()
            first = False
        try:
            await read(reader, listener, cut_after=40 if is_cut and not listener.num_cuts else None)
        finally:
            writer.transport.abort()
        listener.num_cuts += 1
        await asyncio.sleep(0.3)


def request(site: Site, listener: Listener) -> str:
    lines = [f"GET /api/v1/jobs/{site.job}/logs/stream?tail=0 HTTP/1.1", "Host: 127.0.0.1",
             f"Authorization: Bearer {listener.key}"]  # fmt: skip
    if listener.last_id:
        lines.append(f"Last-Event-ID: {listener.last_id}")
    return "\r\n".join(lines) + "\r\n\r\n"


async def read(reader: asyncio.StreamReader, listener: Listener, *, cut_after: int | None) -> None:
    """Chunk sizes are lines of their own, which are skipped: no line of a frame spans two chunks."""
    place = ""
    while line := await reader.readline():
        if line.startswith(b"id: "):
            place = line[4:].decode().strip()
        elif line.startswith(b"data: "):
            listener.heard.append((int(json.loads(line[6:])["message"]), time.monotonic()))
            listener.last_id = place
            if cut_after is not None and len(listener.heard) >= cut_after:
                return


def write(job_id: str, rate: float, seconds: float, written: list[float]) -> None:
    from django.db import connection, transaction

    from backend.jobs.lifecycle import locked_job, next_cursor
    from backend.telemetry.logs.batches import store_lines
    from engine.spec.facts import LogLines

    due = time.monotonic()
    ends_at = due + seconds
    while due < ends_at:
        time.sleep(max(0.0, due - time.monotonic()))
        now = datetime.now(UTC)
        numbers = range(len(written), len(written) + LINES_A_BATCH)
        lines = [{"at": now, "level": "info", "message": str(number)} for number in numbers]
        with transaction.atomic():
            job = locked_job(job_id)
            body = LogLines.model_validate({"component": "driver", "lines": lines})
            store_lines(job, 1, body, cursor=next_cursor(job), now=now)
            written += [time.monotonic()] * LINES_A_BATCH
        due += 1 / rate
    connection.close()


def make_keys(site: Site, num: int) -> list[str]:
    from django.db import connection

    from backend.accounts.models import User
    from backend.accounts.services import create_api_key
    from backend.jobs.models import Job

    user, team = User.objects.get(email="bench@example.org"), Job.objects.get(pk=site.job).team
    made = [create_api_key(team=team, created_by=user, name=f"{each}", scopes=("jobs:read",))[1] for each in range(num)]
    connection.close()
    return made


def of_process(pid: int) -> tuple[int, int]:
    """Its threads, and its memory in megabytes."""
    told = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(told["Threads"]), int(told["VmRSS"].split()[0]) // 1_024


if __name__ == "__main__":
    raise SystemExit(main())
