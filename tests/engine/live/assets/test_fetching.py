"""Fetching from a real server that lies, fails and redirects: content that matches the manifest arrives, or nothing."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine.live.assets import fetching
from engine.live.assets.fetching import AssetRefused, Source
from engine.spec.assets.asset_manifest import PART_BYTES, AssetManifest, ManifestFile

CONTENTS = {"a.jsonl": bytes(range(256)) * (PART_BYTES // 256) + b"the rest", "b.jsonl": b"small"}


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def parts_of(content: bytes) -> list[bytes]:
    return [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]


MANIFEST = AssetManifest(
    files=[
        ManifestFile(name=name, num_bytes=len(content), parts=[sha256_of(part) for part in parts_of(content)])
        for name, content in CONTENTS.items()
    ]
)
PARTS = {sha256_of(part): part for content in CONTENTS.values() for part in parts_of(content)}


class Server:
    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        """Path and token."""
        self.answer: Callable[[int, str], tuple[int, bytes, str] | None] = lambda number, path: None
        """Request number and path → status, body and Location; None: the true answer."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append((self.path, self.headers.get("Authorization", "")))
                answer = outer.answer(len(outer.requests), self.path) or (200, outer.true_answer(self.path), "")
                self.send_response(answer[0])
                if answer[2]:
                    self.send_header("Location", answer[2])
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()

    @staticmethod
    def true_answer(path: str) -> bytes:
        return MANIFEST.model_dump_json().encode() if path.endswith("/manifest") else PARTS[path.rpartition("/")[2]]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(fetching, "WAITS_S", (0.0, 0.0))
    running = Server()
    yield running
    running.close()


def source(server: Server) -> Source:
    return Source(control_url=server.url, token="secret")


def fill(server: Server, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    source(server).fill(folder, "asset_x", MANIFEST, report_progress=lambda: None)


def contents_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_file_arrives_whole_despite_failed_requests(server: Server, tmp_path: Path) -> None:
    broken: dict[int, tuple[int, bytes, str]] = {1: (503, b"", ""), 2: (200, b"another content", "")}
    server.answer = lambda number, path: broken.get(number)
    fill(server, tmp_path / "x")
    assert contents_of(tmp_path / "x") == CONTENTS


def test_resumed_fetch_loads_only_missing_and_damaged_parts(server: Server, tmp_path: Path) -> None:
    fill(server, tmp_path)
    torn = bytearray(CONTENTS["a.jsonl"])
    torn[5] ^= 1
    (tmp_path / "a.jsonl").write_bytes(torn)
    (tmp_path / "left-by-another").write_bytes(b"x")
    server.requests.clear()
    fill(server, tmp_path)
    assert contents_of(tmp_path) == CONTENTS
    assert [path.rpartition("/")[2] for path, _ in server.requests] == [MANIFEST.files[0].parts[0]]


def test_token_goes_to_the_control_plane_and_to_no_link(server: Server, tmp_path: Path) -> None:
    bucket = Server()

    def elsewhere(number: int, path: str) -> tuple[int, bytes, str]:
        return 302, b"", f"{bucket.url}{path}?signed"

    server.answer = elsewhere
    bucket.answer = lambda number, path: (200, PARTS[path.partition("?")[0].rpartition("/")[2]], "")
    fill(server, tmp_path)
    assert contents_of(tmp_path) == CONTENTS
    assert [{token for _, token in each.requests} for each in (server, bucket)] == [{"Bearer secret"}, {""}]
    bucket.close()


def test_redirect_to_a_local_file_is_refused(server: Server, tmp_path: Path) -> None:
    server.answer = lambda number, path: (302, b"", "file:///etc/passwd")
    with pytest.raises(ConnectionError):
        fill(server, tmp_path)


def test_content_that_never_matches_its_hash_is_refused(server: Server, tmp_path: Path) -> None:
    server.answer = lambda number, path: (200, b"another content", "")
    with pytest.raises(ConnectionError, match="does not match its hash"):
        fill(server, tmp_path)
    with pytest.raises(ConnectionError):
        source(server).manifest("asset_x", MANIFEST.sha256)


def test_manifest_is_accepted_by_its_hash_only(server: Server) -> None:
    assert source(server).manifest("asset_x", MANIFEST.sha256) == MANIFEST
    with pytest.raises(ConnectionError):
        source(server).manifest("asset_x", "0" * 64)


def test_refusal_of_an_ended_attempt_is_not_retried(server: Server, tmp_path: Path) -> None:
    server.answer = lambda number, path: (401, b"", "")
    with pytest.raises(AssetRefused):
        source(server).manifest("asset_x", MANIFEST.sha256)
    assert len(server.requests) == 1
