"""A new version and the way back by infra/upgrade.sh while a job runs: the job notices nothing."""

from collections.abc import Callable
from typing import Any

from infra.rehearse.enclosure import within
from infra.rehearse.images import build_all
from infra.rehearse.jobs import FINISHED_WITHIN_S, customer, ended
from infra.rehearse.site import VERSION, set_values, wait_until_healthy
from infra.rehearse.work import Work, stage
from infra.setup.terminal import Refusal
from tests.e2e.ends import spec

NEXT = "rehearsed-next"
STEPS = 600  # they last longer than an upgrade and the way back


def run(work: Work) -> None:
    build_all(work, NEXT)
    with customer(work) as person:
        job = person.submit_within(FINISHED_WITHIN_S, spec(STEPS))
        for version, way in ((NEXT, "a new version"), (VERSION, "the way back")):
            job = person.wait(job["id"], is_beyond(job["step"]), within_s=FINISHED_WITHIN_S)
            with stage(f"{way}, by infra/upgrade.sh"):
                go_to(work, version)
        with stage("the job that ran meanwhile"):
            if (job := ended(person, job))["attempt"] != 1:
                raise Refusal(f"{job['id']} had to begin again: attempt {job['attempt']}")


def is_beyond(step: int) -> Callable[[dict[str, Any]], bool]:
    return lambda job: bool(job["step"] >= step + 3)


def go_to(work: Work, version: str) -> None:
    set_values(work, LAMINAR_VERSION=version)
    upgrade = f"cd {work.project} && sh infra/upgrade.sh"
    work.run([*within(work), "sh", "-c", upgrade], DOCKER_HOST=f"unix://{work.socket}")
    wait_until_healthy(work)
