"""What may befall a site: processes killed and stopped, connections cut, a full disk. Nothing but its own is touched.

Invariant: a process that was stopped here runs again, or is dead, when `calm` returns; a disk that was filled has room.
"""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import psycopg
import redis

from infra.local.processes import belongings
from infra.local.services.postgres import ADMINISTRATOR
from infra.local.services.site import Site
from tests.e2e.conftest import Stack

# Each kind of process, by its command line; those of the control plane by their service.
SERVICES: Final = ("web", "worker", "beat", "valkey", "postgres")
PARTS: Final = (
    "engine.live.run.driver",
    "TrainerActor",
    "DataActor",
    "RelayActor",
    "RolloutActor",
    "EnvironmentActor",
)
KINDS: Final = (*SERVICES, *PARTS)


class Blows:
    def __init__(self, stack: Stack, chance: random.Random) -> None:
        self._stack, self._chance = stack, chance
        self._supervisor = int(json.loads(stack.home.status_file.read_text())["supervisor"]["pid"])
        self._site = Site(home=stack.home, ports=stack.home.written_ports())
        self._waking: list[threading.Timer] = []
        self.struck: Counter[str] = Counter()

    def processes(self, kind: str) -> Sequence[psutil.Process]:
        if kind == "supervisor":
            return [psutil.Process(self._supervisor)]
        if kind in SERVICES:
            return belongings(self._stack.home, kind)
        return [process for process in belongings(self._stack.home, "ray") if kind in _command(process)]

    def kill(self, kind: str) -> None:
        if processes := self.processes(kind):
            with suppress(psutil.Error):
                self._chance.choice(processes).kill()
                self.struck[f"kill {kind}"] += 1

    def stop(self, kind: str, lasts_s: float) -> None:
        """The whole of a service; of the engine's parts one."""
        processes = self.processes(kind)
        struck = processes if kind in SERVICES else processes and [self._chance.choice(processes)]
        for process in struck:
            with suppress(psutil.Error):
                process.suspend()
                waking = threading.Timer(lasts_s, _wake, [process])
                waking.start()
                self._waking.append(waking)
        self.struck[f"stop {kind}"] += bool(struck)

    def cut_connections(self) -> None:
        """Every one that somebody has to Postgres and to Valkey."""
        with suppress(psycopg.Error), psycopg.connect(self._site.postgres.url("postgres", user=ADMINISTRATOR)) as db:
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'laminar'")
        with suppress(redis.RedisError), redis.Redis.from_url(self._site.valkey.url, socket_timeout=3) as broker:
            broker.client_kill_filter(_type="normal", skipme=True)
        self.struck["cut connections"] += 1

    def fill_disk(self, lasts_s: float, folder: Path | None = None) -> None:
        """Of the folder, else of the home, which must have one of its own."""
        path = (folder or self._stack.home.folder) / "filler"
        with suppress(OSError), path.open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(1 << 20))
        waking = threading.Timer(lasts_s, _empty, [path])
        waking.start()
        self._waking.append(waking)
        self.struck["full disk"] += 1

    def calm(self) -> None:
        for waking in self._waking:
            waking.join()

    def any_of(self, *, has_own_disk: bool) -> Callable[[], None]:
        """The next one."""
        chance = self._chance
        draw = chance.random()
        if draw < 0.45:
            return lambda: self.kill(chance.choice(KINDS))
        if draw < 0.85:
            kind = chance.choice((*KINDS, "supervisor"))
            return lambda: self.stop(kind, chance.choice((1.0, 5.0, 20.0, 60.0, 120.0)))
        if draw < 0.93 or not has_own_disk:
            return self.cut_connections
        return lambda: self.fill_disk(chance.uniform(5.0, 60.0))


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _wake(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        process.resume()


def _empty(filler: Path) -> None:
    filler.unlink(missing_ok=True)


def has_a_disk_of_its_own(folder: Path) -> bool:
    return folder.stat().st_dev != folder.parent.stat().st_dev
