"""The driver as the Ray Jobs API starts it: a process, an order in a file, a control plane over HTTP."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine.spec.causes import PlatformCause
from engine.spec.control import AttemptOrder, FactBatch
from engine.spec.fact_segments import SPOOL_FOLDER, segment_name
from engine.spec.facts import CheckpointSaved, Fact, RunFinished, StepTrained
from engine.spec.job import JobSpec
from engine.spec.logs.spans import trace_id
from tests.otlp_collector import Collector
from tests.waiting import eventually

pytestmark = pytest.mark.ray

SPEC = {
    "name": "driven",
    "training": {"steps": 2, "prompts_per_step": 2},
    "algorithm": {"group_size": 2},
    "rollout": {"replicas": 1, "max_batch": 8, "max_new_tokens": 20},
    "evaluation": {"prompts": 4},
    "schedule": {"max_staleness": 1_000},  # a busy machine delays samples; none is dropped as stale
}


class Ingest:
    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.requests: list[dict[str, str]] = []
        ingest = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # it announces no vocabulary
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Authorization"] == "Bearer t"
                answer: dict[str, Any] = {"requests": ingest.requests}
                if self.path == "/internal/engine/facts":
                    facts = FactBatch.model_validate_json(body).facts
                    ingest.facts += [fact for fact in facts if fact.seq > len(ingest.facts)]
                    answer = {"acked": len(ingest.facts)}
                content = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=[0.02], daemon=True).start()

    def wait_for_step(self, driver: subprocess.Popen[str]) -> None:
        eventually(
            lambda: [fact.body.type for fact in self.facts],
            "a step is trained",
            until=lambda types: "step_trained" in types,
            within_s=300,
            process=driver,
        )


@pytest.fixture
def ingest() -> Iterator[Ingest]:
    ingest = Ingest()
    yield ingest
    ingest.server.shutdown()
    ingest.server.server_close()


def start(
    ingest: Ingest,
    folder: Path,
    *,
    ray_address: str,
    python: str,
    repository: Path,
    spec: dict[str, Any] = SPEC,
    resume_from: str | None = None,
    environment: Mapping[str, str] = {},
) -> subprocess.Popen[str]:
    order = AttemptOrder(
        job="job-1",
        attempt=1 if resume_from is None else 2,
        fence=1 if resume_from is None else 2,
        resume_from=resume_from,
        spec=JobSpec.model_validate(spec),
        control_url=f"http://127.0.0.1:{ingest.server.server_address[1]}",
        token="t",
    )
    (folder / "order.json").write_text(order.model_dump_json())
    variables = {
        **os.environ,
        "PYTHONPATH": str(repository),
        "RAY_ADDRESS": ray_address,
        "LAMINAR_STORE_DIR": str(folder / "store"),
        **environment,
    }
    command = [python, "-m", "engine.live.run.driver"]
    return subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True)


def drive(ingest: Ingest, folder: Path, **where: Any) -> subprocess.CompletedProcess[str]:
    process = start(ingest, folder, **where)
    _, stderr = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, "", stderr)


@pytest.mark.long
def test_order_is_carried_out_and_every_fact_delivered(
    own_ray: str, ingest: Ingest, tmp_path: Path, python: str, repository: Path
) -> None:
    with Collector() as collector:
        settings = {"LAMINAR_LOG_FORMAT": "json", "LAMINAR_OTLP_URL": collector.url}
        done = drive(ingest, tmp_path, ray_address=own_ray, python=python, repository=repository, environment=settings)
    assert done.returncode == 0, done.stderr
    names = [span.name for span in collector.spans]
    assert {span.trace for span in collector.spans} == {trace_id("job-1")} and names.count("step") == 2
    assert {"driver", "start", "first step", "provisioning", "loading_weights"} <= set(names)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines and {(line["job"], line["attempt"]) for line in lines} == {("job-1", 1)}
    assert [fact.seq for fact in ingest.facts] == list(range(1, len(ingest.facts) + 1))
    types = [fact.body.type for fact in ingest.facts]
    assert types[0] == "driver_started" and types[-1] == "run_finished"
    assert types.count("step_trained") == 2 and types.count("evaluated") == 2
    last = ingest.facts[-1].body
    assert isinstance(last, RunFinished) and last.outcome == "succeeded"
    spool = tmp_path / "store" / "jobs" / "job-1" / "attempt-1-fence-1" / SPOOL_FOLDER / segment_name(1)
    assert spool.read_text().count("\n") == len(ingest.facts)


@pytest.mark.long
def test_cancel_that_is_pending_at_start_is_obeyed(
    own_ray: str, ingest: Ingest, tmp_path: Path, python: str, repository: Path
) -> None:
    ingest.requests = [{"id": "r9", "kind": "cancel"}]
    done = drive(ingest, tmp_path, ray_address=own_ray, python=python, repository=repository)
    assert done.returncode == 0, done.stderr
    types = [fact.body.type for fact in ingest.facts if fact.body.type != "log_lines"]
    assert types[-2:] == ["request_acknowledged", "run_finished"]
    last = ingest.facts[-1].body
    assert isinstance(last, RunFinished) and last.outcome == "cancelled"


@pytest.mark.soak  # test_pause_and_resize tests it for an attempt, e2e/test_first_five_minutes through the site
def test_job_paused_by_heartbeat_resumes_in_another_driver(
    own_ray: str, ingest: Ingest, tmp_path: Path, python: str, repository: Path
) -> None:
    where: dict[str, Any] = {"ray_address": own_ray, "python": python, "repository": repository}
    num_steps = 250  # many heartbeats long
    spec = {**SPEC, "training": {"steps": num_steps, "prompts_per_step": 2, "checkpoint_every": 1_000}}
    process = start(ingest, tmp_path, spec=spec, **where)
    ingest.wait_for_step(process)
    ingest.requests = [{"id": "r1", "kind": "pause"}]  # sent with every heartbeat from now on, as in production
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    first, ingest.facts, ingest.requests = ingest.facts, [], []
    types = [fact.body.type for fact in first if fact.body.type != "log_lines"]
    assert types[-2:] == ["request_acknowledged", "run_finished"]
    last = first[-1].body
    assert isinstance(last, RunFinished) and last.outcome == "paused"
    steps = [fact.body.step for fact in first if isinstance(fact.body, StepTrained)]
    (saved,) = [fact.body for fact in first if isinstance(fact.body, CheckpointSaved)]
    assert saved.step == steps[-1] < num_steps

    done = drive(ingest, tmp_path, spec=spec, resume_from=saved.uri, **where)
    assert done.returncode == 0, done.stderr
    steps += [fact.body.step for fact in ingest.facts if isinstance(fact.body, StepTrained)]
    assert steps == list(range(1, num_steps + 1)), "each step once, across the pause"
    last = ingest.facts[-1].body
    assert isinstance(last, RunFinished) and last.outcome == "succeeded"
    assert last.ledger == {"trained": num_steps * 4, "filtered": 0, "dropped_stale": 0, "failed": 0, "open": 0}


@pytest.mark.long
def test_interrupted_driver_reports_it_in_its_last_fact(
    own_ray: str, ingest: Ingest, tmp_path: Path, python: str, repository: Path
) -> None:
    long = {**SPEC, "training": {"steps": 100_000}}
    process = start(ingest, tmp_path, ray_address=own_ray, python=python, repository=repository, spec=long)
    ingest.wait_for_step(process)
    process.terminate()
    process.communicate(timeout=180)
    assert process.returncode == 1
    last = ingest.facts[-1].body
    assert isinstance(last, RunFinished)
    assert (last.failure_class, last.cause) == ("infrastructure", PlatformCause.DRIVER_STOPPED), last.message


@pytest.mark.long
def test_unreadable_order_is_one_sentence_without_traceback(tmp_path: Path, python: str, repository: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(repository), "LAMINAR_STORE_DIR": str(tmp_path)}
    done = subprocess.run(
        [python, "-m", "engine.live.run.driver"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "order.json" in done.stderr and "Traceback" not in done.stderr
