"""The supervisor's judgement: by signs of life, not by processes; by its own memory, not by a disk that is full."""

import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.local import supervisor as module
from infra.local.home import Home, read_json
from infra.local.services.site import Service, Site
from infra.local.supervisor import Supervisor, Watched
from infra.local.turns import WAITS_AT_MOST_S, Turn
from tests.waiting import eventually

HANGS_S = 1.0
BEATS = "import pathlib, sys, time\nwhile True:\n    pathlib.Path(sys.argv[1]).touch()\n    time.sleep(0.02)"


class Beating:
    """A service whose sign of life is a file that it touches."""

    def __init__(self, folder: Path, name: str, *, heard_through: tuple[str, ...] = ()) -> None:
        self.file, self._seen, self.is_muffled = folder / name, 0, False
        self.service = Service(
            name=name,
            command=lambda: [sys.executable, "-c", BEATS, str(self.file)],
            environment=lambda: dict(os.environ),
            is_healthy=self._beats,
            heard_through=heard_through,
        )

    def _beats(self) -> bool:
        seen = self.file.stat().st_mtime_ns if self.file.exists() else 0
        has_changed, self._seen = seen != self._seen, seen
        return has_changed and not self.is_muffled


class Kept:
    def __init__(self, home: Home) -> None:
        self.home, self.supervisor = home, Supervisor(home)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until the condition holds, with a round of the supervisor before each further look."""

        def look() -> bool:
            if condition():
                return True
            self.supervisor._go_round()
            return False

        eventually(look, what, log=lambda: read_json(self.home.status_file))

    def wait_until_healthy(self, *names: str) -> None:
        self.wait(lambda: self.is_healthy(*names), f"healthy: {', '.join(names)}")

    def for_s(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() > end, f"{seconds:g} s of rounds")

    def status(self, name: str) -> Mapping[str, Any]:
        status = read_json(self.home.status_file)
        service: Mapping[str, Any] = status["services"][name] if status else {"state": "", "pid": 0, "restarts": 0}
        return service

    def is_healthy(self, *names: str) -> bool:
        return all(self.status(name)["state"] == "healthy" for name in names)


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Kept]]:
    monkeypatch.setattr(module, "HANGS_AFTER_S", HANGS_S)
    monkeypatch.setattr(module, "HEALTH_EVERY_S", 0.1)
    monkeypatch.setattr(module, "HEARD_WITHIN_S", 0.4)
    kept: list[Kept] = []

    def keep(*beating: Beating) -> Kept:
        monkeypatch.setattr(Site, "services", lambda self: [each.service for each in beating])
        kept.append(Kept(Home(tmp_path / ".laminar")))
        return kept[-1]

    yield keep
    for each in kept:
        each.supervisor._stop_all()


@pytest.mark.long
def test_a_service_that_is_stopped_is_ended_and_started_again(keep: Callable[..., Kept], tmp_path: Path) -> None:
    kept = keep(Beating(tmp_path, "worker"))
    kept.wait_until_healthy("worker")
    stopped = kept.status("worker")["pid"]
    os.kill(stopped, signal.SIGSTOP)
    kept.wait(
        lambda: kept.is_healthy("worker") and kept.status("worker")["pid"] not in (stopped, None),
        "another worker is healthy",
    )
    assert kept.status("worker")["restarts"] == 1


@pytest.mark.long
def test_one_whose_sign_could_not_come_through_is_not_to_blame(keep: Callable[..., Kept], tmp_path: Path) -> None:
    broker, worker = Beating(tmp_path, "broker"), Beating(tmp_path, "worker", heard_through=("broker",))
    kept = keep(broker, worker)
    kept.wait_until_healthy("broker", "worker")
    worker.is_muffled = True
    os.kill(kept.status("broker")["pid"], signal.SIGSTOP)
    kept.wait(lambda: kept.status("broker")["restarts"] == 1 and kept.is_healthy("broker"), "the broker is restarted")
    assert kept.status("worker")["restarts"] == 0
    kept.wait(lambda: kept.status("worker")["restarts"] == 1, "the worker, still silent, is restarted")


@pytest.mark.long
def test_a_supervisor_that_was_away_itself_blames_nobody(
    keep: Callable[..., Kept], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, slept_s = keep(worker := Beating(tmp_path, "worker")), [0.0]
    clock: Callable[[], float] = time.monotonic
    kept.wait_until_healthy("worker")
    monkeypatch.setattr(time, "monotonic", lambda: clock() + slept_s[0])
    worker.is_muffled = True  # everything was frozen, and its next beat is still to come
    slept_s[0] = 7_200.0
    kept.for_s(HANGS_S / 2)
    worker.is_muffled = False
    kept.for_s(HANGS_S)
    assert kept.status("worker")["restarts"] == 0


@pytest.mark.long
def test_full_disk_is_survived_from_memory(
    keep: Callable[..., Kept], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep(Beating(tmp_path, "worker"))
    kept.wait_until_healthy("worker")
    old = kept.home.logs / "web.log.1"
    old.write_text("old lines")
    before = kept.home.status_file.read_text()

    def is_full(file: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

    with monkeypatch.context() as full:
        full.setattr(module, "write_private", is_full)
        os.kill(kept.status("worker")["pid"], signal.SIGKILL)
        (remembered,) = kept.supervisor._watched  # the status on the full disk is out of date
        kept.wait(lambda: remembered.restarts == 1 and remembered.state == "healthy", "the worker is restarted")
        assert kept.home.status_file.read_text() == before and not old.exists()
    kept.wait(lambda: kept.status("worker")["restarts"] == 1 and kept.is_healthy("worker"), "the status is written")


LISTENS = """
import socket, sys, time
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    time.sleep(3600)
"""


def listening_web_and_its_users(site: Site) -> list[Service]:
    """The worker knows the port of the web, the broker does not."""
    port = site.ports["web"]

    def service(name: str, *words: str, **more: Any) -> Service:
        command = [sys.executable, "-c", *words]
        return Service(name=name, command=lambda: command, environment=lambda: dict(os.environ), **more)

    def answers() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    sleep = "import time; time.sleep(3600)"
    return [
        service("worker", sleep, str(port), is_healthy=lambda: True),
        service("broker", sleep, is_healthy=lambda: True),
        service("web", LISTENS, str(port), is_healthy=answers, ports=("web",)),
    ]


def test_stolen_port_is_replaced_and_its_users_restart(
    keep: Callable[..., Kept], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = keep()
    monkeypatch.setattr(Site, "services", listening_web_and_its_users)
    kept.supervisor._watched = [Watched(service, Turn(service.name)) for service in kept.supervisor._site.services()]
    stolen = kept.home.written_ports()["web"]
    for watched in kept.supervisor._watched[:2]:
        kept.supervisor._tend(watched)
    worker, broker, _ = [watched.process for watched in kept.supervisor._watched]
    assert worker is not None and broker is not None
    with socket.create_server(("127.0.0.1", stolen)):
        kept.wait_until_healthy("worker", "broker", "web")
    assert kept.home.written_ports()["web"] != stolen
    assert kept.status("worker")["pid"] != worker.pid and worker.returncode is not None
    assert kept.status("broker")["pid"] == broker.pid


def test_stopping_supervisor_starts_nothing_more(keep: Callable[..., Kept], tmp_path: Path) -> None:
    kept = keep(Beating(tmp_path, "worker"))
    kept.supervisor._on_signal(signal.SIGTERM, None)
    kept.supervisor._go_round()
    assert kept.status("worker") == {"state": "waiting", "pid": None, "restarts": 0, "failures": 0}


def test_one_site_at_a_time_starts_what_starts_alone() -> None:
    name = f"test-{os.getpid()}"
    ours, theirs = Turn(name), Turn(name)
    assert ours.take(0.0) and ours.take(1.0) and not theirs.take(2.0)
    ours.leave()
    assert theirs.take(3.0) and not ours.take(10.0)
    assert not ours.take(9.0 + WAITS_AT_MOST_S) and ours.take(10.0 + WAITS_AT_MOST_S)
    theirs.leave()
    ours.leave()


def test_service_waits_for_its_turn_and_gives_it_up(keep: Callable[..., Kept], tmp_path: Path) -> None:
    beating = Beating(tmp_path, f"alone-{os.getpid()}")
    beating.service = replace(beating.service, starts_alone=True)
    kept, other = keep(beating), Turn(beating.service.name)
    assert other.take(0.0)
    kept.supervisor._go_round()
    assert kept.status(beating.service.name)["state"] == "waiting"
    other.leave()
    kept.supervisor._go_round()
    assert kept.status(beating.service.name)["state"] == "starting" and not other.take(0.0)
    kept.wait_until_healthy(beating.service.name)
    assert other.take(0.0)
    other.leave()


def test_what_no_waiting_cures_still_ends_it(keep: Callable[..., Kept], tmp_path: Path) -> None:
    broken = Beating(tmp_path, "worker")
    object.__setattr__(broken.service, "command", lambda: [str(tmp_path / "nowhere")])
    with pytest.raises(FileNotFoundError):
        keep(broken).supervisor._go_round()
