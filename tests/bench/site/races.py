"""Many clients race for a pool of eight, over HTTP against the real service, while its processes are killed at random.

    python -m tests.bench.site.races --submissions 10000 --clients 64 [--json]

Real: web server, workers, beat, Valkey, Postgres, every line of the control plane. Faked: the engine, as a process on
the other side of the wire (`fake_engine`). Some hundred jobs are queued all the time (`--open`): with thousands it
would measure how long a round over a long line takes, which `scheduler` does. Exit code 0 only if nothing was oversold,
lost, doubled or left behind:

- oversold: devices held, by the reservations (watched all the time) and by the engine's own books;
- lost: submissions that were answered 202 and never ended, or are not there;
- doubled: one submission that became two jobs, or one job that ran twice at once;
- drift: what is still held, claimed, wanted or open when every job has ended; gaps in an event log; bad endings.
"""

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
import psycopg

from tests.bench.site.races_world import CAPACITY, VICTIMS, RaceSite, race_site

RETRIED = {409, 429, 500, 502, 503, 504}  # 409 in_flight: our own twin, whose answer was cut off
WATCH_EVERY_S = 0.02
COUNT_EVERY = 5  # looks
TELL_EVERY = 200 * COUNT_EVERY
BURST_WITHIN_S = 30.0
BURST_LASTS_S = 0.2
MOST_OPEN = 500
SETTLES_WITHIN_S = 90.0  # once the killing has stopped, beyond what a job takes
SECONDS_A_JOB = 3.0  # far more than one takes on an idle machine: the deadline of the whole race


@dataclass(slots=True)
class Report:
    submissions: int
    clients: int
    seconds: float = 0.0
    answered: int = 0
    retries: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    worst_held: int = 0
    worst_running: int = 0
    worst_open: int = 0
    looks: int = 0
    resized: int = 0
    oversold: int = 0
    lost: int = 0
    doubled: int = 0
    drift: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (self.oversold or self.lost or self.doubled or self.drift)


@dataclass(slots=True)
class Client:
    """A client that submits its share, each job once whatever happens to the answer, and cancels some of them."""

    number: int
    key: str
    project: str
    url: str
    rng: random.Random
    room: threading.Event
    """True if the line is short enough to join it."""
    over: threading.Event
    names: list[str] = field(default_factory=list)
    retries: int = 0

    def run(self, share: int) -> None:
        headers = {"Authorization": f"Bearer {self.key}"}
        with httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=30, trust_env=False) as http:
            for n in range(share):
                self.room.wait()
                job = self._until_answered(
                    http, "/jobs", self._body(n), key=str(uuid.UUID(int=self.rng.getrandbits(128)))
                )
                self.names.append(job["name"])
                if self.rng.random() < 0.1:
                    self._until_answered(http, f"/jobs/{job['id']}/cancel", None, key=None)

    def _body(self, n: int) -> dict[str, Any]:
        replicas = self.rng.choice([1, 1, 1, 2, 3])
        placement: dict[str, Any] = {"preemptible": self.rng.random() < 0.5, "priority": self.rng.randint(-1, 1)}
        if self.rng.random() < 0.3:
            replicas, placement["min_replicas"] = replicas + 2, 1
        if not placement["preemptible"]:
            placement["min_replicas"] = 1  # two devices: within the smaller team's quota
        spec = {
            "name": f"race-{self.number}-{n}",
            "training": {"steps": 2, "checkpoint_every": 2},
            "rollout": {"replicas": replicas},
            "placement": placement,
        }
        return {"project": self.project, "spec": spec}

    def _until_answered(self, http: httpx.Client, path: str, body: Any, *, key: str | None) -> dict[str, Any]:
        headers = {"Idempotency-Key": key} if key else {}
        while not self.over.is_set():
            try:
                answer = http.post(path, json=body, headers=headers)
            except httpx.HTTPError:
                self.retries += 1
                time.sleep(0.1 + self.rng.random() * 0.2)
                continue
            finished = key is None and answer.status_code == 409 and answer.json()["code"] == "invalid_state"
            if answer.status_code in {200, 202} or finished:
                found: dict[str, Any] = answer.json()
                return found
            if answer.status_code not in RETRIED:
                raise RuntimeError(f"{path}: {answer.status_code} {answer.text}")
            self.retries += 1
            time.sleep(0.1 + self.rng.random() * 0.2)
        raise RuntimeError("the race was broken off")


