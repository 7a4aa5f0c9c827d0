"""A real server process on the test database, API keys of test users, and the command line."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from django.conf import settings

from backend.accounts.keys.scopes import SCOPES
from backend.accounts.models import User
from backend.accounts.services import create_api_key
from backend.checkpoints.models import Checkpoint, CheckpointState
from backend.jobs.models import Job
from frontend.client.laminar_client import Laminar, Patience
from frontend.client.laminar_client.__main__ import COMMANDS
from frontend.client.laminar_client.cli.commands import laminar
from tests.frontend.conftest import ROOT, Server
from tests.frontend.seed import World, make_world

assert COMMANDS
CLIENT = ROOT / "frontend" / "client"
QUICK = Patience(first_pause_s=0.01, longest_pause_s=0.05)


@pytest.fixture
def world(transactional_db: None) -> World:
    return make_world(capacity=4)


@pytest.fixture
def key_of(world: World) -> Callable[..., str]:
    def make(user: User, *scopes: str) -> str:
        wanted = scopes or tuple(SCOPES)
        team = user.memberships.get().team
        return create_api_key(team=team, created_by=user, name="test", scopes=wanted, expires_at=None)[1]

    return make


@pytest.fixture
def key(world: World, key_of: Callable[..., str]) -> str:
    return key_of(world.owner)


@pytest.fixture
def client(server: Server, key: str) -> Iterator[Laminar]:
    with Laminar(server.url, key, patience=QUICK) as made:
        yield made


@dataclass
class Shell:
    """The command line in an isolated environment. Its output must never contain the key."""

    environment: dict[str, str]
    secrets: list[str]
    printed: list[str] = field(default_factory=list)

    def __call__(self, *arguments: str, input: str | None = None, code: int = 0) -> Result:
        result = CliRunner(env=dict(self.environment)).invoke(laminar, list(arguments), input=input)
        said = f"{result.stdout}\n{result.stderr}\n{result.exception!r}"
        self.printed.append(said)
        assert result.exit_code == code, f"{arguments}: {said}"
        return result

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Runs the command as a separate process with piped output."""
        environment = {**os.environ, **self.environment, "PYTHONPATH": str(CLIENT), "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "laminar_client", *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_as_in_a_terminal,
        )  # fmt: skip


def _as_in_a_terminal() -> None:
    """Restores Ctrl-C: a shell that runs the tests in the background ignores it, and processes inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def newcomer(server: Server, key: str, tmp_path: Path) -> Iterator[Shell]:
    """A command line without a stored login."""
    environment = {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "LAMINAR_URL": "",
        "LAMINAR_API_KEY": "",
        "TZ": "UTC",
    }
    shell = Shell(environment=environment, secrets=[key])
    yield shell
    assert not [text for text in shell.printed for secret in shell.secrets if secret in text], "a key was printed"


@pytest.fixture
def shell(newcomer: Shell, server: Server, key: str) -> Shell:
    newcomer.environment |= {"LAMINAR_URL": server.url, "LAMINAR_API_KEY": key}
    return newcomer


@dataclass
class Proxy:
    """A proxy between client and server. `plan` has an action for each of the next requests: `pass`; `refuse` (503);
    `slow down` (429); `cut before` the request reaches the server; `cut after` the server processed it; `cut stream`
    after the second event."""

    target: str
    plan: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    url: str = ""

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        what = self.plan.pop(0) if self.plan else "pass"
        self.seen.append(f"{what}: {request.command} {request.path}")
        if what == "cut before":
            return
        if what in {"refuse", "slow down"}:
            self._answer_passing(request, 503 if what == "refuse" else 429)
            return
        length = int(request.headers.get("Content-Length") or 0)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in {"host", "connection"}}
        with httpx.stream(
            request.command, self.target + request.path, headers=headers, content=request.rfile.read(length), timeout=30
        ) as answer:
            if what == "cut after":
                answer.read()
                return
            request.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name not in {"content-length", "transfer-encoding", "connection", "content-encoding"}:
                    request.send_header(name, value)
            request.end_headers()
            num_events = 0
            for chunk in answer.iter_bytes():
                request.wfile.write(chunk.replace(b"retry: 2000", b"retry: 20"))
                request.wfile.flush()
                num_events += chunk.count(b"\nevent: ")
                if what == "cut stream" and num_events >= 2:
                    return

    @staticmethod
    def _answer_passing(request: BaseHTTPRequestHandler, status: int) -> None:
        request.send_response(status)
        request.send_header("Retry-After", "0")
        request.end_headers()
        request.wfile.write(b'{"code": "unavailable", "detail": "in a moment", "retryable": true}')


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    made = Proxy(target=server.url)

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            self.close_connection = True
            with contextlib.suppress(ConnectionError):
                made.handle(self)

        do_GET = do_POST = do_PATCH = do_DELETE = _any

        def log_message(self, format: str, *args: object) -> None:
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.daemon_threads = True
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    made.url = f"http://127.0.0.1:{web.server_port}"
    yield made
    web.shutdown()
    web.server_close()


def checkpoint_of(job: Job, *, step: int = 40, files: dict[str, bytes] | None = None) -> Checkpoint:
    """A complete, verified checkpoint with real files in the store."""
    files = files or {"config.json": b'{"a": 1}', "model.safetensors": bytes(range(256)) * 4_000}
    folder = settings.ENVIRONMENT.store_dir / "jobs" / job.pk / "attempt-1-fence-1" / "checkpoints" / f"step-{step:06d}"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    parts = {
        name: {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    }
    now = datetime.now(UTC)
    return Checkpoint.objects.create(
        job=job, attempt=1, step=step, version=step, uri=folder.as_uri(), manifest_sha256="0" * 64, parts=parts,
        num_bytes=sum(map(len, files.values())), created_at=now, verified_at=now, state=CheckpointState.COMPLETE,
    )  # fmt: skip
