"""A real site whose database is put back by half a minute in the middle of a job. The job does not notice."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta

import psutil
import psycopg
import pytest

from infra.local.home import PROJECT
from infra.local.processes import belongings
from infra.local.services.site import Site
from infra.local.site_commands import supervisor_status
from tests.e2e.conftest import Stack, new_home, running_stack
from tests.e2e.ends import assert_it_ended_once_and_well, assert_nobodys_bill_is_wrong, spec
from tests.e2e.test_bad_luck import SETTLED_WITHIN_S

pytestmark = [pytest.mark.e2e, pytest.mark.soak]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(new_home(tmp_path_factory)) as running:
        yield running


def backup(stack: Stack, *words: str) -> None:
    command = [sys.executable, "-m", "infra.backup", "--home", str(stack.home.folder), *words]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def put_back(stack: Stack) -> None:
    """Ray and the driver keep running meanwhile."""
    status = supervisor_status(stack.home)
    assert status is not None
    supervisor = psutil.Process(int(status["supervisor"]["pid"]))
    supervisor.suspend()
    try:
        for process in belongings(stack.home, "postgres"):
            with suppress(psutil.NoSuchProcess):  # the first takes the others with it
                process.kill()
        psutil.wait_procs(belongings(stack.home, "postgres"), timeout=10)
        backup(stack, "restore", "--as-backed-up", "--replace")
    finally:
        supervisor.resume()


def test_job_survives_a_restore_trained_and_billed_once(stack: Stack) -> None:
    steps = 60
    running = stack.submit(**spec(steps))["id"]
    stack.wait(running, lambda job: job["step"] >= 5, within_s=600)
    backup(stack, "take")
    stack.wait(running, lambda job: job["step"] >= 20, within_s=600)
    lost = stack.submit(**spec(5))["id"]  # the restored database lacks it, and its driver must not stay
    put_back(stack)
    ended = stack.finish(running, within_s=900)
    assert_it_ended_once_and_well(stack, ended)
    assert len(stack.get(f"/jobs/{running}/attempts")["data"]) == 1
    assert stack.client.get(f"/api/v1/jobs/{lost}").status_code == 404
    with psycopg.connect(Site(home=stack.home, ports=stack.home.written_ports()).postgres.url()) as db:
        assert db.execute("SELECT number > 28000000 FROM jobs_generation").fetchall() == [(True,)]
    assert_nobodys_bill_is_wrong(stack, database=stack.database, settled_within_s=SETTLED_WITHIN_S)


def test_job_that_ended_in_the_lost_time_is_not_retrained(stack: Stack) -> None:
    running = stack.submit(**spec(25))["id"]
    stack.wait(running, lambda job: job["step"] >= 3, within_s=600)
    backup(stack, "take")
    before = stack.finish(running, within_s=900)
    put_back(stack)
    after = stack.finish(running, within_s=900)
    assert_it_ended_once_and_well(stack, after)
    assert len(stack.get(f"/jobs/{running}/attempts")["data"]) == 1
    apart = datetime.fromisoformat(after["finished_at"]) - datetime.fromisoformat(before["finished_at"])
    assert abs(apart) < timedelta(seconds=30)  # not the moment of the restore
    assert_nobodys_bill_is_wrong(stack, database=stack.database, settled_within_s=SETTLED_WITHIN_S)
