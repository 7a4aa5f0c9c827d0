"""A data set's way through the real server: uploaded by the client, fetched by a node, and what the web process held.

    python -m infra.local.testing -- python -m tests.bench.site.uploads --gigabytes 4

Client, server and node share this machine's disk and cores, and the store is a folder on it, so a byte is written three
times and hashed twice. `web_grew_mb` is the most that the web process held beyond what it held before.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread

import psutil

from frontend.client.laminar_client import Laminar
from tests.bench.site.ingest import machine
from tests.bench.site.served import Site, laminar

FILE_BYTES = 2**30
PIECE_BYTES = 2**24


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.site.uploads")
    parser.add_argument("--gigabytes", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, laminar(workers=1) as site:
        source = _files(Path(folder) / "rows", arguments.gigabytes)
        with _most_held(site) as held, Laminar(site.url, site.key) as client:
            began = time.perf_counter()
            asset = client.assets.upload(source, kind="data", name="large")
            uploaded_s = time.perf_counter() - began
            began = time.perf_counter()
            _fetch(site, asset.id, Path(folder) / "node")
            fetched_s = time.perf_counter() - began
        megabytes = arguments.gigabytes * 2**30 / 1e6
        row = {
            "gigabytes": arguments.gigabytes,
            "upload_mb_per_s": round(megabytes / uploaded_s, 1),
            "fetch_mb_per_s": round(megabytes / fetched_s, 1),
            "web_grew_mb": round(max(held) - held[0], 1),
        }
    print(json.dumps({"bench": "uploads", "machine": machine(), "rows": [row]}))
    return 0


def _files(folder: Path, number: int) -> Path:
    folder.mkdir()
    for each in range(number):
        with (folder / f"part-{each:03d}.parquet").open("wb") as file:
            for _ in range(FILE_BYTES // PIECE_BYTES):
                file.write(os.urandom(PIECE_BYTES))
    return folder


def _fetch(site: Site, asset_id: str, folder: Path) -> None:
    """As a node of a job that uses it."""
    from backend.accounts.models import Project, User
    from backend.assets.models import Asset
    from backend.jobs.attempts.launching import order_for
    from backend.jobs.models import JobAttempt
    from backend.jobs.queue.scheduling import schedule_pool
    from backend.jobs.submitting.submit import Submitter, submit_job
    from backend.pools.models import ResourcePool
    from engine.live.assets.fetching import Source
    from engine.spec.job import JobSpec

    asset, pool, now = Asset.objects.get(pk=asset_id), ResourcePool.objects.get(), datetime.now(UTC)
    assert asset.team is not None, "it was uploaded"
    spec = {"name": "Reads it", "environment": {"name": "jsonl", "params": {"data": asset.name}}}
    job = submit_job(
        by=Submitter(user=User.objects.get(), key=None),
        team=asset.team,
        project=Project.objects.get(),
        spec=JobSpec.model_validate(spec | {"rollout": {"replicas": 1}}),
        pool=pool,
        now=now,
    )
    schedule_pool(pool.pk, now=now)
    ordered = order_for(JobAttempt.objects.get(job=job)).assets
    assert ordered is not None, "the spec names it"
    source = Source(control_url=site.url, token=ordered.token)
    folder.mkdir()
    source.fill(folder, asset.pk, source.manifest(asset.pk, asset.sha256), report_progress=lambda: None)


@contextmanager
def _most_held(site: Site) -> Iterator[list[float]]:
    """Megabytes of the web process: before, and whenever it was looked at."""
    process, is_over = psutil.Process(site.process.pid), Event()

    def held() -> float:
        family = [process, *process.children(recursive=True)]
        return sum(each.memory_info().rss for each in family) / 1e6

    found = [held()]

    def look() -> None:
        while not is_over.wait(0.05):
            found.append(held())

    looking = Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        is_over.set()
        looking.join()


if __name__ == "__main__":
    sys.exit(main())
