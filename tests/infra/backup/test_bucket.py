"""Objects of a bucket, on a server that speaks S3: each fetched once, and put back where they are missing."""

import os
from pathlib import Path

import pytest

from backend.store.s3 import S3Store
from engine.spec.assets.store_address import StoreAddress
from infra.backup.files import PIECE, Bucket, add_missing, save_files
from infra.backup.manifest import SavedFile
from infra.backup.repository import Repository
from tests.s3_server import CREDENTIALS, s3_server

OBJECTS = {"jobs/a/manifest.json": b"{}", "jobs/a/parts/empty": b"", "jobs/b/large": os.urandom(PIECE)}


def save(store: S3Store, repository: Repository, known: list[SavedFile]) -> tuple[list[SavedFile], list[str]]:
    lines: list[str] = []
    with repository.writing():
        return save_files([Bucket(store)], repository, known, lines.append), lines


def test_bucket_is_restored_and_no_object_fetched_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server() as server:
        server.make_bucket("ours")
        server.make_bucket("other")
        store, other = (
            S3Store(StoreAddress.read(f"s3://{name}/site", endpoint=server.endpoint)) for name in ("ours", "other")
        )
        for key, content in OBJECTS.items():
            store.put(key, content)
        repository = Repository(tmp_path / "backups")
        saved, lines = save(store, repository, [])
        assert {file.name: file.num_bytes for file in saved} == {key: len(each) for key, each in OBJECTS.items()}
        assert lines == ["files: 3, 3 of them new"]
        assert save(store, repository, saved)[1] == ["files: 3, 0 of them new"]
        other.put("jobs/b/large", b"what is there stays")
        assert add_missing(saved, Bucket(other), repository, lambda line: None) == 2
        assert other.get("jobs/a/manifest.json") == b"{}" and other.get("jobs/a/parts/empty") == b""
        assert other.get("jobs/b/large") == b"what is there stays"
