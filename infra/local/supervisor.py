"""One process that keeps the others alive.

Invariants:
- one supervisor a home: it holds a lock for as long as it lives;
- a service that ends, or gives no sign of life, is started again, later each time, after whatever is left of it was
  ended; none is to blame for a time in which the supervisor was away itself, or what its sign comes through was;
- a port on which another program listens is replaced before the service starts, and what was started with the old one
  starts again;
- its state is in `status.json`, written atomically, so that other processes never query it. It acts on its own
  memory: a full disk keeps it from writing, and from nothing else;
- after a request to stop, at any time, it starts nothing more, stops the services in the reverse order of their
  start, and leaves no process behind.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO

import psutil

from engine.policy.awake import AwakeTime
from engine.spec.logs.log_text import FORMS, OneLine
from infra.local.database_setup import DatabaseSetup
from infra.local.errors import LocalError
from infra.local.home import PROJECT, Home, write_private
from infra.local.ports import PortClaims
from infra.local.processes import end, end_belongings
from infra.local.room import make_room, rotate
from infra.local.services.site import Service, Site
from infra.local.turns import Turn

TICK_S = 0.3
HEALTH_EVERY_S = 5.0
# On two busy cores an answer may take seconds. A service that gives none for so long hangs.
HANGS_AFTER_S = 90.0
HEARD_WITHIN_S = 4 * HEALTH_EVERY_S
# A round of looks, each of which may wait some seconds for an answer, takes less.
ABSENT_AFTER_S = 30.0
BACKOFF_S = (0.5, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
CALM_AFTER_S = 30.0
TRY_AGAIN_S = 1.0  # what could not even be tried costs next to nothing
# A full or read-only disk, a machine without memory or processes to spare: what could not be done is done later.
PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EAGAIN}
# Another word than these two is for the services to refuse, whose setting it is.
_FORM = FORMS.get(os.environ.get("LAMINAR_LOG_FORMAT", ""), OneLine)
_LINE = _FORM("%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")


@dataclass(slots=True)
class Watched:
    service: Service
    turn: Turn
    process: subprocess.Popen[bytes] | None = None
    state: str = "waiting"
    restarts: int = 0
    failures_in_a_row: int = 0
    started_at: float = 0.0
    start_due_at: float = 0.0
    health_due_at: float = 0.0
    healthy_at: float = 0.0


class Supervisor:
    def __init__(self, home: Home, only: Sequence[str] = ()) -> None:
        self._home = home
        self._lock = _take_lock(home)
        end_belongings(home)  # of a life that was cut short; before the ports are looked at
        self._ports = PortClaims(home)
        self._site = Site(home=home, ports=self._ports.numbers)
        self._database = DatabaseSetup(home, tell=_say)
        services = [service for service in self._site.services() if not only or service.name in only]
        self._watched = [Watched(service, Turn(service.name)) for service in services]
        self._is_stopping = False
        self._problem = ""
        self._shortage = ""
        self._written = ""
        self._awake = AwakeTime(absent_after_s=ABSENT_AFTER_S)

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            while not self._is_stopping:
                self._go_round()
                time.sleep(TICK_S)
        except LocalError as error:
            self._problem = str(error)
            _say(f"gives up: {error}")
        finally:
            self._stop_all()
            with contextlib.suppress(OSError):
                self._write_status()

    def _go_round(self) -> None:
        shortage = ""
        tending: list[Callable[[], None]] = [partial(self._tend, watched) for watched in self._watched]
        for act in (*tending, self._rotate_logs, self._write_status):
            try:
                act()
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                shortage = f"{error.strerror or error}: {error.filename or self._home.folder}"
        if shortage and shortage != self._shortage:
            freed = make_room(self._home)
            _say(f"cannot write ({shortage}); freed {freed / 1e6:.0f} MB of old logs and continued")
        self._shortage = shortage

    def _rotate_logs(self) -> None:
        for watched in self._watched:
            rotate(self._home.logs / f"{watched.service.name}.log")

    def _on_signal(self, number: int, frame: object) -> None:
        self._is_stopping = True

    # ── one service ───────────────────────────────────────────────────────────────────────────────────────────────

    def _tend(self, watched: Watched) -> None:
        if self._is_stopping:
            return
        now = self._awake.at(time.monotonic())
        if watched.process is None:
            if now >= watched.start_due_at and self._may_start(watched, now):
                self._start(watched, now)
        elif watched.process.poll() is not None:
            self._on_end(watched, now)
        elif now >= watched.health_due_at:
            self._look_at(watched, now)

    def _may_start(self, watched: Watched, now: float) -> bool:
        if watched.service.needs_database:
            database = next((other for other in self._watched if other.service.name == "postgres"), None)
            if database is None or database.state != "healthy" or not self._database.is_ready(self._site):
                return False
        return not watched.service.starts_alone or watched.turn.take(now)

    def _start(self, watched: Watched, now: float) -> None:
        watched.start_due_at = now + TRY_AGAIN_S  # if it cannot be
        if self._ports.replace_taken(watched.service.ports):
            self._move(watched.service.name)
        service = watched.service
        service.prepare()
        with (self._home.logs / f"{service.name}.log").open("ab") as log:
            watched.process = subprocess.Popen(
                service.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/" if service.name in {"postgres", "valkey"} else PROJECT,
                env=self._site.marked(service),
                start_new_session=True,
                **service.identity(),
            )
        watched.state, watched.started_at, watched.healthy_at = "starting", now, now
        watched.health_due_at = now + TICK_S
        _say(f"started {service.name} as {watched.process.pid}")

    def _move(self, name: str) -> None:
        """Take up the new ports: whatever was started with an old one starts again."""
        _say(f"another program uses a port of {name}; the ports are now {self._ports.numbers}")
        self._site = Site(home=self._home, ports=self._ports.numbers)
        services = {service.name: service for service in self._site.services()}
        for watched in self._watched:
            before, watched.service = watched.service, services[watched.service.name]
            after = watched.service
            if (before.command(), before.environment()) != (after.command(), after.environment()):
                self._end(watched)
                watched.state = "restarting"
        self._database.write_addresses(self._site)

    def _on_end(self, watched: Watched, now: float) -> None:
        assert watched.process is not None
        code = watched.process.returncode
        watched.process = None
        watched.turn.leave()
        if now - watched.started_at > CALM_AFTER_S:
            watched.failures_in_a_row = 0
        delay_s = BACKOFF_S[min(watched.failures_in_a_row, len(BACKOFF_S) - 1)]
        watched.failures_in_a_row += 1
        watched.restarts += 1
        watched.state, watched.start_due_at = "restarting", now + delay_s
        _say(f"{watched.service.name} exited with {code}; restarting in {delay_s} s")
        end_belongings(self._home, watched.service.name, grace_s=1)

    def _look_at(self, watched: Watched, now: float) -> None:
        if watched.service.is_healthy():
            watched.state, watched.healthy_at, watched.health_due_at = "healthy", now, now + HEALTH_EVERY_S
            watched.turn.leave()
            return
        watched.health_due_at = now + (TICK_S if watched.state == "starting" else 1.0)
        if not self._could_be_heard(watched.service, now):
            watched.healthy_at = now
        allowed_s = watched.service.starts_within_s if watched.state == "starting" else HANGS_AFTER_S
        if now - watched.healthy_at > allowed_s and watched.process is not None:
            _say(f"{watched.service.name} sent no heartbeat for {allowed_s:.0f} s; restarting it")
            watched.process.kill()

    def _could_be_heard(self, service: Service, now: float) -> bool:
        through = [other for other in self._watched if other.service.name in service.heard_through]
        return all(other.state == "healthy" and now - other.healthy_at < HEARD_WITHIN_S for other in through)

    # ── status and stopping ──────────────────────────────────────────────────────────────────────────────────────

    def _write_status(self) -> None:
        status = {
            "supervisor": {"pid": os.getpid(), "started_at": psutil.Process().create_time()},
            "problem": self._problem,
            "shortage": self._shortage,
            "is_stopped": self._is_stopping and all(watched.process is None for watched in self._watched),
            "services": {
                watched.service.name: {
                    "state": watched.state,
                    "pid": watched.process.pid if watched.process else None,
                    "restarts": watched.restarts,
                    "failures": watched.failures_in_a_row,
                }
                for watched in self._watched
            },
        }
        text = json.dumps(status, indent=1)
        if text != self._written:
            write_private(self._home.status_file, text)
            self._written = text

    def _stop_all(self) -> None:
        self._is_stopping = True
        self._database.stop()
        for watched in reversed(self._watched):
            if watched.process is not None:
                self._end(watched)
                watched.state = "stopped"
        end_belongings(self._home)
        self._home.forget_alias()
        self._ports.close()
        _say("all services are stopped")

    def _end(self, watched: Watched) -> None:
        if watched.process is None:
            return
        service = watched.service
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(watched.process.pid)
            end([process], first=service.stop_signal, grace_s=service.stop_grace_s)
        watched.process.wait()
        watched.process = None
        watched.turn.leave()
        end_belongings(self._home, service.name, grace_s=2)


def _take_lock(home: Home) -> IO[str]:
    home.prepare()
    lock = home.lock_file.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LocalError("another supervisor is running in this folder; see `make status`") from None
    return lock


def _say(text: str) -> None:
    said = {"name": __name__, "levelname": "INFO", "msg": text}
    with contextlib.suppress(OSError):  # a log that cannot be written is no reason to stop
        print(_LINE.format(logging.makeLogRecord(said)), flush=True)
