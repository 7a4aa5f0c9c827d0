"""Healthy jobs on a busy host: `make soak ARGS=tests/e2e/test_sixty_jobs.py` takes over an hour; `JOBS=6` a tenth.

What the reconciler decides from is planted in the gate: `tests/backend/reconcile/test_standstill.py`.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
import pytest

from backend.reconcile.judging import STALL_LAST_DEADLINE_S
from tests.e2e.conftest import Stack, new_home, running_stack
from tests.e2e.ends import assert_it_ended_once_and_well, assert_nobodys_bill_is_wrong, spec
from tests.waiting import eventually

pytestmark = pytest.mark.e2e

JOBS: Final = int(os.environ.get("JOBS", 60))
AT_ONCE: Final = 3
NUM_SPINNING: Final = 4
WITHIN_S: Final = 3_600.0


@pytest.mark.soak
def test_no_healthy_job_is_doubted_on_a_busy_host(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_stack(new_home(tmp_path_factory)) as stack, spinning(NUM_SPINNING):
        listen_longer_than(STALL_LAST_DEADLINE_S, stack)
        for number in range(0, JOBS, AT_ONCE):
            jobs = [stack.submit(**spec(40))["id"] for _ in range(min(AT_ONCE, JOBS - number))]
            for job in (stack.finish(job, within_s=WITHIN_S) for job in jobs):
                assert_it_ended_once_and_well(stack, job)
                types = [event["type"] for event in stack.events(job["id"])]
                assert job["attempt"] == 1 and "stalled" not in types, types
        assert_nobodys_bill_is_wrong(stack, database=stack.database, settled_within_s=600)


@contextmanager
def spinning(count: int) -> Iterator[None]:
    loop = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    processes = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def listen_longer_than(seconds: float, stack: Stack) -> None:
    """Reads the reconciler's row, which a frozen round resets."""
    with psycopg.connect(stack.database, autocommit=True) as db:
        read = "SELECT extract(epoch FROM listened_at - listening_since) FROM jobs_reconcilelease"
        eventually(
            lambda: db.execute(read).fetchone(),
            f"the reconciler has listened for {seconds:g} s",
            until=lambda row: row is not None and row[0] is not None and row[0] > seconds,
            within_s=seconds + 600,
            every_s=1,
        )
