"""The launcher against servers that misbehave. tests/infra/test_ray_head.py has it on a real Ray."""

import http.server
import json
import socket
import threading
import time
from pathlib import Path

import pytest

from backend.jobs.attempts.launcher import (
    LauncherError,
    RayLauncher,
    RayRefused,
    RayUnreachable,
    order_package,
    read_token,
)
from engine.spec.control import AttemptOrder
from engine.spec.job import JobSpec

TOKEN = "a-token-for-tests"


def order(job: str = "job_launcher") -> AttemptOrder:
    return AttemptOrder(
        job=job, attempt=1, fence=1, spec=JobSpec(name="Sums"), control_url="http://127.0.0.1:1", token="lam_run_secret"
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


class Answers:
    """A server that gives fixed answers, to meet what a real Ray does only in bad hours."""

    def __init__(self, answers: dict[str, tuple[int, str]], *, delay_s: float = 0.0) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do(handler) -> None:
                time.sleep(delay_s)
                handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
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


def test_a_500_for_an_id_that_ray_has_is_a_yes() -> None:
    known = {"PUT /api/packages/gcs/": (200, ""), "POST /api/jobs/": (500, TRACEBACK)}
    with Answers(known | {"GET /api/jobs/s": (200, json.dumps({"status": "RUNNING"}))}) as launcher:
        launcher.launch(order(), "s")


def test_a_500_for_an_id_that_ray_has_not_is_unclear() -> None:
    with (
        Answers({"PUT /api/packages/gcs/": (200, ""), "POST /api/jobs/": (500, TRACEBACK)}) as launcher,
        pytest.raises(RayUnreachable, match="already exists") as unclear,
    ):
        launcher.launch(order(), "s")
    assert unclear.value.retryable


def test_no_server_is_unreachable_and_quick() -> None:
    launcher = RayLauncher(f"http://127.0.0.1:{free_port()}", TOKEN)
    started = time.monotonic()
    for call in (lambda: launcher.status("s"), lambda: launcher.launch(order(), "s"), launcher.live_submissions):
        with pytest.raises(RayUnreachable):
            call()
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("body", ["<html>", '{"status": "RUNNING"', "", "[]", '{"status": "DANCING"}', "{}"])
def test_an_answer_that_is_not_rays_is_unreachable(body: str) -> None:
    with Answers({"GET /api/jobs/s": (200, body)}) as launcher, pytest.raises(LauncherError) as error:
        launcher.status("s")
    assert error.value.retryable


def test_the_same_order_makes_the_same_package() -> None:
    assert order_package(order()) == order_package(order()) != order_package(order("job_other"))


def test_a_token_file_may_end_with_a_newline(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    assert read_token(tmp_path / "token") == "abc"
    with pytest.raises(RayRefused, match="cannot be read"):
        read_token(tmp_path / "none")
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(RayRefused, match="is empty"):
        read_token(tmp_path / "empty")
