"""The launcher against a real Ray with token authentication, and against servers that misbehave."""

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from backend.jobs.launcher import (
    LauncherError,
    RayLauncher,
    RayRefused,
    RayUnreachable,
    SubmissionStatus,
    order_package,
    read_token,
)
from engine.spec.control import AttemptOrder
from engine.spec.job import JobSpec

TOKEN = "a-token-for-tests"
ROOT = Path(__file__).resolve().parents[2]


def order(job: str = "job_launcher") -> AttemptOrder:
    return AttemptOrder(
        job=job, attempt=1, epoch=1, spec=JobSpec(name="Sums"), control_url="http://127.0.0.1:1", token="lam_run_secret"
    )


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


@pytest.fixture(scope="module")
def ray_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray of our own: own folder, own ports, ended by its process id."""
    folder = tmp_path_factory.mktemp("ray", numbered=True)
    token_file = folder / "token"
    token_file.write_text(TOKEN + "\n")
    gcs, dashboard, agent, client = free_ports(4)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"]
    command += [f"--port={gcs}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"]
    command += [f"--dashboard-agent-listen-port={agent}", f"--ray-client-server-port={client}"]
    command += ["--node-ip-address=127.0.0.1", "--object-store-memory=100000000"]
    # Unix sockets live below Ray's folder and their paths are short.
    command.append(f"--temp-dir=/tmp/lam-{os.getpid()}-{gcs}")
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file), "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"PYTHONPATH": str(ROOT), "LAMINAR_RAY_PYTHON": sys.executable}
    with (folder / "log").open("w") as log:
        head = subprocess.Popen(command, env=os.environ | environment, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{dashboard}"
    try:
        wait_for_ray(url, folder / "log")
        yield url
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait(timeout=60)


def wait_for_ray(url: str, log: Path) -> None:
    deadline = time.monotonic() + 240  # in a new environment nothing is compiled yet, and Ray imports much
    while time.monotonic() < deadline:
        try:
            # The first submission needs the node's agent, so ask what the agent serves too.
            if httpx.get(f"{url}/api/jobs/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.3)
    pytest.fail(f"Ray did not come up:\n{log.read_text()}")


def launcher_on(url: str, entrypoint: str) -> RayLauncher:
    return RayLauncher(url, TOKEN, entrypoint=entrypoint)


def settled(launcher: RayLauncher, submission: str, *, within_s: float = 60.0) -> SubmissionStatus:
    deadline = time.monotonic() + within_s
    while (status := launcher.status(submission)).is_live and time.monotonic() < deadline:
        time.sleep(0.2)
    return status


@pytest.mark.ray
class TestOnRay:
    def test_the_order_arrives_as_a_file_and_our_interpreter_runs(self, ray_url: str) -> None:
        script = "import sys, engine.spec.control as c; print(sys.executable, c.AttemptOrder.model_validate_json"
        script += "(open('order.json').read()).token)"
        launcher = launcher_on(ray_url, f'exec "${{LAMINAR_RAY_PYTHON:-python}}" -c "{script}"')
        started = time.monotonic()
        launcher.launch(order(), "job_arrives-1-1")
        print(f"submitted in {time.monotonic() - started:.2f} s")
        assert settled(launcher, "job_arrives-1-1") is SubmissionStatus.SUCCEEDED
        logs = launcher.log_tail("job_arrives-1-1", 2_000)
        assert f"{sys.executable} lam_run_secret" in logs
        shown = httpx.get(f"{ray_url}/api/jobs/", headers={"Authorization": f"Bearer {TOKEN}"}).text
        assert "lam_run_secret" not in shown

    def test_launching_twice_starts_once_while_it_runs_and_when_it_is_over(self, ray_url: str, tmp_path: Path) -> None:
        trace = tmp_path / "trace"
        launcher = launcher_on(ray_url, f"echo run >> {trace}; sleep 2")
        for _ in range(3):
            launcher.launch(order(), "job_twice-1-1")
        assert settled(launcher, "job_twice-1-1") is SubmissionStatus.SUCCEEDED
        launcher.launch(order(), "job_twice-1-1")
        assert trace.read_text() == "run\n"

    def test_stop_ends_what_runs_and_leaves_the_rest_alone(self, ray_url: str) -> None:
        launcher = launcher_on(ray_url, "sleep 600")
        launcher.launch(order(), "job_stop-1-1")
        assert "job_stop-1-1" in launcher.live_submissions()
        while launcher.status("job_stop-1-1") is SubmissionStatus.PENDING:
            time.sleep(0.2)
        launcher.stop("job_stop-1-1")
        assert settled(launcher, "job_stop-1-1") is SubmissionStatus.STOPPED
        assert "job_stop-1-1" not in launcher.live_submissions()
        launcher.stop("job_stop-1-1")
        launcher.stop("job_never-1-1")

    def test_a_driver_that_fails_is_seen_with_its_last_words(self, ray_url: str) -> None:
        launcher = launcher_on(ray_url, "echo out of luck; exit 3")
        launcher.launch(order(), "job_fails-1-1")
        assert settled(launcher, "job_fails-1-1") is SubmissionStatus.FAILED
        assert "out of luck" in launcher.log_tail("job_fails-1-1", 2_000)
        assert len(launcher.log_tail("job_fails-1-1", 5)) == 5

    def test_an_unknown_id_is_missing(self, ray_url: str) -> None:
        launcher = launcher_on(ray_url, "true")
        assert launcher.status("job_unknown-1-1") is SubmissionStatus.MISSING
        assert launcher.log_tail("job_unknown-1-1", 10) == ""

    def test_a_wrong_token_is_refused_and_not_worth_retrying(self, ray_url: str) -> None:
        launcher = RayLauncher(ray_url, "wrong")
        with pytest.raises(RayRefused) as refusal:
            launcher.status("job_x-1-1")
        assert not refusal.value.retryable
        with pytest.raises(RayRefused):
            launcher.launch(order(), "job_x-1-1")


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
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

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
    [port] = free_ports(1)
    launcher = RayLauncher(f"http://127.0.0.1:{port}", TOKEN)
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
