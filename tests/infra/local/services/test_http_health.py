"""A look at a server of this machine: cheap, and past any proxy."""

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from infra.local.services.http_health import responds


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_known = self.path == "/healthz" and self.headers["Authorization"] in (None, "Bearer ours")
        self.send_response(200 if is_known else 404)
        self.end_headers()

    def log_message(self, format: str, *words: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, args=[0.02]).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_look_tells_answer_from_silence_and_error(url: str) -> None:
    assert responds(f"{url}/healthz") and responds(f"{url}/healthz", headers={"Authorization": "Bearer ours"})
    assert not responds(f"{url}/elsewhere") and not responds("http://127.0.0.1:9/healthz")


def test_look_loads_no_certificates_and_asks_no_proxy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *words, **more: loaded.append(words))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    assert responds(f"{url}/healthz") and not loaded
