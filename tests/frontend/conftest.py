"""A seeded world, signed-in clients, and, for browser tests, a real server process on the test database."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.db import connection
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from backend.accounts.models import User
from tests.frontend.seed import World, make_world
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SERVER_STARTS_WITHIN_S = 180.0
LEFT_EARLY = "WebSocket is closed before the connection is established"
"""Chromium's message for a page that is left before its socket has opened: on a busy machine, any page."""
GIVES_UP_AFTER_MS = 60_000  # for a busy machine: a load of 20 has been seen
NAME_OF_THE_SERVER = "the pages under test"
expect.set_options(timeout=GIVES_UP_AFTER_MS)


@pytest.fixture
def world(db: None) -> World:
    return make_world()


@pytest.fixture
def as_user() -> Callable[[User], Client]:
    def signed_in(user: User) -> Client:
        client = Client(raise_request_exception=True)
        client.force_login(user)
        return client

    return signed_in


@pytest.fixture
def owner(world: World, as_user: Callable[[User], Client]) -> Client:
    return as_user(world.owner)


@pytest.fixture
def viewer(world: World, as_user: Callable[[User], Client]) -> Client:
    return as_user(world.viewer)


@pytest.fixture
def outsider(world: World, as_user: Callable[[User], Client]) -> Client:
    return as_user(world.outsider)


@dataclass(slots=True)
class Server:
    """`uvicorn backend.asgi:application` as a separate process, which can be killed and restarted."""

    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "backend.asgi:application", "--port", str(self.port)]
        self.process = subprocess.Popen([*command, "--log-level", "warning"], cwd=ROOT, env=self._environment())
        eventually(self._answers, "the web server answers", within_s=SERVER_STARTS_WITHIN_S, process=self.process)

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/help/", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _environment(self) -> dict[str, str]:
        url = urlsplit(os.environ["LAMINAR_DATABASE_URL"])
        database = url._replace(
            path=f"/{settings.DATABASES['default']['NAME']}"
        )  # pytest-django has set the test database's name
        return os.environ | {
            "LAMINAR_DATABASE_URL": database.geturl(),
            "PGAPPNAME": NAME_OF_THE_SERVER,
            "LAMINAR_PUBLIC_URL": self.url,
            "LAMINAR_ALLOWED_HOSTS": "127.0.0.1",
            "DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"],
        }


@pytest.fixture(scope="session")
def server_of_all(django_db_setup: None) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = Server(port=port)
    yield running
    running.stop()


@pytest.fixture
def server(server_of_all: Server) -> Server:
    """Keeps no state between tests, but takes seconds to start: it is started on first use, and restarted if a test
    killed it."""
    if server_of_all.process is None or server_of_all.process.poll() is not None:
        server_of_all.start()
    return server_of_all


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Module scope: Playwright's event loop would conflict with those of other tests."""
    program = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if program is None:
        reason = "NO BROWSER TEST RAN: there is no chromium here. Install it (Debian: apt-get install chromium)."
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv(
            "DJANGO_ALLOW_ASYNC_UNSAFE", "true"
        )  # Playwright's event loop runs in this thread, and tests use the ORM in it
        browser = playwright.chromium.launch(executable_path=program, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@dataclass(slots=True)
class Visitor:
    """A user with a browser. Console errors of their pages are collected; at the end of the test there must be none
    except those that the test declared."""

    context: BrowserContext
    page: Page
    server: Server
    complaints: list[str] = field(default_factory=list)
    provoked: list[str] = field(default_factory=list)

    def hear(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"} and LEFT_EARLY not in text:
            self.complaints.append(text)

    def provokes(self, pattern: str) -> None:
        """Declares an error that the browser reports because the test refuses a request or cuts a connection."""
        self.provoked.append(pattern)

    @property
    def unexpected(self) -> list[str]:
        return [text for text in self.complaints if not any(re.search(each, text) for each in self.provoked)]

    def open(self, path: str) -> Page:
        self.page.goto(self.server.url + path)
        return self.page


@pytest.fixture
def visit(chromium: Browser, server: Server, transactional_db: None) -> Iterator[Callable[..., Visitor]]:
    """`visit(user, width=390, dark=True)`: signed in, on an empty page."""
    visitors: list[Visitor] = []

    def arrive(
        user: User | None = None,
        *,
        width: int = 1280,
        dark: bool = False,
        scripts: bool = True,
        zone: str = "UTC",
        has_policy: bool = True,
    ) -> Visitor:
        context = chromium.new_context(
            viewport={"width": width, "height": 844},
            color_scheme="dark" if dark else "light",
            base_url=server.url,
            java_script_enabled=scripts,
            timezone_id=zone,
            bypass_csp=not has_policy,
        )
        if user is not None:
            client = Client()
            client.force_login(user)
            value = client.cookies[settings.SESSION_COOKIE_NAME].value
            context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": value, "url": server.url}])
        visitor = Visitor(context=context, page=context.new_page(), server=server)
        context.set_default_timeout(GIVES_UP_AFTER_MS)
        context.on("console", lambda message: visitor.hear(message.type, message.text))
        context.on("weberror", lambda error: visitor.complaints.append(str(error.error)))
        context.on("dialog", lambda dialog: visitor.complaints.append(f"a script ran: {dialog.message}"))
        visitors.append(visitor)
        return visitor

    yield arrive
    complaints = [complaint for visitor in visitors for complaint in visitor.unexpected]
    for visitor in visitors:
        visitor.context.close()
    come_to_rest()
    assert not complaints, "the browser complained of what this test did not provoke"


def come_to_rest() -> None:
    """Waits for the pages' pending requests: truncating tables meanwhile would take locks in the opposite order."""

    def open_transactions() -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT query FROM pg_stat_activity WHERE application_name = %s AND xact_start IS NOT NULL",
                [NAME_OF_THE_SERVER],
            )
            queries: list[Any] = cursor.fetchall()
        return queries

    eventually(open_transactions, "every request of the pages has ended", until=lambda queries: not queries)
