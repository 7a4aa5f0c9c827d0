"""A thousand open pages through a restart of the server: how soon is each equal to the database again?

    python -m infra.local.testing -- python -m tests.bench.site.open_pages [--pages 1000]

Real throughout: uvicorn, Postgres, a socket and a connection for each page, with a session's cookie. Every page does
what lib/live.js does: it pulls on a lost socket and on an opened one, tries again about 1.25 s after a failure, and
within 3 s of a try that hangs. The server is ended by SIGTERM, the job moves on, a new server starts; the time counts
from its first answer. One page that is not equal at the end fails the bench.
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psycopg
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Origin

from tests.bench.site.ingest import machine
from tests.bench.site.served import Site, laminar, served, uvicorn
from tests.bench.site.sockets import prepare

NUM_READERS = 2  # processes that hold the pages: one alone would measure itself
TRY_EVERY_S, AFTER_FAILURE_S, POLL_S = 3.0, 1.25, 3.0  # as in lib/live.js
FIRST_PAUSE_S, LONGEST_PAUSE_S, DEAF_AFTER_S = 0.5, 2.0, 4.0  # as in lib/socket.js
OPENS_WITHIN_S = 60.0
GIVES_UP_AFTER_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """For one reader process, which reports when all its pages are open, and each page's time once it has `wanted`."""

    url: str
    cookie: str
    job: str
    num_pages: int
    wanted: int
    seed: int


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.site.open_pages", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--pages", type=int, default=1_000)
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader is not None:
        asyncio.run(read(Order(**json.loads(arguments.reader))))
        return 0
    with laminar() as site:
        found = measure(site, arguments.pages)
    print("\n".join(f"{name}  {value}" for name, value in found.items()))
    return 0 if found["num_missing"] == 0 else 1


def measure(site: Site, num_pages: int) -> dict[str, Any]:
    [job], cookie = prepare(site, 1)
    now = moved_on(job, by=0)
    order = {"url": site.url, "cookie": cookie, "job": job, "num_pages": num_pages // NUM_READERS, "wanted": now + 7}
    readers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.site.open_pages", "--reader", json.dumps(order | {"seed": seed})],
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(NUM_READERS)
    ]
    for reader in readers:
        assert reader.stdout is not None and reader.stdout.readline() == "open\n"
    site.process.terminate()
    site.process.wait(30)
    moved_on(job, by=7)
    with served(uvicorn(urlsplit(site.url).port or 0), f"{site.url}/healthz", environment=dict(os.environ)):
        answered_at = time.monotonic()
        answers = [json.loads(reader.communicate(timeout=2 * GIVES_UP_AFTER_S)[0]) for reader in readers]
    late = sorted(max(0.0, at - answered_at) for answer in answers for at in answer["equal_at"])
    return {
        "machine": machine(),
        "pages": num_pages,
        "median_s": round(statistics.median(late), 2),
        "p95_s": round(late[int(0.95 * len(late))], 2),
        "longest_s": round(late[-1], 2),
        "pulls": sum(answer["num_pulls"] for answer in answers),
        "num_missing": num_pages - len(late),
    }


def moved_on(job: str, *, by: int) -> int:
    with psycopg.connect(os.environ["LAMINAR_DATABASE_URL"], autocommit=True) as db:
        row = db.execute(
            "UPDATE jobs_job SET cursor = cursor + %s WHERE id = %s RETURNING cursor", [by, job]
        ).fetchone()
    assert row is not None
    return int(row[0])


# ── the reading process ───────────────────────────────────────────────────────────────────────────────────────────────


