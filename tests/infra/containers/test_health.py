"""The health check of a container ends a silent service, and no other."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from tests.infra.containers.compose_file import ROOT, compose, seconds, services

FILE = ROOT / "infra" / "images" / "health.py"
BOUNDED = ["CMD", "timeout", "--signal=KILL", "25"]
WATCHED = ["web", "worker", "beat", "ray-head", "ray-worker"]
# As a container has it: processes of its own, of which the first is the shell here and `init` there.
NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
SERVICE = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
CHECK = """
import sys, time
sys.path.insert(0, FOLDER)
from pathlib import Path
import health
while not any(" T 1 " in each.read_text() for each in Path("/proc").glob("[0-9]*/stat")):
    time.sleep(0.01)
assert 0 <= health._age_s() < 60, health._age_s()
health._end()
"""


@pytest.fixture
def health(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The file as the image has it, on its own; long after the start."""
    spec = importlib.util.spec_from_file_location("health", FILE)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    monkeypatch.setattr(made, "COUNT", tmp_path / "count")
    monkeypatch.setattr(made, "_age_s", lambda: made.GRACE_S + 1)
    return made


@pytest.fixture
def ended(health: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A line for each time that it would end the service."""
    times: list[str] = []
    monkeypatch.setattr(health, "_end", lambda: times.append("ended"))
    return times


def sign(health: ModuleType, what: str) -> Callable[[], None]:
    def give() -> None:
        if what == "silent":
            raise health.Silent("no answer")
        if what == "unwell":
            raise health.Unwell("the database is away")

    return give


def look(health: ModuleType, what: str) -> str:
    health.SIGNS["web"] = sign(health, what)
    return str(health.main("web"))


def test_what_is_silent_in_six_looks_is_ended(health: ModuleType, ended: list[str]) -> None:
    said = [look(health, "silent") for _ in range(5)]
    assert said == ["no answer"] * 5 and not ended
    assert "silent in 6 looks, and so ended" in look(health, "silent") and ended == ["ended"]


@pytest.mark.parametrize("sign_of_life", ["well", "unwell"])
def test_a_sign_of_life_begins_the_count_anew(health: ModuleType, ended: list[str], sign_of_life: str) -> None:
    for _ in range(3):
        for _ in range(5):
            look(health, "silent")
        assert (look(health, sign_of_life) == "") == (sign_of_life == "well")
    assert not ended


def test_bad_news_never_ends_anybody(health: ModuleType, ended: list[str]) -> None:
    assert {look(health, "unwell") for _ in range(50)} == {"the database is away"}
    assert not ended


def test_nothing_is_ended_while_it_starts(
    health: ModuleType, ended: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_age_s", lambda: health.GRACE_S - 1)
    assert all(look(health, "silent") == "no answer" for _ in range(50)) and not ended


@contextmanager
def server(status: int) -> Iterator[str]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b'{"problems": ["postgres: does not answer"]}')

        def log_message(self, *arguments: object) -> None:
            pass

    made = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=made.serve_forever, args=[0.02], daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}/"
    made.shutdown()
    made.server_close()


def test_an_answer_of_any_kind_is_a_sign_of_life(health: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # Docker puts the machine's proxy into every container
    with server(200) as address:
        health._ask(address, {})
    with server(503) as address, pytest.raises(health.Unwell, match=r"503: .*postgres: does not answer"):
        health._ask(address, {})
    with pytest.raises(health.Silent):
        health._ask(address, {})  # the server has ended


def test_frozen_service_is_ended_from_inside_its_container() -> None:
    """In a PID namespace, as a container has: its first process takes no signal from there, and ends with its child."""
    # A health check is no child of the first process: here it has one between them, which goes too.
    script = f"{sys.executable} -c '{SERVICE}' & ({sys.executable} -c \"$CHECK\"; :); wait $!; exit $?"
    environment = os.environ | {"CHECK": CHECK.replace("FOLDER", repr(str(FILE.parent)))}
    container = subprocess.run(
        [*NAMESPACE, "sh", "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )
    if "unshare" in container.stderr:
        pytest.skip(f"no namespaces here: {container.stderr}")
    assert container.returncode == 128 + signal.SIGKILL, container.stderr


def test_proxy_silent_for_six_checks_is_ended_from_inside(tmp_path: Path) -> None:
    """Runs the script on a port without a listener. Nothing ends while a server answers or the proxy starts."""
    proxy = services()["proxy"]
    assert proxy["healthcheck"]["test"] == ["CMD", "sh", "/etc/caddy/health.sh"] and proxy["init"] is True
    assert seconds(proxy["healthcheck"]["timeout"]) > 10 and "./infra/proxy:/etc/caddy:ro" in proxy["volumes"]
    look = f"(sh {ROOT / 'infra/proxy/health.sh'}; :)"
    told = {"COUNT": str(tmp_path / "count"), "OWN_ADDRESS": "http://127.0.0.1:1/"}

    def looked(times: int, **more: str) -> int:
        script = f"sleep 20 & {f'{look};' * times} kill -TERM $!; wait $!; exit $?"
        words = [*NAMESPACE, "sh", "-c", script]
        done = subprocess.run(words, env=os.environ | told | more, capture_output=True, text=True, timeout=60)
        if "unshare" in done.stderr:
            pytest.skip(f"no namespaces here: {done.stderr}")
        return done.returncode - 128

    assert looked(5, GRACE_S="-1") == signal.SIGTERM, "five looks are not six"
    assert looked(1, GRACE_S="-1") == signal.SIGKILL
    assert looked(1) == signal.SIGTERM, "it has just begun"
    with server(200) as address:
        looked(1, OWN_ADDRESS=address)
    assert not (tmp_path / "count").exists(), "an answer resets the count"


def test_what_keeps_the_written_is_watched_too(health: ModuleType) -> None:
    wal = compose(ROOT / "infra" / "backup" / "compose.yml")["services"]["wal"]
    assert wal["healthcheck"]["test"] == [*BOUNDED, "python", "health.py", "wal"] and "wal" in health.SIGNS
    assert wal["restart"] == "unless-stopped" and wal["init"] is True
    assert seconds(wal["healthcheck"]["interval"]) * health.SILENT_LOOKS >= 90
    assert "FROM ${WEB_IMAGE}" in (ROOT / "infra/backup/Dockerfile").read_text(), "by the file of the site's image"


@pytest.mark.parametrize("name", WATCHED)
def test_every_service_of_ours_is_watched_by_it_and_begins_again(name: str, health: ModuleType) -> None:
    service = services()[name]
    assert service["healthcheck"]["test"] == [*BOUNDED, "python", "health.py", name] and name in health.SIGNS
    assert service["restart"] == "unless-stopped"
    assert service["init"] is True, "else the service is the first process, which takes no signal from inside"
    assert seconds(service["healthcheck"]["start_period"]) >= 120, "on a busy machine Ray takes longer than a minute"
    asked = 2 if name == "ray-head" else 1
    assert asked * health.PATIENCE_S < float(BOUNDED[-1]) < seconds(service["healthcheck"]["timeout"]), (
        "a check that times out in the container engine keeps running next to the next one"
    )
    assert seconds(service["healthcheck"]["interval"]) * health.SILENT_LOOKS >= 90, "as long as the local supervisor"
    dockerfile = ROOT / service["build"]["dockerfile"]
    assert "infra/images/health.py" in dockerfile.read_text()


@pytest.mark.parametrize("name", ["ray-head", "ray-worker"])
def test_a_ray_node_is_asked_where_its_agent_listens(
    name: str, health: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    asked: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(health, "_ask", lambda address, headers: asked.append((address, headers)))
    health.SIGNS[name]()
    words = " ".join(services()[name]["command"])
    options = ["dashboard-agent-listen-port", "dashboard-port"]
    for (address, headers), option in zip(reversed(asked), options, strict=False):
        assert f"--{option}={address.split(':')[2].split('/')[0]}" in words
        assert headers == {"Authorization": "Bearer secret"}
    assert len(asked) == (2 if name == "ray-head" else 1)


def test_databases_are_marked_and_never_ended() -> None:
    """One that recovers after a power cut may be silent for as long as that takes."""
    for name in ("postgres", "valkey"):
        assert "health.py" not in json.dumps(services()[name]["healthcheck"])
