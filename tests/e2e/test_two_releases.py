"""An upgrade in the middle of a job, with two real releases: the driver of one under the control plane of the other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from infra.local.home import PROJECT, Home
from infra.local.services.site import Site
from tests.e2e.customer import Customer
from tests.e2e.ends import assert_it_ended_once_and_well, assert_nobodys_bill_is_wrong, lasting
from tests.e2e.releases import control_plane_of, earlier_release, site_of
from tests.e2e.test_bad_luck import SETTLED_WITHIN_S

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

STEPS: Final = 100  # they outlast the change
WITHIN_S: Final = 600.0


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return earlier_release(tmp_path_factory.mktemp("earlier") / "laminar")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / ".laminar")


def is_beyond(step: int) -> Callable[[dict[str, Any]], bool]:
    return lambda job: bool(job["step"] >= step)


def num_migrations(home: Home) -> int:
    with psycopg.connect(Site(home=home, ports=home.written_ports()).postgres.url()) as db:
        return int(db.execute("SELECT count(*) FROM django_migrations").fetchall()[0][0])


def change_under_a_job(person: Customer, home: Home, to: Path, *, migrates: bool) -> None:
    job = person.wait(person.submit(**lasting(STEPS))["id"], is_beyond(5), within_s=WITHIN_S)
    with control_plane_of(to, home, migrates=migrates):
        seen = person.get(f"/jobs/{job['id']}")
        assert seen["state"] == "running" and seen["step"] < STEPS, f"nothing is shown by it: {seen['state']}"
        ended = person.finish(job["id"], within_s=WITHIN_S)
        assert_it_ended_once_and_well(person, ended)
        assert ended["attempt"] == 1
        database = Site(home=home, ports=home.written_ports()).postgres.url()
        assert_nobodys_bill_is_wrong(person, database=database, settled_within_s=SETTLED_WITHIN_S)


def test_old_job_ends_exactly_under_new_control_plane(earlier: Path, home: Home) -> None:
    with site_of(earlier, home) as person:
        before = num_migrations(home)
        change_under_a_job(person, home, PROJECT, migrates=True)
        assert num_migrations(home) >= before


def test_new_job_ends_exactly_under_old_control_plane(earlier: Path, home: Home) -> None:
    """The way back: on the new database."""
    with site_of(PROJECT, home) as person:
        change_under_a_job(person, home, earlier, migrates=False)
