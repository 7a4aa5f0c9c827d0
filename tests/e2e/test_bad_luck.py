"""`make soak` strikes a site at random for two hours (SOAK_S): kills, stops for shorter and longer than any
lease, cut connections and, where its home has a disk of its own, full disks: SOAK_HOME may name an empty folder
that is where a small disk is mounted. The short form is in test_way_of_one_job.
"""

import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from tests.e2e.blows import Blows, has_a_disk_of_its_own
from tests.e2e.conftest import Stack, new_home, running_stack
from tests.e2e.customer import TERMINAL
from tests.e2e.ends import assert_it_ended_once_and_well, assert_nobodys_bill_is_wrong, spec

pytestmark = pytest.mark.e2e

SOAK_S: Final = float(os.environ.get("SOAK_S", 7_200))
JOBS_AT_LEAST: Final = 6
STOPS_IN_TWO_HOURS: Final = 50
ANSWERS_WITHIN_S: Final = 400.0  # of a site several of whose processes are stopped at once, and then missed
CALM_WITHIN_S: Final = 900.0
SETTLED_WITHIN_S: Final = 120.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(new_home(tmp_path_factory)) as running:
        yield running


@pytest.mark.soak
def test_two_hours_of_faults_keep_samples_and_bills_exact(stack: Stack) -> None:
    stack = replace(stack, patience_s=ANSWERS_WITHIN_S)
    seed = random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    blows = Blows(stack, chance)
    has_own_disk = has_a_disk_of_its_own(stack.home.folder)
    until, jobs = time.monotonic() + SOAK_S, list[str]()
    while time.monotonic() < until or len(jobs) < JOBS_AT_LEAST:
        if sum(stack.get(f"/jobs/{job}")["state"] not in TERMINAL for job in jobs[-2:]) < 2:
            jobs.append(stack.submit_within(ANSWERS_WITHIN_S, spec(chance.choice((40, 100, 300))))["id"])
        blows.any_of(has_own_disk=has_own_disk)()
        time.sleep(chance.uniform(5.0, 30.0))
    blows.calm()
    print(f"\nseed {seed}, {len(jobs)} jobs, struck {dict(blows.struck)}, own disk: {has_own_disk}")
    num_stops = sum(number for blow, number in blows.struck.items() if blow.startswith("stop"))
    assert num_stops >= STOPS_IN_TWO_HOURS * SOAK_S / 7_200
    for job in jobs:
        assert_it_ended_once_and_well(stack, stack.finish(job, within_s=CALM_WITHIN_S))
    assert_nobodys_bill_is_wrong(stack, database=stack.database, settled_within_s=SETTLED_WITHIN_S)
