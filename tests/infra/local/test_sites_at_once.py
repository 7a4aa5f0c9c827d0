"""Sites on one machine: four started at once have different ports; a start that is cut short leaves nothing."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from infra.local.home import PROJECT, SERVICE_MARKER, Home, read_json
from infra.local.ports import PORT_NAMES, is_free
from infra.local.processes import belongings
from tests.waiting import eventually

pytestmark = [pytest.mark.site, pytest.mark.long]
WITHIN_S = 1_800.0  # a net


def command(home: Home, *words: str) -> list[str]:
    return [sys.executable, "-m", "infra.local", "--home", str(home.folder), *words]


def begin_up(home: Home, *services: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(home, "up", *services), cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def down(home: Home) -> None:
    subprocess.run(command(home, "down"), cwd=PROJECT, check=True, capture_output=True, timeout=WITHIN_S)


def wait_for_migration(home: Home, up: subprocess.Popen[str]) -> None:
    eventually(lambda: home.logs.exists() and is_migrating(home), "the site migrates", within_s=WITHIN_S, process=up)


def listeners(home: Home) -> list[str]:
    """The home's ports on which something listens."""
    return [name for name, port in home.written_ports().items() if not is_free(port)]


def assert_nothing_is_left(home: Home) -> None:
    assert belongings(home) == []
    assert listeners(home) == []
    assert not home.alias.exists()


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[list[Home]]:
    homes = [Home(tmp_path / f"{number}" / ".laminar") for number in range(4)]
    yield homes
    for home in homes:
        down(home)


def test_four_sites_at_once_all_come_up(homes: list[Home]) -> None:
    ups = [begin_up(home, "postgres", "valkey") for home in homes]
    printed = [up.communicate(timeout=WITHIN_S)[0] for up in ups]
    assert [up.returncode for up in ups] == [0] * 4, printed
    ports = [port for home in homes for port in home.written_ports().values()]
    assert len(set(ports)) == 4 * len(PORT_NAMES)
    for home in homes:
        assert sorted(listeners(home)) == ["postgres", "valkey"]
        restarts = [each["restarts"] for each in (read_json(home.status_file) or {})["services"].values()]
        assert restarts == [0, 0]
    for home in homes:
        down(home)
        assert_nothing_is_left(home)


def is_migrating(home: Home) -> bool:
    for process in belongings(home):
        with suppress(psutil.Error):
            if process.environ().get(SERVICE_MARKER) == "migrate":
                return True
    return False


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_up_leaves_nothing_listening(homes: list[Home], how: signal.Signals) -> None:
    up = begin_up(homes[0], "postgres", "valkey", "web")
    wait_for_migration(homes[0], up)
    assert sorted(listeners(homes[0])) == ["postgres", "valkey"]
    up.send_signal(how)
    printed, _ = up.communicate(timeout=WITHIN_S)
    assert up.returncode == 130, printed
    assert_nothing_is_left(homes[0])


def test_next_up_ends_what_a_killed_start_left(homes: list[Home]) -> None:
    home = homes[0]
    up = begin_up(home, "postgres", "valkey", "web")
    wait_for_migration(home, up)
    ports, supervisor = home.written_ports(), json.loads(home.status_file.read_text())["supervisor"]["pid"]
    for pid in (up.pid, supervisor):
        os.kill(pid, signal.SIGKILL)
    up.wait()
    left = belongings(home)
    assert is_migrating(home)
    next_up = begin_up(home, "postgres", "valkey")
    printed, _ = next_up.communicate(timeout=WITHIN_S)
    assert next_up.returncode == 0, printed
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in left)
    assert home.written_ports() == ports
