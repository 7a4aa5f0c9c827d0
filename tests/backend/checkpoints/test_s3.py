"""Checkpoints through a bucket: the engine's upload and download, the control plane's verification and deletion.

The server is moto's, in its own process over HTTP; faults come from a small proxy in between, or from SIGKILL.
"""

import http.client
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import urlsplit

import boto3
import httpx
import pytest
from django.conf import LazySettings

from backend.checkpoints import verification
from backend.checkpoints.models import Checkpoint
from backend.checkpoints.retention import remove_files
from backend.checkpoints.services import GRACE, ForeignAddress, delete_checkpoint, record_checkpoint
from backend.jobs.models import Job
from backend.store.chosen import store
from engine.live.checkpoints.apart import load_alone
from engine.live.checkpoints.resuming import finish_checkpoint, forget_older, open_checkpoint
from engine.live.checkpoints.store import CheckpointStore, GivenUp, RemoteCheckpoints
from engine.live.checkpoints.writer import CheckpointWriter
from engine.pipeline.messages.to_trainer import CheckpointFailed, CheckpointWritten
from engine.pipeline.records import DataProgress
from engine.spec.assets.store_address import StoreAddress
from engine.spec.facts import CheckpointSaved
from engine.training.checkpoint.folder import CheckpointUnverified, read_manifest, verify_checkpoint
from tests.backend.checkpoints.conftest import CONTENTS, write_files
from tests.s3_server import CREDENTIALS, S3Server, s3_server

PROGRESS = DataProgress(ended=((0, 40), (44, 48)), ledger=(("trained", 44),))
BUCKET = "laminar"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch, s3_server() as running:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        running.make_bucket(BUCKET)
        yield running


@dataclass(slots=True)
class Proxy:
    """A proxy between client and server: counts requests, and answers some of them itself."""

    endpoint: str
    asked: list[str] = field(default_factory=list)
    answer: Callable[[int], int] = lambda number: 0
    """By number of the request: a status to return instead of the server's; -1: hang up; 0: pass it on."""


@contextmanager
def proxy_to(server: S3Server) -> Iterator[Proxy]:
    target = urlsplit(server.endpoint)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            running.asked.append(f"{self.command} {self.path}")
            status = running.answer(len(running.asked))
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if status == -1:
                self.close_connection = True
                return
            if status:
                busy = b"<Error><Code>SlowDown</Code><Message>busy</Message></Error>"
                self.send_response(status)
                self.send_header("Content-Length", str(len(busy)))
                self.end_headers()
                self.wfile.write(busy if self.command != "HEAD" else b"")
                return
            upstream = http.client.HTTPConnection(target.hostname or "", target.port or 80)
            upstream.request(self.command, self.path, body, dict(self.headers.items()))
            given = upstream.getresponse()
            content = given.read()
            self.send_response(given.status)
            for name, value in given.getheaders():
                if name.lower() not in {"transfer-encoding", "connection", "date", "server", "content-length"}:
                    self.send_header(name, value)
            length = given.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(content)
            upstream.close()

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = pass_on

        def log_message(self, format: str, *args: Any) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running = Proxy(endpoint=f"http://127.0.0.1:{listener.server_address[1]}")
    threading.Thread(target=listener.serve_forever, args=[0.02], daemon=True).start()
    try:
        yield running
    finally:
        listener.shutdown()
        listener.server_close()


