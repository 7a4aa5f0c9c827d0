"""A node's check reports obstacles to its store and its control plane, and leaves no file behind."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engine.live.run.node_assets import node_data, node_models
from engine.live.run.node_inspection import inspect_node
from engine.spec.node_report import MOST_REPORTED, NodeAsset, NodeReport, spec_version
from tests.s3_server import CREDENTIALS, S3Server, s3_server

BUCKET = "checkpoints"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture
def jobs(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shared folder's jobs, as the control plane leaves it; the bucket exists."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LAMINAR_STORE_DIR", str(tmp_path))
    monkeypatch.setenv("LAMINAR_STORE_URL", f"s3://{BUCKET}/here")
    monkeypatch.setenv("LAMINAR_STORE_ENDPOINT", s3.endpoint)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/doctor-abc").touch()
    return tmp_path / "jobs"


@pytest.fixture(params=[401])
def control_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A control plane that answers 401 without a token, or with the status that a test sets."""

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(request.param)
            if request.param == 301:
                self.send_header("Location", "https://elsewhere.example.org/")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _troubles(report: NodeReport) -> set[str]:
    """The failed checks, without the sandbox's, which depends on this machine and has tests of its own."""
    return {part for part in ("folder", "bucket", "control") if getattr(report, part)}


def test_healthy_node_reports_no_trouble_and_keeps_no_file(jobs: Path, control_url: str, s3: S3Server) -> None:
    report = inspect_node("n1", "10.0.0.1", control_url, "abc")
    assert _troubles(report) == set(), report
    assert report.spec == spec_version() and {"ray", "torch"} <= set(report.versions)
    assert [path.name for path in jobs.iterdir()] == ["doctor-abc"] and s3.keys_in(BUCKET, "") == []


def test_node_reports_its_models_and_data_sets(jobs: Path, control_url: str) -> None:
    store = jobs.parent
    for name in ("small", "broken", "no-model"):
        (store / "models" / name).mkdir(parents=True)
    (store / "models/small/config.json").write_text('{"model_type": "qwen3", "secret": 1}')
    (store / "models/small/model.safetensors").write_bytes(b"x" * 100)
    (store / "models/broken/config.json").write_text("{")
    (store / "data").mkdir()
    (store / "data/sums.jsonl").write_text("{}\n")
    (store / "fetched/assets" / ("a" * 64)).mkdir(parents=True)
    (store / "fetched/assets" / ("b" * 64 + ".coming")).mkdir()
    report = inspect_node("n1", "10.0.0.1", control_url, "abc")
    assert report.models == [
        NodeAsset(name="broken", num_bytes=1),
        NodeAsset(name="small", kind="qwen3", num_bytes=136),
    ]
    assert report.data == [NodeAsset(name="sums.jsonl", num_bytes=3)]
    assert report.fetched == ["a" * 64]
    assert str(store) not in report.model_dump_json()


def test_list_of_found_assets_is_bounded(tmp_path: Path) -> None:
    for number in range(MOST_REPORTED + 50):
        (tmp_path / f"{number:04}.jsonl").touch()
    (tmp_path / "0000-odd\nname").touch()
    found = node_data(tmp_path)
    assert len(found) == MOST_REPORTED and found[0].name == "0000.jsonl"
    assert node_data(tmp_path / "nowhere") == node_models(tmp_path / "nowhere") == []


def test_folder_of_another_control_plane_is_reported(jobs: Path, control_url: str) -> None:
    report = inspect_node("n1", "10.0.0.1", control_url, "another")
    assert _troubles(report) == {"folder"} and "another folder" in report.folder


def test_missing_bucket_is_reported(jobs: Path, control_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINAR_STORE_URL", "s3://nowhere/here")
    assert _troubles(inspect_node("n1", "10.0.0.1", control_url, "abc")) == {"bucket"}


@pytest.mark.parametrize("control_url", [301, 404], indirect=True)
def test_wrong_answer_of_the_control_plane_is_reported(jobs: Path, control_url: str) -> None:
    report = inspect_node("n1", "10.0.0.1", control_url, "abc")
    assert _troubles(report) == {"control"}
    assert report.control.endswith("answers 404") or "a redirect to https://elsewhere" in report.control
