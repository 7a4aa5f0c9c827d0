"""The launcher against misbehaving servers. tests/infra/local/services/test_ray_head.py runs it on a real Ray."""

import gzip
import http.server
import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from backend.jobs.attempts.launcher import RayLauncher, order_package, read_token
from backend.pools.clusters import dashboard
from backend.pools.clusters.dashboard import LauncherError, RayRefused, RayUnreachable
from engine.spec.control import AttemptOrder, PoolTerms
from engine.spec.job import JobSpec
from infra.local.ports import free_port

TOKEN = "a-token-for-tests"


def order(job: str = "job_launcher", **terms: Any) -> AttemptOrder:
    return AttemptOrder(
        job=job, attempt=1, fence=1, spec=JobSpec(name="Sums"), control_url="http://127.0.0.1:1",
        token="lam_run_secret", pool=PoolTerms(**terms),
    )  # fmt: skip


class Answers:
    """A server with fixed responses, for errors that a real Ray rarely shows."""

    def __init__(
        self,
        answers: Mapping[str, tuple[int, str | bytes]],
        *,
        delay_s: float = 0.0,
        pause_s: float = 0.0,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`pause_s`: between the bytes of a response."""
        requests: list[tuple[str, dict[str, str], bytes]] = []
        self.requests = requests

        class Handler(http.server.BaseHTTPRequestHandler):
            def do(handler) -> None:
                time.sleep(delay_s)
                body_in = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
                requests.append((f"{handler.command} {handler.path}", dict(handler.headers), body_in))
                path = handler.path.partition("_ray_pkg_")[0]
                status, text = answers.get(f"{handler.command} {path}", (404, "no"))
                body = text.encode() if isinstance(text, str) else text
                handler.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    handler.send_header(name, value)
                handler.end_headers()
                with suppress(OSError):  # the launcher reads no further
                    for at in range(0, len(body), 1 if pause_s else len(body)):
                        handler.wfile.write(body[at : at + 1] if pause_s else body)
                        time.sleep(pause_s)

            do_GET = do_POST = do_PUT = do

            def log_message(handler, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=[0.02], daemon=True).start()

    def __enter__(self) -> RayLauncher:
        return RayLauncher(self.url, TOKEN)

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


TRACEBACK = "Traceback (most recent call last):\n  File x\nValueError: Job with submission_id s already exists"


def test_500_for_a_known_id_is_success() -> None:
    known = {"PUT /api/packages/gcs/": (200, ""), "POST /api/jobs/": (500, TRACEBACK)}
    with Answers(known | {"GET /api/jobs/s": (200, json.dumps({"status": "RUNNING"}))}) as launcher:
        launcher.launch(order(), "s")


def test_500_for_an_unknown_id_is_unclear() -> None:
    with (
        Answers({"PUT /api/packages/gcs/": (200, ""), "POST /api/jobs/": (500, TRACEBACK)}) as launcher,
        pytest.raises(RayUnreachable, match="already exists") as unclear,
    ):
        launcher.launch(order(), "s")
    assert unclear.value.retryable


def test_missing_server_is_unreachable_at_once() -> None:
    launcher = RayLauncher(f"http://127.0.0.1:{free_port()}", TOKEN)
    started = time.monotonic()
    for call in (lambda: launcher.status("s"), lambda: launcher.launch(order(), "s"), launcher.live_submissions):
        with pytest.raises(RayUnreachable):
            call()
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("body", ["<html>", '{"status": "RUNNING"', "", "[]", '{"status": "DANCING"}', "{}"])
def test_non_ray_response_is_unreachable(body: str) -> None:
    with Answers({"GET /api/jobs/s": (200, body)}) as launcher, pytest.raises(LauncherError) as error:
        launcher.status("s")
    assert error.value.retryable


@pytest.mark.parametrize(
    "body", ["[" * 100_000, "3", '{"a": 1}', '["x"]', "[null]", '[{"submission_id": "s"}]', '[{"submission_id": [1]}]']
)
def test_hostile_list_of_jobs_is_unreachable(body: str) -> None:
    with Answers({"GET /api/jobs/": (200, body)}) as launcher, pytest.raises(RayUnreachable):
        launcher.live_submissions()


@pytest.mark.parametrize("body", ["[]", "3", "null", "{}", '{"logs": 3}', '{"logs": ["x"]}', "{" * 100_000])
def test_hostile_log_is_unreachable(body: str) -> None:
    with Answers({"GET /api/jobs/s/logs": (200, body)}) as launcher, pytest.raises(RayUnreachable):
        launcher.log_tail("s", 100)


def test_response_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray sends the whole log of a driver, however much it wrote."""
    monkeypatch.setattr(dashboard, "MOST_ANSWER_BYTES", 1_000)
    answers = {"GET /api/jobs/s/logs": (200, json.dumps({"logs": "x" * 2_000})), "GET /api/jobs/s": (200, "x" * 2_000)}
    with Answers(answers) as launcher:
        assert launcher.log_tail("s", 100) == ""
        with pytest.raises(RayUnreachable, match="more than 1,000 bytes"):
            launcher.status("s")


def test_compressed_response_is_bounded_by_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "MOST_ANSWER_BYTES", 100_000)
    bomb = gzip.compress(b" " * 10_000_000)
    with (
        Answers({"GET /api/jobs/s": (200, bomb)}, headers={"Content-Encoding": "gzip"}) as launcher,
        pytest.raises(RayUnreachable, match="more than 100,000 bytes"),
    ):
        launcher.status("s")