def race(*, submissions: int, clients: int, seed: int, kill_every_s: float, most_open: int = MOST_OPEN) -> Report:
    report = Report(submissions=submissions, clients=clients)
    began = time.monotonic()
    with race_site(clients, seed=seed) as (site, keys):
        over, room = threading.Event(), threading.Event()
        room.set()
        killer = threading.Thread(target=_kill_at_random, args=(site, random.Random(seed), kill_every_s, over, room))
        watcher = threading.Thread(target=_watch, args=(site, report, over, room, most_open))
        racing = [
            Client(
                number=n,
                url=site.url,
                rng=random.Random(seed * 1_000 + n),
                key=keys[n]["key"],
                project=keys[n]["project"],
                room=room,
                over=over,
            )
            for n in range(clients)
        ]
        shares = [submissions // clients + (n < submissions % clients) for n in range(clients)]
        killer.start()
        watcher.start()
        try:
            with ThreadPoolExecutor(clients) as threads:
                try:
                    list(threads.map(lambda pair: pair[0].run(pair[1]), zip(racing, shares, strict=True)))
                except BaseException:
                    over.set()  # or the other clients would run to their end before the error is raised
                    raise
            _wait_until_mostly_done(site, submissions)
        finally:
            over.set()
            killer.join()
            watcher.join()
        _settle(site)
        report.seconds = round(time.monotonic() - began, 1)
        report.kills = dict(site.kills)
        report.retries = sum(one.retries for one in racing)
        _audit(site, report, [name for one in racing for name in one.names])
    return report


def _kill_at_random(
    site: RaceSite, rng: random.Random, every_s: float, over: threading.Event, room: threading.Event
) -> None:
    while not over.wait(every_s * (0.5 + rng.random())):
        kind = rng.choice(VICTIMS)
        if kind == "web process":
            _wait_for_submissions(rng, room)
        site.kill_one(kind, rng)
        site.revive()


def _wait_for_submissions(rng: random.Random, room: threading.Event) -> None:
    """Clients submit in bursts, whenever the line has become shorter: then a web process has something to lose."""
    if room.wait(BURST_WITHIN_S):
        time.sleep(rng.random() * BURST_LASTS_S)


def _watch(site: RaceSite, report: Report, over: threading.Event, room: threading.Event, most_open: int) -> None:
    try:
        with psycopg.connect(site.site.postgres.url(), autocommit=True) as db:
            while not over.wait(WATCH_EVERY_S):
                row = db.execute("SELECT COALESCE(SUM(devices), 0) FROM pools_reservation WHERE released_at IS NULL")
                report.worst_held = max(report.worst_held, int(row.fetchone()[0]))  # type: ignore[index]
                report.looks += 1
                if report.looks % COUNT_EVERY == 0:
                    num_open = _open_jobs(db)
                    report.worst_open = max(report.worst_open, num_open)
                    (room.set if num_open < most_open else room.clear)()
                if report.looks % TELL_EVERY == 0:
                    told = f"{_ended_jobs(db)} jobs have ended, {num_open} are open, {sum(site.kills.values())} kills"
                    print(told, file=sys.stderr, flush=True)
    finally:
        room.set()  # no other thread would open it


def _open_jobs(db: psycopg.Connection[Any]) -> int:
    found = db.execute("SELECT COUNT(*) FROM jobs_job WHERE state NOT IN ('succeeded', 'failed', 'cancelled')")
    return int(found.fetchone()[0])  # type: ignore[index]


def _ended_jobs(db: psycopg.Connection[Any]) -> int:
    found = db.execute("SELECT COUNT(*) FROM jobs_job WHERE state IN ('succeeded', 'failed', 'cancelled')")
    return int(found.fetchone()[0])  # type: ignore[index]


def _wait_until_mostly_done(site: RaceSite, submissions: int) -> None:
    """Waits until no job is open, up to a deadline. Kills continue meanwhile."""
    deadline = time.monotonic() + SETTLES_WITHIN_S + submissions * SECONDS_A_JOB
    with psycopg.connect(site.site.postgres.url(), autocommit=True) as db:
        while _open_jobs(db) > 0 and time.monotonic() < deadline:
            time.sleep(0.2)


def _settle(site: RaceSite) -> None:
    """After the last kill: open jobs and claims have SETTLES_WITHIN_S to end."""
    site.revive()
    deadline = time.monotonic() + SETTLES_WITHIN_S
    with psycopg.connect(site.site.postgres.url(), autocommit=True) as db:
        while time.monotonic() < deadline:
            claims = db.execute("SELECT COUNT(*) FROM pools_claim").fetchone()
            if _open_jobs(db) == 0 and claims == (0,):
                return
            time.sleep(0.3)


def _audit(site: RaceSite, report: Report, names: list[str]) -> None:
    books = httpx.get(f"{site.engine_url}/bench/books", timeout=10, trust_env=False).json()
    report.worst_running, report.resized = books["worst"], books["resized"]
    with psycopg.connect(site.site.postgres.url(), autocommit=True) as db:

        def one(sql: str) -> int:
            return int(db.execute(sql).fetchone()[0])  # type: ignore[index]

        jobs = db.execute("SELECT name, state FROM jobs_job").fetchall()
        launched = {row[0] for row in db.execute("SELECT submission_id FROM jobs_jobattempt").fetchall()}
        drift = {
            "reservations still held": one("SELECT COUNT(*) FROM pools_reservation WHERE released_at IS NULL"),
            "claims left": one("SELECT COUNT(*) FROM pools_claim"),
            "attempts that have not ended": one("SELECT COUNT(*) FROM jobs_jobattempt WHERE ended_at IS NULL"),
            "requests nobody answered": one("SELECT COUNT(*) FROM jobs_controlrequest WHERE acknowledged_at IS NULL"),
            "event logs with gaps": one(
                "SELECT COUNT(*) FROM (SELECT job_id FROM jobs_jobevent GROUP BY job_id"
                " HAVING MAX(seq) <> COUNT(*) OR MIN(seq) <> 1) AS gaps"
            ),
            "drivers still running": books["live"],
            "submissions that the engine has and we do not": len(set(books["launched"]) - launched),
        }
    counted = Counter(name for name, _ in jobs)
    report.ended = dict(Counter(state for _, state in jobs))
    report.answered = len(names)
    report.oversold = max(0, report.worst_held - CAPACITY, report.worst_running - CAPACITY)
    unfinished = sum(state not in {"succeeded", "failed", "cancelled"} for _, state in jobs)
    report.lost = len(set(names) - set(counted)) + unfinished + (report.submissions - len(names))
    report.doubled = sum(times - 1 for times in counted.values()) + max(0, books["most_at_once"] - 1)
    drift["jobs that failed"] = report.ended.get("failed", 0)
    drift["jobs without a submission"] = len(set(counted) - set(names))
    report.drift = [f"{count} {what}" for what, count in drift.items() if count]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--submissions", type=int, default=10_000)
    options.add_argument("--clients", type=int, default=64)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--kill-every", type=float, default=10.0, help="seconds between kills, on average")
    options.add_argument("--open", type=int, default=MOST_OPEN, help="clients wait while so many jobs have not ended")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what it started ends with it
    report = race(
        submissions=chosen.submissions,
        clients=chosen.clients,
        seed=chosen.seed,
        kill_every_s=chosen.kill_every,
        most_open=chosen.open,
    )
    if chosen.json:
        print(json.dumps(asdict(report) | {"cpus": os.cpu_count(), "is_clean": report.is_clean}))
    else:
        for name, value in asdict(report).items():
            print(f"{name:14} {value}")
    sys.exit(0 if report.is_clean else 1)


if __name__ == "__main__":
    main()
