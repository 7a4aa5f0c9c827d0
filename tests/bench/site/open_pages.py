"""A thousand open pages through a restart of the server: how soon is each equal to the database again?

    python -m infra.local.testing -- python -m tests.bench.site.open_pages [--pages 1000]

Real throughout: uvicorn, Postgres, a socket for each page, a session for every four. Every page does what lib/live.js
does: it connects again, is told the newest cursor, and pulls over its socket; without one it pulls over HTTP, every
15 s while its socket was only refused, else within 3 s of a try that hangs. The server gets SIGTERM, the job moves
on, a new server starts; the time counts from its first answer. One page that is not equal at the end fails the bench.
"""

import argparse
import asyncio
import itertools
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
from tests.bench.site.sockets import prepare, signed_in

NUM_READERS = 2  # processes that hold the pages: one alone would measure itself
TRY_EVERY_S, AFTER_FAILURE_S, SAFETY_NET_S, SOCKET_PATIENCE_S = 3.0, 1.25, 15.0, 10.0  # as in lib/live.js
FIRST_PAUSE_S, LONGEST_PAUSE_S, DEAF_AFTER_S, CONNECTS_WITHIN_S = 0.5, 2.0, 4.0, 8.0  # as in lib/socket.js
PAGES_OF_A_SESSION = 4
OPENS_WITHIN_S = 60.0
GIVES_UP_AFTER_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """For one reader process, which reports when all its pages are open, and each page's time once it has `wanted`."""

    url: str
    cookies: list[str]
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
    [job], _ = prepare(site, 1)
    cookies = [signed_in() for _ in range(num_pages // NUM_READERS // PAGES_OF_A_SESSION + 1)]
    now = moved_on(job, by=0)
    order = {"url": site.url, "cookies": cookies, "job": job, "num_pages": num_pages // NUM_READERS, "wanted": now + 7}
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
        "pulls_over_http": sum(answer["num_pulls"] for answer in answers),
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
    pages = [
        OpenPage(order, cookie, random.Random(chance.random()))
        for cookie, _ in zip(itertools.cycle(order.cookies), range(order.num_pages), strict=False)
    ]
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
    def __init__(self, order: Order, cookie: str, chance: random.Random) -> None:
        self._order, self._cookie, self._chance = order, cookie, chance
        self.was_open, self.is_equal = asyncio.Event(), asyncio.Event()
        self._wanted, self._may_go_on, self._answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.equal_at: float | None = None
        self.num_pulls = self._cursor = 0
        self._socket: Any = None
        self._was_deaf = False

    async def live(self, opening: asyncio.Semaphore) -> None:
        async with opening:
            await self._pull()
            await self._connect(OPENS_WITHIN_S)
        self.was_open.set()
        await asyncio.gather(self._keep_socket(), self._keep_up())

    async def _connect(self, patience_s: float = CONNECTS_WITHIN_S) -> None:
        url = self._order.url.replace("http", "ws") + "/ws/live"
        headers = {"Cookie": self._cookie}
        socket = await connect(
            url, origin=Origin(self._order.url), additional_headers=headers, open_timeout=patience_s, compression=None
        )
        await socket.send(json.dumps({"watch": self._order.job}))
        self._socket = socket

    async def _keep_socket(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            try:
                while True:
                    self._hear(json.loads(await asyncio.wait_for(self._socket.recv(), DEAF_AFTER_S)))
            except TimeoutError:
                self._was_deaf = True
                await self._socket.close()
            except ConnectionClosed:
                pass
            self._socket = None
            self._may_go_on.set()
            while self._socket is None:
                await asyncio.sleep(self._about(pause))
                pause = min(LONGEST_PAUSE_S, 2 * pause)
                try:
                    await self._connect()
                except TimeoutError:
                    self._was_deaf = True
                except (OSError, InvalidHandshake, ConnectionClosed):
                    pass
            pause = FIRST_PAUSE_S

    def _hear(self, said: dict[str, Any]) -> None:
        self._was_deaf = False
        if said.get("after") == self._cursor and "news" in said:
            self._is_now_at(said["news"]["cursor"])
            self._answered.set()
            self._may_go_on.set()
        elif said.get("cursor", 0) > self._cursor or "pull" in said:
            self._wanted.set()

    async def _keep_up(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), SAFETY_NET_S)
            while self._socket is None and not self._was_deaf:
                await asyncio.sleep(0.1)  # the socket returns; its first frame says whether there is news
            self._wanted.clear()
            if not await (self._asked() if self._socket is not None else self._tried()):
                self._wanted.set()
                await asyncio.sleep(self._about(AFTER_FAILURE_S))

    async def _asked(self) -> bool:
        """Over the socket. False: it was lost, or is too slow."""
        self._answered.clear()
        self._may_go_on.clear()
        with suppress(TimeoutError, ConnectionClosed, AttributeError):
            async with asyncio.timeout(SOCKET_PATIENCE_S):
                await self._socket.send(json.dumps({"pull": self._order.job, "after": self._cursor}))
                await self._may_go_on.wait()
        return self._answered.is_set()

    def _is_now_at(self, cursor: int) -> None:
        self._cursor = max(cursor, self._cursor)
        if self._cursor >= self._order.wanted and self.equal_at is None:
            self.equal_at = time.monotonic()
            self.is_equal.set()

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
            head = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nCookie: {self._cookie}\r\n"
            writer.write(f"{head}Accept: application/json\r\nConnection: close\r\n\r\n".encode())
            answer = (await reader.read(-1)).decode()
        finally:
            writer.close()
        found = re.search(r'"cursor":\s*(\d+)', answer)
        if not answer.startswith("HTTP/1.1 200") or found is None:
            raise OSError(answer[:100])
        self._is_now_at(int(found[1]))

    def _about(self, seconds: float) -> float:
        return seconds * (0.5 + self._chance.random())


if __name__ == "__main__":
    sys.exit(main())
