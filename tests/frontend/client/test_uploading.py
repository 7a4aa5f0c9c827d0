"""Uploads by the client to a real server: an interrupted upload resumes at any point and sends nothing twice."""

import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from backend.assets.models import Asset, AssetPart
from frontend.client.laminar_client import Laminar
from frontend.client.laminar_client.uploading import PART_BYTES
from tests.frontend.client.conftest import QUICK, Shell
from tests.frontend.conftest import Server
from tests.frontend.seed import World
from tests.waiting import eventually

ROWS = {f"part-{number}.jsonl": b'{"prompt": "%d"}\n' % number for number in range(3)}
REQUESTS = 2 + len(ROWS) + 1  # begin, list, parts, complete


class Dies(Exception):
    """Like a killed process: no cleanup runs."""


class Mortal(httpx.HTTPTransport):
    """Dies at the n-th request, before it is sent or before its response arrives."""

    def __init__(self, at: int, *, is_sent: bool) -> None:
        super().__init__()
        self.asked: list[str] = []
        self._at, self._is_sent = at, is_sent

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.path.rpartition('/assets')[2]}")
        dies = len(self.asked) == self._at
        if dies and not self._is_sent:
            raise Dies
        response = super().handle_request(request)
        if dies:
            response.read()
            raise Dies
        return response


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "sums"
    made.mkdir()
    for name, content in ROWS.items():
        (made / name).write_bytes(content)
    return made


@pytest.mark.long
def test_wherever_it_dies_it_goes_on_and_sends_no_part_twice(server: Server, key: str, folder: Path) -> None:
    for at in range(1, REQUESTS + 1):
        for is_sent in (False, True):
            first, second = Mortal(at, is_sent=is_sent), Mortal(0, is_sent=False)
            name = f"sums-{at}-{is_sent}"
            with Laminar(server.url, key, patience=QUICK, transport=first) as doomed, pytest.raises(Dies):
                doomed.assets.upload(folder, kind="data", name=name)
            with Laminar(server.url, key, patience=QUICK, transport=second) as heir:
                asset = heir.assets.upload(folder, kind="data", name=name)
            assert asset.state == "ready"
            if at == REQUESTS and is_sent:  # the upload was complete, so the repeated call creates another version
                assert asset.version == 2
                continue
            assert asset.version == 1
            put = [asked for asked in (*first.asked, *second.asked) if asked.startswith("PUT")]
            again = [asked for asked in set(put) if put.count(asked) > 1]
            assert not again or (not is_sent and again == [first.asked[-1]]), (at, is_sent, put)


@pytest.mark.long
def test_a_killed_command_is_called_again_and_finishes(shell: Shell, world: World, tmp_path: Path) -> None:
    file = tmp_path / "big.jsonl"
    file.write_bytes(b'{"prompt": "1"}\n' * (6 * PART_BYTES // 16))
    command = ("upload", str(file), "--kind", "data", "--name", "big")
    process = shell.start(*command)
    eventually(AssetPart.objects.exists, "a part has come", every_s=0.002, process=process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    came = AssetPart.objects.count()
    assert 1 <= came < 6 and Asset.objects.get().state == "uploading"
    assert shell(*command).stdout == "big@1\n"
    assert Asset.objects.get().state == "ready" and AssetPart.objects.count() == 6


def test_what_is_uploaded_is_listed_and_deleted(shell: Shell, world: World, folder: Path) -> None:
    shell("upload", str(folder), "--kind", "data")
    told = shell("assets").stdout
    assert "sums@1" in told and "ready" in told
    listed = shell.json("assets")
    assert listed["storage"]["used_bytes"] == sum(map(len, ROWS.values()))
    asset = listed["assets"][0]["id"]
    shell("delete-asset", asset)
    assert shell.json("assets")["assets"] == []
    shell("delete-asset", asset, code=3)


def test_what_cannot_be_uploaded_is_said_before_anything_is_sent(
    shell: Shell, world: World, folder: Path, key_of: Callable[..., str]
) -> None:
    (folder / "inner").mkdir()
    assert "contains folders (inner)" in shell("upload", str(folder), "--kind", "data", code=1).stderr
    (folder / "inner").rmdir()
    (folder / "weights.pkl").write_bytes(b"x")
    assert "may run code" in shell("upload", str(folder), "--kind", "data", code=2).stderr
    assert not Asset.objects.exists()