async def read(order: Order) -> None:
    chance = random.Random(order.seed)
    pages = [OpenPage(order, random.Random(chance.random())) for _ in range(order.num_pages)]
    opening = asyncio.Semaphore(20)
    living = [asyncio.create_task(page.live(opening)) for page in pages]
    async with asyncio.timeout(OPENS_WITHIN_S + order.num_pages / 10):
        await asyncio.gather(*(page.was_open.wait() for page in pages))
    print("open", flush=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(GIVES_UP_AFTER_S):
            await asyncio.gather(*(page.is_equal.wait() for page in pages))
    found = [page.equal_at for page in pages if page.equal_at is not None]
    print(json.dumps({"equal_at": found, "num_pulls": sum(page.num_pulls for page in pages)}), flush=True)
    for task in living:
        task.cancel()


class OpenPage:
    def __init__(self, order: Order, chance: random.Random) -> None:
        self._order, self._chance = order, chance
        self.was_open, self.is_equal, self._wanted = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.equal_at: float | None = None
        self.num_pulls = self._cursor = 0
        self._is_socket_open = False

    async def live(self, opening: asyncio.Semaphore) -> None:
        async with opening:
            await self._pull()
            socket = await self._connect(OPENS_WITHIN_S)
        self.was_open.set()
        await asyncio.gather(self._keep_socket(socket), self._keep_up())

    async def _connect(self, patience_s: float = DEAF_AFTER_S) -> Any:
        url = self._order.url.replace("http", "ws") + "/ws/live"
        headers = {"Cookie": self._order.cookie}
        socket = await connect(
            url, origin=Origin(self._order.url), additional_headers=headers, open_timeout=patience_s, compression=None
        )
        await socket.send(json.dumps({"watch": self._order.job}))
        self._is_socket_open = True
        return socket

    async def _keep_socket(self, socket: Any) -> None:
        pause = FIRST_PAUSE_S
        while True:
            with suppress(ConnectionClosed, TimeoutError):
                while True:
                    said = json.loads(await asyncio.wait_for(socket.recv(), DEAF_AFTER_S))
                    if said.get("cursor", 0) > self._cursor or "pull" in said:
                        self._wanted.set()
            self._is_socket_open = False
            self._wanted.set()
            while not self._is_socket_open:
                await asyncio.sleep(self._about(pause))
                pause = min(LONGEST_PAUSE_S, 2 * pause)
                with suppress(OSError, TimeoutError, InvalidHandshake, ConnectionClosed):
                    socket = await self._connect()
            pause = FIRST_PAUSE_S
            self._wanted.set()

    async def _keep_up(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), None if self._is_socket_open else POLL_S)
            self._wanted.clear()
            if not await self._tried():
                self._wanted.set()
                await asyncio.sleep(self._about(AFTER_FAILURE_S))

    async def _tried(self) -> bool:
        """Keeps the oldest try. Every 2 to 3 s a new try begins in parallel, in place of the second one."""
        tries = [asyncio.create_task(self._pull())]
        while True:
            done, _ = await asyncio.wait(
                tries, timeout=TRY_EVERY_S * (2 + self._chance.random()) / 3, return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                good = any(each.exception() is None for each in done)
                for each in tries:
                    each.cancel()
                await asyncio.gather(*tries, return_exceptions=True)
                return good
            if len(tries) == 2:
                tries.pop().cancel()
            tries.append(asyncio.create_task(self._pull()))

    async def _pull(self) -> None:
        self.num_pulls += 1
        parts = urlsplit(self._order.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            path = f"/jobs/{self._order.job}/live?after={self._cursor}"
            head = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nCookie: {self._order.cookie}\r\n"
            writer.write(f"{head}Accept: application/json\r\nConnection: close\r\n\r\n".encode())
            answer = (await reader.read(-1)).decode()
        finally:
            writer.close()
        found = re.search(r'"cursor":\s*(\d+)', answer)
        if not answer.startswith("HTTP/1.1 200") or found is None:
            raise OSError(answer[:100])
        self._cursor = int(found[1])
        if self._cursor >= self._order.wanted and self.equal_at is None:
            self.equal_at = time.monotonic()
            self.is_equal.set()

    def _about(self, seconds: float) -> float:
        return seconds * (0.5 + self._chance.random())


if __name__ == "__main__":
    sys.exit(main())
