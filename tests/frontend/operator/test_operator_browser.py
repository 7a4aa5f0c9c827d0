"""Operator pages in a real Chromium, also on a phone, where each table cell needs a label."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Page, expect

from backend.accounts.models import User
from backend.jobs.queue.scheduling import schedule_pool
from backend.pools.clusters.probes import RayHost, note_found
from backend.pools.models import ResourcePool, TeamQuota
from tests.backend.budgets.test_limits import priced
from tests.frontend import seed
from tests.frontend.conftest import Visitor
from tests.frontend.seed import World

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
Visit = Callable[..., Visitor]
# For each visible cell: the head of its column, and its label on a phone.
CELLS = """() => [...document.querySelectorAll('table.operated')].flatMap(table => {
  const heads = [...table.tHead.rows[0].cells].map(head => head.querySelector('.unseen') ? '' : head.innerText.trim());
  return [...table.tBodies[0].rows].flatMap(row => [...row.cells]
    .filter(cell => cell.tagName === 'TD' && cell.colSpan === 1)
    .map(cell => [heads[cell.cellIndex - row.cells.length + heads.length], cell.dataset.label ?? '']));
})"""


@pytest.fixture
def world() -> World:
    """A pool with a host, a price, a running job and a waiting one."""
    world, now = seed.make_world(), datetime.now(UTC)
    runs = seed.submitted(world, name="Runs")
    schedule_pool(runs.pool_id, now=now)
    seed.submitted(world, name="Waits", rollout={"replicas": 63})
    priced(runs.pool, now, "0.0007")
    note_found([runs.pool], [RayHost(id="a", name="box-7", labels={"zone": "a"}, cpus=8.0, gpus=0)], now=now)
    return world


@pytest.fixture
def operator(world: World) -> User:
    return User.objects.create_user("olga@example.org", "still-waters-run-deep", is_staff=True)


def pages(world: World) -> list[str]:
    return ["/operator/", f"/operator/pools/{world.pool.pk}/", "/operator/teams/", "/operator/people/"]


def width_of(page: Page) -> float:
    return float(
        page.evaluate(
            "Math.max(...[...document.querySelectorAll('.tabs a')].map(tab => tab.getBoundingClientRect().right))"
        )
    )


@pytest.mark.long
def test_on_a_phone_every_tab_is_seen(visit: Visit, world: World, operator: User) -> None:
    visitor = visit(operator, width=390)
    for path in [*pages(world), "/operator/questions/", "/operator/maintenance/"]:
        page = visitor.open(path)
        assert page.locator(".tabs a").count() == 6 and width_of(page) <= 375, path
    assert visitor.complaints == []


@pytest.mark.long
def test_phone_cells_show_their_column_labels(visit: Visit, world: World, operator: User) -> None:
    visitor = visit(operator, width=390)
    for path in pages(world):
        cells = visitor.open(path).evaluate(CELLS)
        told = {(head, label) for head, label in cells if head not in ("", "Labels")}
        assert told and all(head == label for head, label in told), path


@pytest.mark.long
def test_a_quota_is_changed_in_its_row(visit: Visit, world: World, operator: User) -> None:
    page = visit(operator).open(f"/operator/pools/{world.pool.pk}/")
    name = world.team.name
    page.get_by_label(f"Quota of {name}").fill("60")
    page.get_by_label(f"{name} may borrow").fill("4")
    page.get_by_label(f"Weight of {name}").fill("2")
    page.get_by_role("button", name=f"Save the quota of {name}").press("Enter")
    expect(page.get_by_text("is 60")).to_be_visible()
    row = TeamQuota.objects.get(pool=ResourcePool.objects.get(pk=world.pool.pk), team=world.team)
    assert (row.nominal, row.borrow_limit, row.lend_limit, row.weight) == (60, 4, None, 2.0)