def test_response_that_drips_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte arrives within the timeout of a read."""
    monkeypatch.setattr(dashboard, "ANSWER_WITHIN_S", 0.2)
    with (
        Answers({"GET /api/jobs/s": (200, " " * 60)}, pause_s=0.05) as launcher,
        pytest.raises(RayUnreachable, match="no end within"),
    ):
        launcher.status("s")


def test_same_order_makes_same_package() -> None:
    assert order_package(order()) == order_package(order()) != order_package(order("job_other"))


def test_driver_gets_pool_labels_and_cpu_pool_hides_gpus() -> None:
    answers = Answers({"PUT /api/packages/gcs/": (200, ""), "POST /api/jobs/": (200, "{}")})
    with answers as launcher:
        away = {"labels": {"zone": "a"}, "device": "gpu"}
        for terms in ({}, away, {"device": "cpu"}, away | {"autoscales": True}):
            launcher.launch(order(**terms), "s")
    orders = [json.loads(body) for path, _, body in answers.requests if path == "POST /api/jobs/"]
    assert [each.get("entrypoint_label_selector") for each in orders] == [None, {"zone": "a"}, None, None]
    hidden = [each["runtime_env"].get("env_vars") for each in orders]
    assert hidden == [None, None, {"CUDA_VISIBLE_DEVICES": ""}, None]


def test_ray_without_token_gets_none() -> None:
    answers = Answers({"GET /api/jobs/s": (200, json.dumps({"status": "RUNNING"}))})
    with answers:
        RayLauncher(answers.url, "").status("s")
        RayLauncher(answers.url, "abc").status("s")
    assert [headers.get("Authorization") for _, headers, _ in answers.requests] == [None, "Bearer abc"]


def test_ray_is_paused_for_as_long_as_its_timeout() -> None:
    moments = iter([0.0, 100.0, 100.0, 107.0, 113.0, 114.5, 114.5, 114.5])
    launcher = RayLauncher(f"http://127.0.0.1:{free_port()}", TOKEN, clock=lambda: next(moments))
    with pytest.raises(RayUnreachable, match="ConnectError"):
        launcher.status("s")  # from 100 to 107
    with pytest.raises(RayUnreachable, match="next request in 1 s"):
        launcher.status("s")  # at 113
    with pytest.raises(RayUnreachable, match="ConnectError"):
        launcher.status("s")


NODES = [
    {"node_id": "a", "node_ip": "10.0.0.7", "state": "ALIVE", "labels": {"zone": "a"}, "resources_total": {"GPU": 2.0}},
    {"node_id": "b", "node_ip": "10.0.0.8", "state": "DEAD", "labels": {}, "resources_total": {"CPU": 1.0}},
    {"node_id": "c", "node_name": "box", "node_ip": "1", "state": "ALIVE", "labels": None, "resources_total": None},
]


def test_hosts_are_alive_ray_nodes() -> None:
    listed = {"data": {"result": {"result": NODES}}}
    with Answers({"GET /api/v0/nodes?limit=10000": (200, json.dumps(listed))}) as launcher:
        first, second = launcher.hosts()
    assert (first.name, first.labels, first.cpus, first.gpus) == ("10.0.0.7", {"zone": "a"}, 0.0, 2.0)
    assert (second.name, second.labels, second.gpus) == ("box", {}, 0.0)


@pytest.mark.parametrize("body", ["[]", "{}", '{"data": {"result": {"result": [{"state": "ALIVE"}]}}}', '{"data": 3}'])
def test_invalid_host_list_is_unreachable(body: str) -> None:
    with (
        Answers({"GET /api/v0/nodes?limit=10000": (200, body)}) as launcher,
        pytest.raises(RayUnreachable, match="not Ray's list"),
    ):
        launcher.hosts()


def test_token_file_may_end_with_a_newline(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    assert read_token(tmp_path / "token") == "abc"
    with pytest.raises(RayRefused, match="cannot be read"):
        read_token(tmp_path / "none")
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(RayRefused, match="is empty"):
        read_token(tmp_path / "empty")
