"""Submissions a second through the real server: uvicorn, REST, Postgres; every job must be there afterwards, once.

    python -m infra.local.testing -- python -m tests.bench.site.submissions [--json]

Clients are coroutines of this process, each with a kept connection and an Idempotency-Key a job. They run on the same
cores as the server, so they write HTTP by hand: a client library would take a third of what is measured. `--workers`
starts several web processes, as a site with many users would.

`cpu_ms` is what one submission takes of a core, by who takes it: two cores give 2,000 ms a second, and the rate cannot
be more than that by the sum. It is also the number to compare on a machine that does other work.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from tests.bench.site.ingest import count, machine
from tests.bench.site.served import Site, laminar

BODY = {"spec": {"name": "One of many", "rollout": {"replicas": 2}}}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.site.submissions")
    parser.add_argument("--submissions", type=int, default=2_000, help="of one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2, help="web processes")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with laminar(workers=arguments.workers) as site:
        found = asyncio.run(_measured(site, _keys(arguments.clients), arguments))
    print(json.dumps(found) if arguments.json else "\n".join(f"{key}: {value}" for key, value in _flat(found)))
    return 0


def _keys(number: int) -> list[str]:
    """One a client, as rates are counted by key: that many submissions a second would never come from one."""
    from backend.accounts.models import Team, User
    from backend.accounts.services import create_api_key

    team, user = Team.objects.get(), User.objects.get()
    return [create_api_key(team=team, created_by=user, name=f"client {n}")[1] for n in range(number)]


async def _measured(site: Site, keys: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    project = httpx.get(f"{site.url}/api/v1/projects", headers={"Authorization": f"Bearer {site.key}"}).json()["data"]
    body = json.dumps({"project": project[0]["id"], **BODY}).encode()
    clients = [await Client.connected(site, key, body) for key in keys]
    await _round(clients, name="warm-up", submissions=400)
    before, spent = count("SELECT count(*) FROM jobs_job"), _cpu_seconds(site)
    rates: list[float] = []
    latencies: list[float] = []
    for number in range(arguments.rounds):
        seconds, waited = await _round(clients, name=f"round-{number}", submissions=arguments.submissions)
        rates.append(arguments.submissions / seconds)
        latencies += waited
    taken, total = _cpu_seconds(site), arguments.submissions * arguments.rounds
    made = count("SELECT count(*) FROM jobs_job") - before
    assert made == total, (made, "jobs were lost or doubled")
    cuts = statistics.quantiles(latencies, n=100)
    row = {
        "workers": arguments.workers,
        "clients": arguments.clients,
        "per_s": round(statistics.median(rates), 1),
        "per_s_min": round(min(rates), 1),
        "per_s_max": round(max(rates), 1),
        "rounds": len(rates),
        "p50_ms": round(cuts[49] * 1e3, 1),
        "p99_ms": round(cuts[98] * 1e3, 1),
        "cpu_ms": {who: round(1e3 * (taken[who] - spent[who]) / total, 2) for who in taken},
    }
    return {"bench": "submissions", "machine": machine(), "rows": [row]}


@dataclass(frozen=True, slots=True)
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: str
    body: bytes

    @classmethod
    async def connected(cls, site: Site, key: str, body: bytes) -> "Client":
        address = urlsplit(site.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        head = (
            f"POST /api/v1/jobs HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nIdempotency-Key: "
        )
        return cls(reader, writer, head, body)

    async def submit(self, key: str) -> None:
        self.writer.write(f"{self.head}{key}\r\n\r\n".encode() + self.body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        told = await self.reader.readexactly(length)
        assert answer.startswith(b"HTTP/1.1 202 "), answer + told


async def _round(clients: list[Client], *, name: str, submissions: int) -> tuple[float, list[float]]:
    """Seconds of the round, and of each answer."""
    waited: list[float] = []

    async def submit_share(share: int) -> None:
        for number in range(share, submissions, len(clients)):
            asked = time.perf_counter()
            await clients[share].submit(f"{name}-{number}")
            waited.append(time.perf_counter() - asked)

    started = time.perf_counter()
    await asyncio.gather(*(submit_share(share) for share in range(len(clients))))
    return time.perf_counter() - started, waited


def _cpu_seconds(site: Site) -> dict[str, float]:
    """So far, of the clients, the web processes and Postgres with all that they started."""
    port = str(urlsplit(os.environ["LAMINAR_DATABASE_URL"]).port)
    servers = [
        process for process in psutil.process_iter(["cmdline"])
        if (words := process.info["cmdline"] or [""])[0].endswith("postgres") and port in words
    ]  # fmt: skip
    assert len(servers) == 1, (servers, f"which one is the Postgres at {port}?")
    roots = {"clients": psutil.Process(), "web": psutil.Process(site.process.pid), "postgres": servers[0]}
    return {who: _of_family(root, alone=who == "clients") for who, root in roots.items()}


def _of_family(root: psutil.Process, *, alone: bool) -> float:
    family = [root] if alone else [root, *root.children(recursive=True)]
    times = [process.cpu_times() for process in family]
    ended = 0.0 if alone else sum(each.children_user + each.children_system for each in times)
    return ended + sum(each.user + each.system for each in times)


def _flat(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from found["rows"][0].items()


if __name__ == "__main__":
    sys.exit(main())
