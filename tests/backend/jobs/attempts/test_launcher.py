"""The launcher against misbehaving servers. tests/infra/local/services/test_ray_head.py runs it on a real Ray."""

import http.server
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from backend.jobs.attempts.launcher import RayLauncher, order_package, read_token
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

    def __init__(self, answers: dict[str, tuple[int, str]], *, delay_s: float = 0.0) -> None:
        requests: list[tuple[str, dict[str, str], bytes]] = []
        self.requests = requests

        class Handler(http.server.BaseHTTPRequestHandler):
            def do(handler) -> None:
                time.sleep(delay_s)
                body_in = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
                requests.append((f"{handler.command} {handler.path}", dict(handler.headers), body_in))
                path = handler.path.partition("_ray_pkg_")[0]
                status, body = answers.get(f"{handler.command} {path}", (404, "no"))
                handler.send_response(status)
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body.encode())

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
