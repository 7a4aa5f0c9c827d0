"""The client and a real server with a lossy network between them."""

import asyncio
import threading
import traceback
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection

from backend.jobs.control.cancelling import cancel_job
from backend.jobs.models import Job
from frontend.client.laminar_client import AsyncLaminar, Laminar, NotFound, ServerFault, Unreachable
from frontend.client.laminar_client.profiles import Login, config_file, store_profile
from tests.frontend.client.conftest import QUICK, Proxy, Shell
from tests.frontend.seed import World, finished, submitted

SPEC: dict[str, Any] = {"name": "Once", "training": {"steps": 5}}


def test_a_submission_whose_answer_was_lost_is_one_job(proxy: Proxy, world: World, key: str) -> None:
    proxy.plan = ["cut after", "refuse", "cut after"]
    with Laminar(proxy.url, key, patience=QUICK) as client:
        job = client.jobs.submit(SPEC, project=world.project.pk)
    assert [row.pk for row in Job.objects.all()] == [job.id]
    assert len(proxy.seen) == 4


def test_the_same_with_asyncio(proxy: Proxy, world: World, key: str) -> None:
    proxy.plan = ["cut after", "refuse", "cut after"]

    async def walk() -> list[str]:
        async with AsyncLaminar(proxy.url, key, patience=QUICK) as client:
            job = await client.jobs.submit(SPEC, project=world.project.pk)
            assert (await client.jobs.show(job.id)).name == "Once"
            return [each.id async for each in client.jobs.each()] + [job.id]

    first, second = asyncio.run(walk())
    assert first == second
    assert Job.objects.count() == 1


def test_a_project_whose_answer_was_lost_is_not_made_again(proxy: Proxy, world: World, key: str) -> None:
    proxy.plan = ["cut after", "pass"]
    with Laminar(proxy.url, key, patience=QUICK) as client, pytest.raises(Unreachable):
        client.team.make_project("Second")
    assert len(proxy.seen) == 1
    assert world.team.projects.filter(name="Second").count() == 1


@pytest.mark.long_except("cut after", "refuse")
@pytest.mark.parametrize("trouble", ["cut before", "cut after", "refuse", "slow down"])
def test_a_read_comes_through_trouble(proxy: Proxy, world: World, key: str, trouble: str) -> None:
    proxy.plan = [trouble] * 3
    with Laminar(proxy.url, key, patience=QUICK) as client:
        assert client.team.me().user == "ada@example.org"
    assert len(proxy.seen) == 4


@pytest.mark.long
def test_trouble_that_lasts_is_told(proxy: Proxy, world: World, key: str, newcomer: Shell) -> None:
    proxy.plan = ["refuse"] * 50
    with Laminar(proxy.url, key, patience=QUICK) as client, pytest.raises(ServerFault):
        client.team.me()
    newcomer.environment |= {"LAMINAR_URL": "http://127.0.0.1:9", "LAMINAR_API_KEY": key}
    assert "No response from" in newcomer("cancel", "job_1", code=7).stderr


def test_cut_event_stream_resumes_without_gap_or_repeat(proxy: Proxy, world: World, key: str) -> None:
    job = submitted(world)
    proxy.plan = ["cut stream", "refuse", "cut before", "pass"]
    seen: list[int] = []
    with Laminar(proxy.url, key, patience=QUICK) as client:
        for event in client.jobs.events(job.pk, follow=True):
            seen.append(event.seq)
            if len(seen) == 1:
                cancel_job(job.pk, actor=f"user:{world.owner.pk}", now=datetime.now(UTC))
    assert seen == list(range(1, job.events.count() + 1))
    assert len(seen) >= 2
    assert len(proxy.seen) >= 1


def test_a_finished_jobs_whole_stream_is_read_over_many_cuts(proxy: Proxy, world: World, key: str) -> None:
    job = finished(world, steps=3)
    proxy.plan = ["cut stream", "cut stream", "refuse", "cut before"]
    with Laminar(proxy.url, key, patience=QUICK) as client:
        streamed = [event.seq for event in client.jobs.events(job.pk, follow=True)]
        paged = [event.seq for event in client.jobs.events(job.pk)]
    assert streamed == paged == list(range(1, job.events.count() + 1))
    assert proxy.plan == [], "the stream was not cut"


def test_wait_survives_short_server_outage(proxy: Proxy, world: World, key: str) -> None:
    job = submitted(world)
    proxy.plan = ["pass", "refuse", "cut before"]

    def end() -> None:
        cancel_job(job.pk, actor=f"user:{world.owner.pk}", now=datetime.now(UTC))
        connection.close()

    timer = threading.Timer(0.3, end)
    timer.start()
    with Laminar(proxy.url, key, patience=QUICK) as client:
        assert client.jobs.wait(job.pk, timeout_s=20).state == "cancelled"
    timer.join()


def test_no_key_is_in_a_traceback_or_what_its_frames_hold(proxy: Proxy, world: World, key: str) -> None:
    with Laminar(proxy.url, key, patience=QUICK) as client, pytest.raises(NotFound) as missing:
        client.jobs.show("job_absent")
    frames = [frame for frame, _ in traceback.walk_tb(missing.tb)][
        1:
    ]  # without the test's own frame, which knows the key
    shown = repr([frame.f_locals for frame in frames]) + repr(vars(missing.value)) + str(missing.value)
    assert "job_absent" in shown
    assert key not in shown


def test_the_python_client_finds_the_profile_that_login_wrote(
    proxy: Proxy, world: World, key: str, newcomer: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in newcomer.environment.items():
        monkeypatch.setenv(name, value)
    store_profile(config_file(), "default", Login(url=proxy.url, key=key))
    with Laminar() as client:
        assert client.team.me().role == "owner"
