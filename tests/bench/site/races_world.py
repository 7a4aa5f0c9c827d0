"""The site of the race: Postgres, Valkey, web, workers and beat of their own, the engine faked on its side of the wire,
and somebody who kills them at random and starts them again.

Invariant: what is started here ends here; only processes that were started here are ever signalled.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from infra.local.home import PROJECT, Home
from infra.local.ports import PORT_NAMES, free_port
from infra.local.services.postgres import Postgres
from infra.local.services.site import Service, Site
from tests.waiting import eventually

NUM_WEB, NUM_WORKERS = 2, 2
VICTIMS = ("web process", "web process", "worker process", "worker", "worker", "valkey", "beat")
"""A web process, a process of a worker, a whole worker, Valkey, the beat: some more often than others."""
CAPACITY = 8
QUOTAS = {"Ants": 5, "Bees": 3}

MAKE = """
import json
from backend.accounts.models import Membership, Project, Role, Team, User
from backend.accounts.services import create_api_key
from backend.pools.models import ResourcePool, TeamQuota
pool = ResourcePool.objects.create(name="race", flavor="cpu", capacity={capacity})
clients = []
teams = []
for name, nominal in {quotas}.items():
    team = Team.objects.create(name=name)
    user = User.objects.create_user(name + "@example.org")
    Membership.objects.create(user=user, team=team, role=Role.OWNER)
    TeamQuota.objects.create(pool=pool, team=team, nominal=nominal)
    teams.append((team, user, Project.objects.create(team=team, name="Race")))
for n in range({clients}):
    team, user, project = teams[n % len(teams)]
    clients.append({{"key": create_api_key(team=team, created_by=user, name=f"c{{n}}")[1], "project": project.pk}})
print("CLIENTS" + json.dumps(clients))
"""


@dataclass(slots=True)
class RaceSite:
    home: Home
    site: Site
    environment: dict[str, str]
    commands: dict[str, Service | list[str]]
    engine_url: str
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return self.site.url

    def start(self, name: str) -> None:
        command = self.commands[name]
        identity: Mapping[str, Any] = {}
        environment = self.environment
        if isinstance(command, Service):
            identity, environment = command.identity(), self.site.marked(command)
            command.prepare()
            command = command.command()
        with (self.home.logs / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd="/" if identity or name in {"postgres", "valkey"} else PROJECT,
                env=environment,
                start_new_session=True,
                **identity,
            )

    def wait_for_web(self) -> None:
        eventually(
            lambda: httpx.get(f"{self.url}/healthz", timeout=5).status_code,
            "web answers",
            until=lambda status: status == 200,
            ignoring=(httpx.HTTPError,),
            every_s=0.2,
            log=lambda: self.tail("web"),
        )

    def tail(self, name: str) -> str:
        return (self.home.logs / f"{name}.log").read_text(errors="replace")[-2_000:]

    def kill_one(self, kind: str, rng: random.Random) -> None:
        """One of VICTIMS: SIGKILL, then started again."""
        with self.lock:
            if kind == "web process":
                was_killed = self._kill_child("web", rng)
            elif kind == "worker process":
                was_killed = self._kill_child(f"worker{rng.randrange(NUM_WORKERS)}", rng)
            else:
                name = f"worker{rng.randrange(NUM_WORKERS)}" if kind == "worker" else kind
                self._kill_all_of(name)
                self.start(name)
                was_killed = True
        self.kills[kind] += was_killed

    def revive(self) -> None:
        """Whatever ended by itself."""
        with self.lock:
            for name, process in list(self.running.items()):
                if process.poll() is not None:
                    self.start(name)

    def stop(self) -> None:
        with self.lock:
            for name in reversed(list(self.running)):
                self._kill_all_of(name)

    def _kill_child(self, name: str, rng: random.Random) -> bool:
        """False: there was none, since its parent was only just starting."""
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self.running[name].pid).children()
            workers = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]
            if workers:
                rng.choice(workers).kill()
                return True
        return False

    def _kill_all_of(self, name: str) -> None:
        process = self.running[name]
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its own session: no other service is in the group
        process.wait(10)


@contextlib.contextmanager
def race_site(num_clients: int, *, seed: int) -> Iterator[tuple[RaceSite, list[dict[str, str]]]]:
    """The site and, for each client, its key and project."""
    folder = Path(tempfile.mkdtemp(prefix="laminar-race-"))
    folder.chmod(0o711)
    home = Home(folder / "home")
    race: RaceSite | None = None
    try:
        home.prepare()
        site = Site(home=home, ports={name: free_port() for name in PORT_NAMES})
        object.__setattr__(site, "postgres", Postgres(home=home, port=site.ports["postgres"], is_durable=False))
        home.secret("ray")
        race = _assembled(home, site, seed)
        for name in ("postgres", "valkey"):
            race.start(name)
        _wait_until_healthy(site)
        site.postgres.ensure_database()
        _manage(race, "migrate", "--verbosity", "0")
        made = _manage(race, "shell", "-c", MAKE.format(capacity=CAPACITY, quotas=QUOTAS, clients=num_clients))
        clients = json.loads(made.split("CLIENTS")[1])
        for name in race.commands:
            if name not in race.running:
                race.start(name)
        race.wait_for_web()
        yield race, clients
    finally:
        if race is not None:
            race.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _assembled(home: Home, site: Site, seed: int) -> RaceSite:
    engine_port = free_port()
    engine_url = f"http://127.0.0.1:{engine_port}"
    environment = site.control_environment() | {
        "LAMINAR_RAY_URL": engine_url,
        "LAMINAR_RATE_SCALE": "10000",  # the race is for devices, not for a place in the rate limits
    }
    postgres, valkey = site.services()[:2]
    python = [sys.executable, "-m"]
    worker = [*python, "celery", "-A", "backend.celery", "worker", "--concurrency", "2", "--loglevel", "WARNING",
              "--without-gossip", "--without-mingle"]  # fmt: skip
    commands: dict[str, Service | list[str]] = {
        "postgres": postgres,
        "valkey": valkey,
        "engine": [*python, "tests.bench.site.fake_engine", "--port", str(engine_port), "--seed", str(seed)],
        "web": [*python, "uvicorn", "backend.asgi:application", "--host", "127.0.0.1", "--port",
                str(site.ports["web"]), "--workers", str(NUM_WEB), "--no-access-log", "--log-level", "warning"],
        **{f"worker{n}": [*worker, "-n", f"w{n}@%h"] for n in range(NUM_WORKERS)},
        "beat": [*python, "celery", "-A", "backend.celery", "beat", "--loglevel", "WARNING", "--pidfile=",
                 "--schedule", str(home.run / "beat-schedule")],
    }  # fmt: skip
    return RaceSite(home=home, site=site, environment=environment, commands=commands, engine_url=engine_url)


def _manage(race: RaceSite, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *words], cwd=PROJECT, env=race.environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _wait_until_healthy(site: Site) -> None:
    eventually(
        lambda: (site.postgres.is_healthy(), site.valkey.is_healthy()),
        "Postgres and Valkey are healthy",
        until=all,
        every_s=0.1,
    )
