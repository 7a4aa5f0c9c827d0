"""Points of metrics a second, HTTP to HTTP: our server and MLflow's, one after the other on the same Postgres.

    python -m infra.local.testing -- python -m tests.bench.site.ingest [--json] [--read]

Both are one web process (`--workers` gives MLflow more) and are sent JSON over a kept connection, in batches as large
as each takes: MLflow 1,000 metrics a call, ours what the engine's shipper sends. One job has one sender, because its
facts come in order; `--senders` gives MLflow more. Every call must succeed, and the tables are counted afterwards.

`--read` adds a series of a million points, written the same way, read down-sampled through REST.
MLflow is installed by this bench into `.laminar/mlflow`, an environment of its own.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import psycopg

from infra.local.ports import free_port
from tests.bench.site.served import ROOT, Site, laminar, served

MLFLOW = "3.17.2"
DRIVER = "2.9.13"
NUM_SERIES = 50
MLFLOW_BATCH = 1_000
MAX_FACTS, MAX_BYTES = 200, 512 * 1024  # as engine/sinks/http_shipper.py


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.site.ingest", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--points", type=int, default=300_000, help="sent to us; MLflow gets a tenth")
    parser.add_argument("--series", type=int, default=NUM_SERIES)
    parser.add_argument("--senders", type=int, default=1, help="to MLflow, each with a run of its own")
    parser.add_argument("--workers", type=int, default=1, help="processes of MLflow's server; ours is always one")
    parser.add_argument("--read", action="store_true", help="a series of a million points, down-sampled")
    parser.add_argument("--no-mlflow", action="store_true", help="only ours")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with laminar() as site:
        found: dict[str, Any] = {"machine": machine(), "series": arguments.series}
        found["laminar"] = ours(site, num_points=arguments.points, num_series=arguments.series)
        if not arguments.no_mlflow:
            found["mlflow"] = theirs(num_points=arguments.points // 10, arguments=arguments)
            found["ratio"] = round(found["laminar"]["points_per_s"] / found["mlflow"]["points_per_s"], 1)
        if arguments.read:
            found["read"] = a_million_read(site, from_seq=found["laminar"]["facts"] + 1)
    print(json.dumps(found) if arguments.json else told(found))
    return 0


def machine() -> dict[str, Any]:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cores": os.cpu_count(), "memory_gb": round(memory_gb), "python": platform.python_version()}


# ── ours ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def ours(site: Site, *, num_points: int, num_series: int) -> dict[str, Any]:
    """One driver that ships its facts, as fast as they are taken."""
    chance = random.Random(1)
    names = [f"bench/metric_{index}" for index in range(num_series)]
    num_facts = num_points // num_series
    lines = [
        fact(seq, {"type": "step_trained", "step": seq, "metrics": {name: chance.gauss(0, 1) for name in names}})
        for seq in range(1, num_facts + 1)
    ]
    seconds = ship(site, lines, first_seq=1)
    stored = count("SELECT count(*) FROM telemetry_metricpoint")
    assert stored == num_facts * num_series, (stored, num_facts * num_series)
    return {"points": stored, "facts": num_facts, "seconds": round(seconds, 2), "points_per_s": round(stored / seconds)}


def fact(seq: int, body: dict[str, Any]) -> bytes:
    return json.dumps({"seq": seq, "at": "2026-11-21T20:00:00Z", "body": body}, separators=(",", ":")).encode()


def ship(site: Site, lines: list[bytes], *, first_seq: int) -> float:
    bodies = [batch(site, part) for part in parcels(lines)]
    headers = {"Authorization": f"Bearer {site.token}", "Content-Type": "application/json"}
    with httpx.Client(base_url=site.url, headers=headers, timeout=60) as client:
        started = time.perf_counter()
        for body in bodies:
            answer = client.post("/internal/engine/facts", content=body)
            assert answer.status_code == 200, answer.text
        seconds = time.perf_counter() - started
    assert answer.json()["acked"] == first_seq + len(lines) - 1
    return seconds


def parcels(lines: list[bytes]) -> list[list[bytes]]:
    found: list[list[bytes]] = [[]]
    num_bytes = 0
    for line in lines:
        if found[-1] and (len(found[-1]) == MAX_FACTS or num_bytes + len(line) > MAX_BYTES):
            found.append([])
            num_bytes = 0
        found[-1].append(line)
        num_bytes += len(line)
    return found


def batch(site: Site, lines: list[bytes]) -> bytes:
    return f'{{"attempt":1,"fence":{site.fence},"facts":['.encode() + b",".join(lines) + b"]}"


# ── MLflow ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def theirs(*, num_points: int, arguments: argparse.Namespace) -> dict[str, Any]:
    python = install_mlflow()
    database = os.environ["LAMINAR_DATABASE_URL"]
    execute("CREATE DATABASE mlflow_bench")
    store = database.rsplit("/", 1)[0].replace("postgresql://", "postgresql+psycopg2://") + "/mlflow_bench"
    port = free_port()
    command = [str(python), "-m", "mlflow", "server", "--backend-store-uri", store, "--host", "127.0.0.1"]
    command += [
        "--port",
        str(port),
        "--workers",
        str(arguments.workers),
        "--artifacts-destination",
        "/tmp/mlflow-bench",
    ]
    command += ["--uvicorn-opts", "--log-level warning --no-access-log"]  # ours writes no line a request either
    quiet = dict(os.environ) | {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    with ExitStack() as stack:
        stack.enter_context(served(command, f"http://127.0.0.1:{port}/health", environment=quiet))
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}/api/2.0/mlflow", timeout=120))
        runs = [
            client.post("/runs/create", json={"experiment_id": "0"}).raise_for_status().json()["run"]["info"]["run_id"]
            for _ in range(arguments.senders)
        ]
        bodies = {run: mlflow_bodies(run, num_points // len(runs), arguments.series) for run in runs}

        def send(run: str) -> None:
            for body in bodies[run]:
                answer = client.post("/runs/log-batch", content=body, headers={"Content-Type": "application/json"})
                assert answer.status_code == 200, answer.text

        with ThreadPoolExecutor(len(runs)) as senders:
            started = time.perf_counter()
            list(senders.map(send, runs))
            seconds = time.perf_counter() - started
    stored = count("SELECT count(*) FROM metrics", database="mlflow_bench")
    expected = sum(len(bodies[run]) for run in runs) * MLFLOW_BATCH
    assert stored == expected, (stored, expected)
    return {
        "version": MLFLOW,
        "points": stored,
        "senders": len(runs),
        "workers": arguments.workers,
        "seconds": round(seconds, 2),
        "points_per_s": round(stored / seconds),
    }


def mlflow_bodies(run: str, num_points: int, num_series: int) -> list[bytes]:
    chance = random.Random(1)
    metrics = [
        {
            "key": f"bench/metric_{at % num_series}",
            "value": chance.gauss(0, 1),
            "timestamp": 1_795_000_000_000 + at // num_series,
            "step": at // num_series,
        }
        for at in range(num_points)
    ]
    return [
        json.dumps({"run_id": run, "metrics": metrics[at : at + MLFLOW_BATCH]}).encode()
        for at in range(0, num_points - MLFLOW_BATCH + 1, MLFLOW_BATCH)
    ]


def install_mlflow() -> Any:
    folder = ROOT / ".laminar" / "mlflow"
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "-q", "--allow-existing", "--python", sys.executable, str(folder)], check=True)
        wanted = [f"mlflow=={MLFLOW}", f"psycopg2-binary=={DRIVER}"]
        subprocess.run([*uv, "pip", "install", "-q", "--python", str(python), *wanted], check=True)
        (folder / "installed").write_text(MLFLOW)
    return python


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_million_read(site: Site, *, from_seq: int) -> dict[str, Any]:
    """Written as facts of one metric each, so the rollups are made on the way as for any job."""
    chance, num_points = random.Random(2), 1_000_000
    seconds = 0.0
    for first in range(1, num_points + 1, 100_000):
        lines = [
            fact(
                from_seq + step - 1,
                {"type": "step_trained", "step": step, "metrics": {"bench/long": chance.gauss(step / 1e6, 1)}},
            )
            for step in range(first, first + 100_000)
        ]
        seconds += ship(site, lines, first_seq=from_seq + first - 1)
    found: dict[str, Any] = {"points": num_points, "written_points_per_s": round(num_points / seconds)}
    with httpx.Client(base_url=site.url, headers={"Authorization": f"Bearer {site.key}"}, timeout=60) as client:
        path = f"/api/v1/jobs/{site.job}/metrics"
        asked = {
            "whole": {},
            "a tenth": {"from_step": 400_001, "to_step": 500_000},
            "ten thousand steps": {"from_step": 123_456, "to_step": 133_455},
        }
        for what, span in asked.items():
            times = []
            for _ in range(60):
                started = time.perf_counter()
                answer = client.get(path, params={"names": "bench/long", "max_points": 500, **span})
                times.append(time.perf_counter() - started)
                line = answer.raise_for_status().json()["series"]["bench/long"]
                assert 250 <= len(line) <= 500
            times = sorted(times[10:])
            found[what] = {
                "p50_ms": round(1000 * statistics.median(times), 1),
                "p95_ms": round(1000 * times[int(0.95 * len(times))], 1),
            }
    return found


# ── both ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def count(query: str, *, database: str | None = None) -> int:
    url = os.environ["LAMINAR_DATABASE_URL"]
    with psycopg.connect(url if database is None else f"{url.rsplit('/', 1)[0]}/{database}") as db:
        row = db.execute(query).fetchone()
        assert row is not None
        return int(row[0])


def execute(statement: str) -> None:
    with psycopg.connect(os.environ["LAMINAR_DATABASE_URL"], autocommit=True) as db:
        db.execute(statement)


def told(found: dict[str, Any]) -> str:
    lines = [f"machine  {found['machine']}", f"laminar  {found['laminar']}"]
    lines += [f"{name}  {found[name]}" for name in ("mlflow", "ratio", "read") if name in found]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
