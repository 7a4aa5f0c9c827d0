"""Uploads in a separate store, made as a client makes them."""

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings

from engine.spec.assets.asset_manifest import PART_BYTES, AssetManifest, ManifestFile
from tests.backend.conftest import Api

ROWS = b'{"prompt": "2 + 2 = ", "answer": "4"}\n{"prompt": "3 + 3 = ", "answer": "6"}\n'
Upload = Callable[..., Any]


@pytest.fixture(autouse=True)
def store_dir(settings: LazySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, store_dir=tmp_path, store_url="")
    from backend.store.chosen import store

    store.cache_clear()
    return tmp_path


def parts_of(content: bytes) -> list[bytes]:
    return [content[start : start + PART_BYTES] for start in range(0, len(content), PART_BYTES)]


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def manifest_of(contents: Mapping[str, bytes]) -> AssetManifest:
    return AssetManifest(
        files=[
            ManifestFile(name=name, num_bytes=len(content), parts=[sha256_of(part) for part in parts_of(content)])
            for name, content in sorted(contents.items())
        ]
    )


def listing_of(contents: Mapping[str, bytes]) -> list[dict[str, Any]]:
    return [{"name": name, "num_bytes": len(content)} for name, content in contents.items()]


def safetensors(**tensors: bytes) -> bytes:
    header, at = {}, 0
    for name, content in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": [at, at + len(content)]}
        at += len(content)
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + b"".join(tensors.values())


MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b'{"model": {}}',
    "model.safetensors": safetensors(weight=b"1234"),
}


def begin(api: Api, contents: Mapping[str, bytes], *, kind: str = "data", name: str = "sums", **more: Any) -> Any:
    return api.post("/assets", {"kind": kind, "name": name, "files": listing_of(contents), **more})


def put(api: Api, asset: str, file: int, part: int, content: bytes, *, sha256: str = "") -> Any:
    digest = sha256 or sha256_of(content)
    return api.request("PUT", f"/assets/{asset}/files/{file}/parts/{part}?sha256={digest}", content)


def complete(api: Api, asset: str, contents: Mapping[str, bytes]) -> Any:
    whole = manifest_of(contents)
    return api.post(f"/assets/{asset}/complete", {"num_bytes": whole.num_bytes, "sha256": whole.sha256})


def upload(api: Api, contents: Mapping[str, bytes], **begun: Any) -> Any:
    """The response to the completion of a whole upload."""
    answer = begin(api, contents, **begun)
    assert answer.status_code == 201, answer.content
    asset = answer.json()["id"]
    for number, (_, content) in enumerate(sorted(contents.items())):
        for part, piece in enumerate(parts_of(content)):
            sent = put(api, asset, number, part, piece)
            assert sent.status_code == 204, sent.content
    return complete(api, asset, contents)
