"""Ports of homes: claimed before use, different on one machine, kept over restarts, replaced if a stranger has them."""

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.local.home import PROJECT, Home
from infra.local.ports import PORT_NAMES, PortClaims, free_port

CLAIM = """
import json, sys
from pathlib import Path
from infra.local.home import Home
from infra.local.ports import PortClaims
print("ready", flush=True)
sys.stdin.readline()
claims = PortClaims(Home(Path(sys.argv[1])), preferred=json.loads(sys.argv[2]))
print(json.dumps(claims.numbers), flush=True)
sys.stdin.readline()
"""


def home_in(folder: Path) -> Home:
    home = Home(folder / ".laminar")
    home.prepare()
    return home


@contextmanager
def claiming_process(home: Home, preferred: dict[str, int]) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", CLAIM, str(home.folder), json.dumps(preferred)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT) as process:
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def stranger_on(port: int) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", port)):
        yield


@pytest.fixture
def preferred(tmp_path: Path) -> dict[str, int]:
    """Free ports that every home of a test prefers."""
    with PortClaims(home_in(tmp_path / "first"), preferred={}) as claims:
        return claims.numbers


def test_four_homes_at_once_have_no_port_in_common(tmp_path: Path, preferred: dict[str, int]) -> None:
    homes = [home_in(tmp_path / str(number)) for number in range(4)]
    with (
        claiming_process(homes[0], preferred) as first,
        claiming_process(homes[1], preferred) as second,
        claiming_process(homes[2], preferred) as third,
        claiming_process(homes[3], preferred) as fourth,
    ):
        processes = [first, second, third, fourth]
        assert [line_of(process) for process in processes] == ["ready"] * 4
        for process in processes:
            say(process)
        claimed = [json.loads(line_of(process)) for process in processes]
    numbers = [port for ports in claimed for port in ports.values()]
    assert len(set(numbers)) == 4 * len(PORT_NAMES)
    assert set(preferred.values()) <= set(numbers)
    assert [home.written_ports() for home in homes] == claimed


def test_claims_of_a_killed_process_are_free(tmp_path: Path, preferred: dict[str, int]) -> None:
    with claiming_process(home_in(tmp_path / "killed"), preferred) as process:
        say(process)
        assert (line_of(process), json.loads(line_of(process))) == ("ready", preferred)
        with PortClaims(home_in(tmp_path / "refused"), preferred=preferred) as claims:
            assert not set(claims.numbers.values()) & set(preferred.values())
        process.kill()
        process.wait()
    with PortClaims(home_in(tmp_path / "granted"), preferred=preferred) as claims:
        assert claims.numbers == preferred


def test_home_keeps_its_ports_over_restarts(tmp_path: Path) -> None:
    home = home_in(tmp_path)
    with PortClaims(home, preferred={}) as before:
        pass
    with PortClaims(home) as after:
        assert after.numbers == before.numbers


def test_stranger_costs_a_home_only_that_port(tmp_path: Path, preferred: dict[str, int]) -> None:
    home = home_in(tmp_path)
    with stranger_on(preferred["valkey"]), PortClaims(home, preferred=preferred) as claims:
        changed = {name for name, port in claims.numbers.items() if port != preferred[name]}
    assert changed == {"valkey"} and home.written_ports() == claims.numbers


def test_port_taken_after_the_claim_is_replaced(tmp_path: Path, preferred: dict[str, int]) -> None:
    home = home_in(tmp_path)
    with PortClaims(home, preferred=preferred) as claims:
        assert not claims.replace_taken(PORT_NAMES)
        with stranger_on(preferred["web"]):
            assert claims.replace_taken(["postgres", "web"])
        changed = {name for name, port in claims.numbers.items() if port != preferred[name]}
    assert changed == {"web"} and home.written_ports() == claims.numbers


def test_free_ports_of_one_process_differ(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == 20
    with PortClaims(home_in(tmp_path), preferred={"web": ports[0]}) as claims:
        assert claims.numbers["web"] != ports[0]


def test_prepared_home_leaves_nothing_in_temp_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    home = home_in(tmp_path)
    assert list(temporary.iterdir()) == []
    home.prepare_alias()
    home.forget_alias()
    assert list(temporary.iterdir()) == []