@pytest.fixture
def proxy(server: S3Server) -> Iterator[Proxy]:
    with proxy_to(server) as running:
        yield running


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A prefix for this test alone."""
    return f"s3://{BUCKET}/{tmp_path.name}"


def keys_below(url: str, server: S3Server) -> list[str]:
    client = boto3.client("s3", endpoint_url=server.endpoint)
    prefix = urlsplit(url).path.strip("/") + "/"
    rows = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return sorted(row["Key"].removeprefix(prefix) for row in rows)


def remote(url: str, endpoint: str, root: Path) -> RemoteCheckpoints:
    return RemoteCheckpoints(
        store=CheckpointStore(StoreAddress.read(url, endpoint=endpoint), wait=lambda seconds: None), root=root
    )


def checkpoint_in(root: Path, *, job: str = "job_a", step: int = 5, contents: dict[str, bytes] = CONTENTS) -> Path:
    folder = root / "jobs" / job / "attempt-1-fence-1" / "checkpoints" / f"step-{step:06d}"
    write_files(folder, contents)
    finish_checkpoint(folder, step=step, progress=PROGRESS)
    return folder


@dataclass(frozen=True, slots=True)
class Everything:
    """A process that loads a complete checkpoint."""

    def files_needed(self, stored: Mapping[str, Sequence[str]]) -> list[str]:
        return list(stored)

    def load(self, folder: Path) -> None:
        verify_checkpoint(folder)


def fetched(node: RemoteCheckpoints, uri: str, *names: str) -> Path:
    """The whole checkpoint, or only the parts with these names; read back."""
    folder = node.open(uri)
    _, parts = read_manifest(folder)
    node.store.fetch_parts(uri, {name: parts[name] for name in names or parts}, folder)
    verify_checkpoint(folder)
    return folder


def key_of(folder: Path, root: Path) -> str:
    return folder.relative_to(root).as_posix()


class TestTravel:
    def test_checkpoint_of_one_node_resumes_on_another(self, server: S3Server, url: str, tmp_path: Path) -> None:
        here, there = tmp_path / "here", tmp_path / "there"
        results: Queue[CheckpointWritten | CheckpointFailed] = Queue()
        writer = CheckpointWriter(results.put, remote(url, server.endpoint, here))
        folder = here / "jobs" / "job_a" / "attempt-1-fence-1" / "checkpoints" / "step-000005"
        writer.put(lambda: lambda: write_files(folder), folder, step=5, progress=PROGRESS)
        written = results.get(timeout=120)
        assert isinstance(written, CheckpointWritten), written
        assert written.uri == f"{url}/jobs/job_a/attempt-1-fence-1/checkpoints/step-000005"
        found = open_checkpoint(written.uri, remote(url, server.endpoint, there))
        assert found.data_progress() == PROGRESS and found.step == 5
        assert verify_checkpoint(found.folder) == written.manifest_sha256
        assert there in found.folder.parents
        assert not any((found.folder / name).exists() for name in CONTENTS), "an attempt that resumes fetches its parts"
        fetched(remote(url, server.endpoint, there), written.uri)
        assert {name: (found.folder / name).read_bytes() for name in CONTENTS} == CONTENTS

    @pytest.mark.long
    def test_a_part_larger_than_one_piece_arrives_whole(self, server: S3Server, url: str, tmp_path: Path) -> None:
        folder = tmp_path / "jobs/job_a/step-000001"
        write_files(folder, {"model.safetensors": b"0123456789abcdef" * (2 * 2**20 + 7)})  # 32 MiB and a bit
        finish_checkpoint(folder, step=1, progress=PROGRESS)
        node = remote(url, server.endpoint, tmp_path)
        assert verify_checkpoint(fetched(node, node.upload(folder))) == verify_checkpoint(folder)

    def test_an_address_in_another_bucket_or_prefix_is_refused(
        self, server: S3Server, url: str, tmp_path: Path
    ) -> None:
        node = remote(url, server.endpoint, tmp_path)
        for address in ("s3://other/jobs/a", f"s3://{BUCKET}/elsewhere/jobs/a", f"{url}x/jobs/a"):
            with pytest.raises(ValueError, match="resume_from"):
                node.open(address)

    def test_s3_address_without_a_store_names_whats_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("LAMINAR_STORE_URL", raising=False)
        with pytest.raises(ValueError, match="LAMINAR_STORE_URL"):
            open_checkpoint("s3://bucket/x")

    def test_only_the_last_two_local_copies_stay(self, tmp_path: Path) -> None:
        folders = [checkpoint_in(tmp_path, step=step) for step in (1, 2, 3, 9)]
        forget_older(folders[2])
        assert [folder.exists() for folder in folders] == [False, True, True, True]


class Died(BaseException):
    """No handler catches it, just as none catches SIGKILL."""


@dataclass(slots=True)
class Mortal:
    """A client that dies instead of its nth write."""

    client: Any
    dies_at: int
    writes: int = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.client, name)
        if name not in {"upload_file", "put_object"}:
            return call

        def write(*args: Any, **more: Any) -> Any:
            self.writes += 1
            if self.writes == self.dies_at:
                raise Died
            return call(*args, **more)

        return write


class TestFaults:
    @pytest.mark.long_except("-1")
    @pytest.mark.parametrize("fault", [503, 500, -1])
    def test_a_store_that_fails_every_second_time_costs_time_only(
        self, fault: int, proxy: Proxy, url: str, tmp_path: Path
    ) -> None:
        proxy.answer = lambda number: fault if number % 2 else 0
        node = remote(url, proxy.endpoint, tmp_path)
        folder = checkpoint_in(tmp_path)
        assert verify_checkpoint(fetched(node, node.upload(folder))) == verify_checkpoint(folder)

    @pytest.mark.long
    def test_unreachable_store_loses_one_checkpoint_and_reports(self, url: str, tmp_path: Path) -> None:
        results: Queue[CheckpointWritten | CheckpointFailed] = Queue()
        writer = CheckpointWriter(results.put, remote(url, "http://127.0.0.1:9", tmp_path))
        folder = tmp_path / "jobs/job_a/step-000001"
        writer.put(lambda: lambda: write_files(folder), folder, step=1, progress=PROGRESS)
        failed = results.get(timeout=60)
        assert isinstance(failed, CheckpointFailed) and "store" in failed.reason
        with pytest.raises(ConnectionError):
            remote(url, "http://127.0.0.1:9", tmp_path).open(f"{url}/jobs/job_a/step-000001")

    def test_full_store_loses_one_checkpoint_and_takes_the_next(self, proxy: Proxy, url: str, tmp_path: Path) -> None:
        results: Queue[CheckpointWritten | CheckpointFailed] = Queue()
        writer = CheckpointWriter(results.put, remote(url, proxy.endpoint, tmp_path))

        def saved(step: int) -> CheckpointWritten | CheckpointFailed:
            folder = tmp_path / "jobs" / "job_a" / "attempt-1-fence-1" / "checkpoints" / f"step-{step:06d}"
            writer.put(lambda: lambda: write_files(folder, CONTENTS), folder, step=step, progress=PROGRESS)
            return results.get(timeout=120)

        proxy.answer = lambda number: 507
        assert isinstance(saved(5), CheckpointFailed)
        proxy.answer = lambda number: 0
        assert isinstance(saved(6), CheckpointWritten)

    def test_interrupted_upload_is_invisible_and_resumes(
        self, proxy: Proxy, server: S3Server, url: str, tmp_path: Path
    ) -> None:
        """The uploader dies at each of its writes in turn."""
        folder = checkpoint_in(tmp_path)
        key = key_of(folder, tmp_path)

        def uploader(dies_at: int) -> CheckpointStore:
            mortal = Mortal(boto3.client("s3", endpoint_url=proxy.endpoint), dies_at)
            return CheckpointStore(StoreAddress.read(url), client=mortal)

        num_writes = len({*CONTENTS.values()}) + 1 + 2  # equal parts are one object; progress; two manifests
        for _ in range(num_writes - 1):
            with pytest.raises(Died):
                uploader(dies_at=2).upload(folder, key)  # gets one write further than the previous one
            assert f"{key}/manifest.json" not in keys_below(url, server)
            with pytest.raises(CheckpointUnverified):
                remote(url, server.endpoint, tmp_path / "there").open(f"{url}/{key}")
            if f"{key}/progress/manifest.json" in keys_below(url, server):
                break  # manifests are rewritten, so from here on only the last write is left
        uploader(dies_at=0).upload(folder, key)
        uploads = [line for line in proxy.asked if line.startswith("PUT") and "/parts/" in line]
        assert len(uploads) == num_writes - 2, "no part was sent twice"
        assert fetched(remote(url, server.endpoint, tmp_path / "there"), f"{url}/{key}")

    def test_a_process_killed_in_the_middle_leaves_no_checkpoint(
        self, proxy: Proxy, server: S3Server, url: str, tmp_path: Path
    ) -> None:
        folder = checkpoint_in(tmp_path)
        key = key_of(folder, tmp_path)
        reached = threading.Event()

        def hold(number: int) -> int:
            if sum(line.startswith("PUT") for line in proxy.asked) == 3:
                reached.set()
                process.wait()
            return 0

        proxy.answer = hold
        script = (
            "import sys; from pathlib import Path; from engine.live.checkpoints.store import CheckpointStore;"
            "from engine.spec.assets.store_address import StoreAddress;"
            "address = StoreAddress.read(sys.argv[1], endpoint=sys.argv[2]);"
            "CheckpointStore(address).upload(Path(sys.argv[3]), sys.argv[4])"
        )
        command = [sys.executable, "-c", script, url, proxy.endpoint, str(folder), key]
        with subprocess.Popen(command) as process:
            assert reached.wait(timeout=60)
            process.send_signal(signal.SIGKILL)
        assert f"{key}/manifest.json" not in keys_below(url, server)
        proxy.answer = lambda number: 0
        node = remote(url, proxy.endpoint, tmp_path)
        assert verify_checkpoint(fetched(node, node.upload(folder))) == verify_checkpoint(folder)

    @pytest.fixture
    def host(self, server: S3Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteCheckpoints:
        """The state that this process resumes from by itself."""
        variables = {"STORE_DIR": str(tmp_path), "STORE_URL": url, "STORE_ENDPOINT": server.endpoint}
        for name, value in variables.items():
            monkeypatch.setenv(f"LAMINAR_{name}", value)
        return remote(url, server.endpoint, tmp_path)

    def put(self, server: S3Server, url: str, content: bytes, *, in_place_of: bytes) -> None:
        client = boto3.client("s3", endpoint_url=server.endpoint)
        (key,) = [key for key in keys_below(url, server) if key.endswith(sha256(in_place_of).hexdigest())]
        client.put_object(Bucket=BUCKET, Key=f"{urlsplit(url).path.strip('/')}/{key}", Body=content)

    def test_loader_refuses_rotten_part_and_keeps_no_copy(
        self, host: RemoteCheckpoints, server: S3Server, url: str, tmp_path: Path
    ) -> None:
        weights = b"weights"
        address = host.upload(checkpoint_in(tmp_path, contents={"weights.bin": weights, "config.json": b"{}"}))
        self.put(server, url, b"Weights", in_place_of=weights)
        folder = open_checkpoint(address).folder
        with pytest.raises(CheckpointUnverified, match=r"weights\.bin has 7 bytes with sha256"):
            load_alone(Everything(), folder)
        assert not folder.exists(), "it is fetched again the next time"
        self.put(server, url, weights, in_place_of=weights)
        load_alone(Everything(), open_checkpoint(address).folder)

    def test_truncated_or_missing_part_is_seen_before_fetching(
        self, host: RemoteCheckpoints, server: S3Server, url: str, tmp_path: Path
    ) -> None:
        address, weights = host.upload(checkpoint_in(tmp_path)), CONTENTS["model.safetensors"]
        self.put(server, url, b"w", in_place_of=weights)
        with pytest.raises(CheckpointUnverified, match=r"model\.safetensors of .* has 1 bytes"):
            open_checkpoint(address)
        assert not list((tmp_path / "fetched").iterdir())

    def test_an_open_that_is_given_up_stops_and_leaves_nothing(
        self, server: S3Server, url: str, tmp_path: Path
    ) -> None:
        node = remote(url, server.endpoint, tmp_path)
        address = node.upload(checkpoint_in(tmp_path))
        with pytest.raises(GivenUp):
            node.open(address, is_given_up=lambda: True)
        assert not list((tmp_path / "fetched").iterdir())


@pytest.mark.django_db
class TestControlPlane:
    @pytest.fixture
    def checkpoint(
        self,
        job: Job,
        server: S3Server,
        settings: LazySettings,
        url: str,
        tmp_path: Path,
        now: datetime,
    ) -> Iterator[Checkpoint]:
        settings.ENVIRONMENT = replace(
            settings.ENVIRONMENT, store_dir=tmp_path, store_url=url, store_endpoint=server.endpoint
        )
        store.cache_clear()
        folder = checkpoint_in(tmp_path, job=job.pk)
        saved = CheckpointSaved(
            step=5,
            version=5,
            uri=remote(url, server.endpoint, tmp_path).upload(folder),
            manifest_sha256=verify_checkpoint(folder),
            num_bytes=1,
        )
        yield record_checkpoint(job, 1, saved, now=now)
        store.cache_clear()

    def test_it_is_read_back_served_and_removed_whole(
        self, checkpoint: Checkpoint, server: S3Server, url: str, now: datetime, api: Any
    ) -> None:
        assert verification.verify_due(now=now) == 1
        answer = api.post(f"/checkpoints/{checkpoint.pk}/download").json()
        (weights,) = [row for row in answer["files"] if row["name"] == "model.safetensors"]
        assert httpx.get(weights["url"]).content == CONTENTS["model.safetensors"], "directly from the store"
        tar = b"".join(api.client.get(urlsplit(answer["url"]).path))
        assert len(tar) == answer["num_bytes"] and CONTENTS["model.safetensors"] in tar
        delete_checkpoint(checkpoint.pk, actor="user:1", now=now)
        assert remove_files(now=now + GRACE) == 1
        assert keys_below(url, server) == []

    def test_another_jobs_prefix_is_not_followed(
        self, checkpoint: Checkpoint, make_job: Any, now: datetime, server: S3Server, url: str
    ) -> None:
        before = keys_below(url, server)
        saved = CheckpointSaved(step=5, version=5, uri=checkpoint.uri, manifest_sha256="a" * 64, num_bytes=1)
        other = make_job()
        with pytest.raises(ForeignAddress):
            record_checkpoint(other, 1, saved, now=now)
        Checkpoint.objects.filter(pk=checkpoint.pk).update(job=other, state="deleting")
        remove_files(now=now)
        assert keys_below(url, server) == before
