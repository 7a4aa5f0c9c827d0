"""An environment with breakable parts, and a Ray dashboard with configurable responses."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from backend.environment import Environment

Broken = Callable[..., Environment]
TOKEN = "a-token-of-the-cluster"


@pytest.fixture
def broken() -> Broken:
    """This site's environment with the given changes."""
    return lambda **changes: replace(settings.ENVIRONMENT, **changes)


@dataclass(slots=True)
class Dashboard:
    """Responses of a real Ray 2.60, by path."""

    url: str = ""
    token: str = TOKEN
    answers: dict[str, Any] = field(default_factory=dict)

    def has_nodes(self, *resources: dict[str, float]) -> None:
        rows = [
            {"node_id": f"{at:056x}", "node_ip": f"10.0.0.{at}", "state": "ALIVE", "resources_total": each}
            for at, each in enumerate(resources)
        ]
        gone = {"node_id": "f" * 56, "node_ip": "10.0.0.99", "state": "DEAD", "resources_total": {"GPU": 64.0}}
        self.answers["/api/v0/nodes"] = {"result": True, "data": {"result": {"result": [*rows, gone]}}}


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    dashboard = Dashboard(answers={"/api/version": {"ray_version": "2.60.0"}, "/api/jobs/": []})
    dashboard.has_nodes({"CPU": 8.0, "memory": 1e9})

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            is_known = not dashboard.token or self.headers["Authorization"] == f"Bearer {dashboard.token}"
            self.send_response(401 if not is_known else 200 if path in dashboard.answers else 404)
            self.end_headers()
            if is_known:
                self.wfile.write(json.dumps(dashboard.answers.get(path)).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
    dashboard.url = f"http://127.0.0.1:{server.server_port}"
    yield dashboard
    server.shutdown()
    server.server_close()


@pytest.fixture
def with_ray(dashboard: Dashboard, broken: Broken, tmp_path: Path) -> Environment:
    token = tmp_path / "ray token"
    token.write_text(TOKEN + "\n")
    return broken(ray_url=dashboard.url, ray_token_file=token)
