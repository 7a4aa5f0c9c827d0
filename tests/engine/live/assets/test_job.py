"""A real job on a real Ray, with an uploaded model and uploaded questions, through an S3 store."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.management import call_command

from backend.jobs.attempts.launching import order_for
from backend.jobs.models import JobAttempt
from backend.jobs.queue.scheduling import schedule_pool
from backend.store.chosen import store
from engine.live.assets.job_assets import JobAssets
from engine.live.assets.node_cache import NodeCache
from engine.live.run.attempt import Attempt, AttemptPlan
from engine.sinks.memory import MemorySink
from engine.spec.control import AttemptOrder
from engine.spec.facts import StepTrained, TrajectoriesSampled
from tests.backend.assets.conftest import store_dir, upload  # noqa: F401 - fixtures, as those below
from tests.backend.conftest import (  # noqa: F401
    NOW,
    Api,
    MakeJob,
    _no_broker,
    alice,
    api,
    make_job,
    make_key,
    make_spec,
    other_team,
    pool,
    project,
    team,
)
from tests.backend.event_streams import web_server  # noqa: F401
from tests.s3_server import CREDENTIALS, s3_server

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_ray"), pytest.mark.django_db(transaction=True)]

ROOT = Path(__file__).resolve().parents[4]
QUESTIONS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(2, 10) for b in range(2, 10)]


@pytest.fixture
def bucket(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with s3_server() as server:
        server.make_bucket("laminar")
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        settings.ENVIRONMENT = replace(
            settings.ENVIRONMENT, store_url="s3://laminar/site", store_endpoint=server.endpoint
        )
        store.cache_clear()
        yield server
        store.cache_clear()


@pytest.mark.long
def test_job_trains_uploaded_model_on_uploaded_questions(
    bucket: Any,
    web_server: str,  # noqa: F811
    api: Api,  # noqa: F811
    make_job: MakeJob,  # noqa: F811
    tmp_path: Path,
) -> None:
    demo = ROOT / "engine" / "models" / "demo"
    contents = {file.name: file.read_bytes() for file in demo.iterdir() if file.name != "recipe.json"}
    assert upload(api, contents, kind="model", name="tiny").json()["state"] == "ready"
    rows = "".join(json.dumps(question) + "\n" for question in QUESTIONS).encode()
    upload(api, {"train.jsonl": rows}, name="sums")
    store().put("operators/exam/exam.jsonl", rows.replace(b"+", b"-"))
    call_command("register_asset", "data", "operators/exam", stored=True, everybody=True)
    assert all(key.startswith(("site/assets/", "site/operators/")) for key in bucket.keys_in("laminar", ""))
    job = make_job(
        devices=2,
        model={"source": "tiny"},
        environment={"name": "jsonl", "params": {"data": "sums", "held_out_data": "exam"}},
        training={"steps": 2, "prompts_per_step": 2, "checkpoint_every": 2},
        algorithm={"group_size": 4},
        rollout={"replicas": 1, "max_batch": 8, "max_new_tokens": 8},
        evaluation={"prompts": 2},
        schedule={"max_staleness": 1_000},
    )
    schedule_pool(job.pool_id, now=NOW)
    order = AttemptOrder.read(order_for(JobAttempt.objects.get(job=job)).model_dump_json().encode())
    assert order.assets is not None and order.spec.model.source == "tiny@1"
    parts = urlsplit(web_server)
    cache = tmp_path / "node"
    assets = JobAssets(
        ordered=order.assets,
        control_url=f"{parts.scheme}://{parts.netloc}",
        store=tmp_path / "nothing-shared",
        cache=NodeCache(root=cache),
    )
    sink = MemorySink()
    plan = AttemptPlan(spec=order.spec, checkpoints=tmp_path / "run", assets=assets)
    finished = Attempt(plan, sink, list).run(lambda: None)
    assert finished.outcome == "succeeded", finished.message
    assert [body.step for body in sink.bodies if isinstance(body, StepTrained)] == [1, 2]
    prompts = {row["prompt"] for row in QUESTIONS}
    sampled = [each for body in sink.bodies if isinstance(body, TrajectoriesSampled) for each in body.trajectories]
    assert sampled and all(sample.prompt in prompts for sample in sampled)
    whole = {each.sha256 for each in order.assets.assets}
    assert {path.name for path in cache.iterdir() if path.is_dir()} == whole, "each is fetched once and whole"
