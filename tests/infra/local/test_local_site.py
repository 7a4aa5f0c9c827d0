"""The supervisor on real servers: what it starts stays up, keeps its data, and leaves nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from infra.local.errors import LocalError
from infra.local.home import PROJECT, Home
from infra.local.processes import belongings
from infra.local.room import rotate
from infra.local.services.postgres import ADMINISTRATOR, Postgres
from infra.local.services.site import Site
from infra.local.site_commands import _wait_until_up, supervisor_status
from tests.waiting import eventually

SERVICES = ("postgres", "valkey")


class Keeper:
    """The command line, on a home whose path has a space in it."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "a home" / ".laminar")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "infra.local", "--home", str(self.home.folder), *arguments]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300)

    def up(self) -> str:
        done = self.run("up", *SERVICES)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def postgres(self) -> Postgres:
        return Site(home=self.home, ports=self.home.written_ports()).postgres

    def write(self, value: int) -> None:
        with psycopg.connect(self.postgres.url("postgres", user=ADMINISTRATOR), autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS kept (value int)")
            connection.execute("INSERT INTO kept VALUES (%s)", [value])

    def kept(self) -> list[int]:
        with psycopg.connect(self.postgres.url("postgres", user=ADMINISTRATOR)) as connection:
            return [row[0] for row in connection.execute("SELECT value FROM kept ORDER BY value")]

    def pid(self, service: str) -> int:
        status = json.loads(self.home.status_file.read_text())
        return int(status["services"][service]["pid"] or 0)


@pytest.fixture
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    keeper = Keeper(tmp_path_factory.mktemp("site"))
    yield keeper
    keeper.run("down")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    """One that is up, for tests that only look at it."""
    keeper = Keeper(tmp_path_factory.mktemp("site"))
    keeper.up()
    yield keeper
    keeper.run("down")


@pytest.mark.long
def test_data_and_ports_survive_down_and_up(keeper: Keeper) -> None:
    keeper.up()
    keeper.write(1)
    ports = keeper.home.written_ports()
    assert keeper.run("down").returncode == 0
    assert belongings(keeper.home) == []
    keeper.up()
    assert keeper.kept() == [1]
    assert keeper.home.written_ports() == ports


@pytest.mark.long
def test_a_second_up_finds_the_first(running: Keeper) -> None:
    supervisor = supervisor_status(running.home)
    running.up()
    assert supervisor is not None
    assert (supervisor_status(running.home) or {})["supervisor"] == supervisor["supervisor"]


@pytest.mark.long
def test_two_ups_at_once_end_with_one_site(keeper: Keeper) -> None:
    command = [sys.executable, "-m", "infra.local", "--home", str(keeper.home.folder), "up", *SERVICES]
    both = [subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate(timeout=300)[1] for process in both] == [b"", b""]
    supervisors = [process for process in psutil.process_iter(["cmdline"]) if _supervises(process, keeper.home)]
    assert len(supervisors) == 1


def _supervises(process: psutil.Process, home: Home) -> bool:
    return {"supervise", str(home.folder)} <= set(process.info["cmdline"] or [])


@pytest.mark.long
def test_a_killed_service_comes_back_with_its_data(keeper: Keeper) -> None:
    keeper.up()
    keeper.write(7)
    before = keeper.pid("postgres")
    os.kill(before, signal.SIGKILL)
    eventually(
        lambda: keeper.pid("postgres"), "another Postgres is healthy",
        until=lambda pid: pid not in {0, before} and keeper.postgres.is_healthy(),
    )  # fmt: skip
    assert keeper.kept() == [7]


@pytest.mark.long
def test_down_ends_what_a_killed_supervisor_left(keeper: Keeper) -> None:
    keeper.up()
    status = supervisor_status(keeper.home)
    assert status is not None
    os.kill(status["supervisor"]["pid"], signal.SIGKILL)
    eventually(lambda: supervisor_status(keeper.home), "the supervisor has ended", until=lambda status: status is None)
    assert belongings(keeper.home)
    done = keeper.run("down")
    assert "the supervisor had died" in done.stdout
    assert belongings(keeper.home) == []


@pytest.mark.long
def test_after_a_power_cut_up_comes_back_with_all_data(keeper: Keeper) -> None:
    keeper.up()
    keeper.write(3)
    status = supervisor_status(keeper.home)
    assert status is not None
    running = [psutil.Process(status["supervisor"]["pid"]), *belongings(keeper.home)]
    for process in running:
        with suppress(psutil.NoSuchProcess):  # Postgres's children end with their parent
            process.kill()
    # One that waits for the disk dies later than it is killed; no power cut leaves such a one.
    _, left = psutil.wait_procs(running, timeout=120)
    assert not left
    keeper.up()
    assert keeper.kept() == [3]


@pytest.mark.long
def test_a_port_that_somebody_took_is_replaced_and_written_down(keeper: Keeper) -> None:
    keeper.home.prepare()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        keeper.home.write_ports({"postgres": taken})  # as if it had been the home's own before
        keeper.up()
        assert keeper.home.written_ports()["postgres"] != taken
        assert keeper.postgres.is_healthy()


@pytest.mark.long
def test_secrets_are_the_owners_alone(running: Keeper) -> None:
    files = [*running.home.secrets_folder.iterdir(), running.home.run / "valkey.conf", running.home.status_file]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


@pytest.mark.long
def test_both_servers_refuse_a_stranger(running: Keeper) -> None:
    ports = running.home.written_ports()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(f"postgresql://laminar:guess@127.0.0.1:{ports['postgres']}/postgres")
    with socket.create_connection(("127.0.0.1", ports["valkey"]), timeout=5) as stranger:
        stranger.sendall(b"PING\r\n")
        assert b"NOAUTH" in stranger.recv(100)


def test_up_names_a_service_that_ends_again_and_again(tmp_path: Path) -> None:
    home = Home(tmp_path / ".laminar")
    home.prepare()
    well = {"state": "healthy", "pid": 1, "restarts": 9, "failures": 9}
    services = {"postgres": well, "web": {**well, "state": "restarting"}, "beat": {**well, "failures": 0}}
    home.status_file.write_text(json.dumps({"problem": "", "services": services}))
    with pytest.raises(LocalError, match="keeps crashing: web;"):
        _wait_until_up(home, None)


def test_ray_never_sees_a_space_or_a_long_path(tmp_path: Path) -> None:
    home = Home(tmp_path / ("a very long folder name with spaces " * 4) / ".laminar")
    assert " " not in str(home.ray_folder)
    socket_path = home.ray_folder / "session_2026-01-01_00-00-00_000000_4194304" / "sockets" / "plasma_store"
    assert len(str(socket_path)) <= 107


def test_a_log_is_put_aside_when_it_is_large(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    log.write_text("x" * 100)
    rotate(log, limit_bytes=99)
    assert log.read_text() == ""
    assert (tmp_path / "web.log.1").read_text() == "x" * 100
