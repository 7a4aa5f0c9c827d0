"""Submissions a second through the real server: uvicorn, REST, Postgres; every job must be there afterwards, once.

    .laminar/venv/bin/python -m infra.local.testing -- .laminar/venv/bin/python -m tests.bench.submissions [--json]

Clients are threads of this process with a kept connection and an Idempotency-Key a job, so they take their share of the
same cores. `--workers` starts several web processes, as a site with many users would.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx

from tests.bench.ingest import count, machine
from tests.bench.served import Site, laminar

BODY = {"spec": {"name": "One of many", "rollout": {"replicas": 2}}}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.submissions")
    parser.add_argument("--submissions", type=int, default=2_000, help="of one round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2, help="web processes")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with laminar(workers=arguments.workers) as site, _clients(site, arguments.clients) as clients:
        project = clients[0].get("/api/v1/projects").json()["data"][0]["id"]
        _round(clients, project, name="warm-up", submissions=200)
        before = count("SELECT count(*) FROM jobs_job")
        rates, latencies = [], []
        for number in range(arguments.rounds):
            seconds, waited = _round(clients, project, name=f"round-{number}", submissions=arguments.submissions)
            rates.append(arguments.submissions / seconds)
            latencies += waited
        made = count("SELECT count(*) FROM jobs_job") - before
        assert made == arguments.submissions * arguments.rounds, (made, "jobs were lost or doubled")
    cuts = statistics.quantiles(latencies, n=100)
    found = {
        "bench": "submissions",
        "machine": machine(),
        "rows": [
            {
                "workers": arguments.workers,
                "clients": arguments.clients,
                "per_s": round(statistics.median(rates), 1),
                "per_s_min": round(min(rates), 1),
                "per_s_max": round(max(rates), 1),
                "rounds": len(rates),
                "p50_ms": round(cuts[49] * 1e3, 1),
                "p99_ms": round(cuts[98] * 1e3, 1),
            }
        ],
    }
    print(json.dumps(found) if arguments.json else "\n".join(f"{key}: {value}" for key, value in _flat(found)))
    return 0


def _round(clients: list[httpx.Client], project: str, *, name: str, submissions: int) -> tuple[float, list[float]]:
    """Seconds of the round, and of each answer."""

    def submit_share(share: int) -> list[float]:
        waited = []
        for number in range(share, submissions, len(clients)):
            asked = time.perf_counter()
            answer = clients[share].post(
                "/api/v1/jobs", json={"project": project, **BODY}, headers={"Idempotency-Key": f"{name}-{number}"}
            )
            assert answer.status_code == 202, answer.text
            waited.append(time.perf_counter() - asked)
        return waited

    started = time.perf_counter()
    with ThreadPoolExecutor(len(clients)) as pool:
        waited = [each for share in pool.map(submit_share, range(len(clients))) for each in share]
    return time.perf_counter() - started, waited


@contextmanager
def _clients(site: Site, number: int) -> Iterator[list[httpx.Client]]:
    headers = {"Authorization": f"Bearer {site.key}"}
    clients = [httpx.Client(base_url=site.url, headers=headers, timeout=30) for _ in range(number)]
    yield clients
    for client in clients:
        client.close()


def _flat(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from found["rows"][0].items()


if __name__ == "__main__":
    sys.exit(main())
