"""The store's port: the same tests for the folder and for S3, on a real S3 server."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from backend.store.chosen import store_at
from backend.store.folder import FolderStore
from backend.store.port import NotStored, ObjectStore, StoreUnavailable, checked_key
from backend.store.s3 import S3Store
from engine.spec.assets.store_address import StoreAddress
from tests.s3_server import CREDENTIALS, S3Server, s3_server


def s3_store(endpoint: str, prefix: str = "") -> S3Store:
    return S3Store(StoreAddress.read(f"s3://laminar/{prefix}", endpoint=endpoint))


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch, s3_server() as running:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        running.make_bucket("laminar")
        yield running


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return FolderStore(tmp_path)
    server: S3Server = request.getfixturevalue("server")
    return s3_store(server.endpoint, tmp_path.name)


class TestEveryStore:
    def test_what_was_put_is_read_whole_or_in_part(self, store: ObjectStore) -> None:
        store.put("jobs/a/1.parquet", b"0123456789")
        assert store.get("jobs/a/1.parquet") == b"0123456789"
        assert store.get_range("jobs/a/1.parquet", 3, 4) == b"3456"
        assert store.get_range("jobs/a/1.parquet", 8, 100) == b"89"
        assert store.get_range("jobs/a/1.parquet", 10, 5) == b""
        assert store.get_range("jobs/a/1.parquet", 0, 0) == b""

    def test_a_later_put_replaces_the_earlier(self, store: ObjectStore) -> None:
        store.put("a", b"old")
        store.put("a", b"new")
        assert store.get("a") == b"new"

    def test_a_file_larger_than_one_part_arrives_whole(self, store: ObjectStore, tmp_path: Path) -> None:
        large = tmp_path / "large"
        content = os.urandom(1024) * (17 * 1024)
        large.write_bytes(content)
        store.put("large", large)
        assert store.get("large") == content

    def test_missing_object_is_reported_and_its_deletion_succeeds(self, store: ObjectStore) -> None:
        with pytest.raises(NotStored):
            store.get("nothing")
        with pytest.raises(NotStored):
            store.get_range("nothing/here", 0, 1)
        store.delete("nothing/here")
        store.put("a/b", b"1")
        store.delete("a/b")
        store.delete("a/b")
        with pytest.raises(NotStored):
            store.get("a/b")

    def test_lists_by_prefix_in_order(self, store: ObjectStore) -> None:
        for key in ("jobs/b/2", "jobs/b/10", "jobs/ba/1", "jobs/a/1"):
            store.put(key, key.encode())
        assert [(each.key, each.num_bytes) for each in store.list("jobs/b/")] == [("jobs/b/10", 9), ("jobs/b/2", 8)]
        assert [each.key for each in store.list("jobs/b")] == ["jobs/b/10", "jobs/b/2", "jobs/ba/1"]
        assert [each.key for each in store.list("none/")] == []

    @pytest.mark.parametrize("key", ["../a", "/etc/passwd", "a//b", "a/../b", ".", "", "a/.hidden", "a\0b", "a\n", "é"])
    def test_no_key_leads_out_of_the_store(self, store: ObjectStore, key: str) -> None:
        for act in (store.get, store.delete, lambda key: store.put(key, b"x")):
            with pytest.raises(ValueError, match="not a key"):
                act(key)


class TestTheFolder:
    def test_a_put_that_breaks_leaves_nothing_behind(self, tmp_path: Path) -> None:
        store = FolderStore(tmp_path)
        store.put("a", b"old")
        with pytest.raises(OSError, match="No such file"):
            store.put("a", tmp_path / "missing")
        assert store.get("a") == b"old"
        assert list((tmp_path / "incoming").iterdir()) == []

    def test_has_no_address_of_its_own(self, tmp_path: Path) -> None:
        assert FolderStore(tmp_path).presigned_url("a", expires_in_s=60) is None


class TestS3:
    def test_a_presigned_url_opens_this_object_without_credentials(self, server: S3Server) -> None:
        store = s3_store(server.endpoint, "signed")
        store.put("a", b"content")
        url = store.presigned_url("a", expires_in_s=60)
        assert url is not None and "X-Amz-Expires=60" in url
        assert httpx.get(url).content == b"content"

    def test_stores_with_other_prefixes_do_not_see_each_other(self, server: S3Server) -> None:
        one, other = (s3_store(server.endpoint, name) for name in ("one", "other"))
        one.put("a", b"1")
        assert [each.key for each in one.list("")] == ["a"]
        assert list(other.list("")) == []

    def test_a_server_that_is_gone_is_unavailable_for_now(self, server: S3Server) -> None:
        store = s3_store("http://127.0.0.1:9")
        with pytest.raises(StoreUnavailable) as raised:
            store.get("a")
        assert raised.value.retryable


def test_the_address_chooses_the_store(tmp_path: Path, server: S3Server) -> None:
    assert isinstance(store_at("", folder=tmp_path), FolderStore)
    chosen = store_at("s3://laminar/some/where", folder=tmp_path, endpoint=server.endpoint)
    chosen.put("k", b"v")
    assert s3_store(server.endpoint).get("some/where/k") == b"v"
    for url in ("ftp://x/y", "s3:///prefix", "bucket"):
        with pytest.raises(ValueError, match="LAMINAR_STORE_URL"):
            store_at(url, folder=tmp_path)
    assert checked_key("a/b-1_2=3,4.parquet") == "a/b-1_2=3,4.parquet"
