"""Parts over a real connection: read while they arrive, only if authorized, and no further than they are valid."""

import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from backend.assets.models import AssetPart
from engine.spec.assets.asset_manifest import PART_BYTES
from tests.backend.assets.conftest import begin, sha256_of
from tests.backend.conftest import Api

CONTENT = bytes(PART_BYTES - 1) + b"\n"
OCTETS = "application/octet-stream"


@pytest.fixture
def asset(api: Api, web_server: str) -> str:
    asset_id: str = begin(api, {"a.jsonl": CONTENT}).json()["id"]
    return asset_id


def put(url: str, asset: str, key: str, content: Any, *, sha256: str = "", **headers: str) -> httpx.Response:
    headers_sent = {"Authorization": f"Bearer {key}", "Content-Type": OCTETS, **headers}
    address = f"{url}/assets/{asset}/files/0/parts/0?sha256={sha256 or sha256_of(CONTENT)}"
    return httpx.put(address, content=content, headers=headers_sent, timeout=120)


def test_longer_part_is_refused_unread(web_server: str, asset: str, api: Api) -> None:
    longer = put(web_server, asset, str(api.key), CONTENT + b"x")
    assert (longer.status_code, longer.json()["code"]) == (413, "too_large")
    assert put(web_server, asset, str(api.key), CONTENT).status_code == 204
    assert AssetPart.objects.get().sha256 == sha256_of(CONTENT)


def test_part_of_an_unauthorized_sender_is_not_read(web_server: str, asset: str, api: Api) -> None:
    asked = 0

    def endless() -> Iterator[bytes]:
        nonlocal asked
        for _ in range(10_000):
            asked += 1
            yield bytes(2**16)

    try:
        refused = put(web_server, asset, "lam_live_nobody", endless(), **{"Content-Length": str(len(CONTENT))})
        assert refused.status_code == 401
    except httpx.TransportError:
        pass  # it was closed during the upload
    assert asked * 2**16 < len(CONTENT), "it was read to the end"
    assert not AssetPart.objects.exists()


def test_broken_upload_of_part_leaves_nothing_and_is_retried(web_server: str, asset: str, api: Api) -> None:
    parts = urlsplit(web_server)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as sender:
        address = f"{parts.path}/assets/{asset}/files/0/parts/0?sha256={sha256_of(CONTENT)}"
        headers = {"Host": parts.netloc, "Authorization": f"Bearer {api.key}", "Content-Type": OCTETS}
        lines = [f"{name}: {value}" for name, value in (headers | {"Content-Length": str(len(CONTENT))}).items()]
        sender.sendall("\r\n".join([f"PUT {address} HTTP/1.1", *lines, "", ""]).encode())
        sender.sendall(CONTENT[: PART_BYTES // 2])
    assert put(web_server, asset, str(api.key), CONTENT).status_code == 204
    assert AssetPart.objects.count() == 1


def test_missing_content_length_is_411(web_server: str, asset: str, api: Api) -> None:
    answer = put(web_server, asset, str(api.key), iter([CONTENT]))
    assert (answer.status_code, answer.json()["code"]) == (411, "length_required")


def test_octets_are_refused_by_a_route_that_did_not_ask_for_them(web_server: str, api: Api) -> None:
    headers = {"Authorization": f"Bearer {api.key}", "Content-Type": OCTETS}
    answer = httpx.post(f"{web_server}/jobs", content=CONTENT, headers=headers, timeout=120)
    assert answer.status_code == 413 and answer.headers["Connection"] == "close", "their length sufficed"
