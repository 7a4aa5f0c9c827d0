"""The connection dot: the page shows any failure between page and database, and catches up automatically.

freshness/ proves the delays in simulated time; these tests show the behaviour in a real browser.
"""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection
from playwright.sync_api import expect

from tests.frontend import seed
from tests.frontend.conftest import NAME_OF_THE_SERVER, Server
from tests.frontend.test_browser import ARRIVES_WITHIN_MS, Visit, expect_value

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

OUT_OF_DATE = re.compile("stale|offline")
CUT = "WebSocket connection|ERR_CONNECTION|ERR_EMPTY_RESPONSE|ERR_NETWORK"


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)


@contextmanager
def shut_to_others() -> Iterator[None]:
    """Cuts the web server's database connections and prevents new ones."""
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = ANY(%s)"
    with connection.cursor() as cursor:
        quoted = connection.ops.quote_name(connection.settings_dict["NAME"])
        cursor.execute(f"ALTER DATABASE {quoted} CONNECTION LIMIT 0")
        cursor.execute(others, [[NAME_OF_THE_SERVER, "laminar-live-hub"]])
        assert cursor.fetchall()
        try:
            yield
        finally:
            cursor.execute(f"ALTER DATABASE {quoted} CONNECTION LIMIT -1")


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.soak)])
def test_page_catches_up_after_server_restart(visit: Visit, how: int) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=4)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    visitor.provokes(CUT)
    visitor.server.stop(how)
    expect(page.locator("[data-connection-words]")).to_have_text("offline since", timeout=ARRIVES_WITHIN_MS)
    seed.trained(world, job, 5)
    seed.trained(world, job, 6)
    visitor.server.start()
    expect(page.locator("[data-value=done]").first).to_have_text("6", timeout=ARRIVES_WITHIN_MS)
    expect(page.locator("[data-connection-words]")).to_have_text("live", timeout=ARRIVES_WITHIN_MS)
    expect_value(page, "document.querySelector('[data-chart=reward] [data-plot]').data[0].x.join() === '1,2,3,4,5,6'")


@pytest.mark.long
def test_hanging_server_is_detected_on_open_connections(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=4)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    visitor.provokes(CUT)
    with stopped(visitor.server):
        expect(page.locator("[data-connection-words]")).to_have_text("stale since", timeout=ARRIVES_WITHIN_MS)
        seed.trained(world, job, 5)
        expect(page.locator("[data-connection-seconds]")).not_to_be_empty()
    expect(page.locator("[data-value=done]").first).to_have_text("5", timeout=ARRIVES_WITHIN_MS)
    expect(page.locator("[data-connection-words]")).to_have_text("live", timeout=ARRIVES_WITHIN_MS)


@pytest.mark.long
def test_a_site_without_its_database_is_not_called_live(visit: Visit) -> None:
    world = seed.make_world()
    job = seed.running(world, steps_done=4)
    visitor = visit(world.owner)
    page = visitor.open(f"/jobs/{job.pk}/")
    expect(page.locator("[data-connection-words]")).to_have_text("live")
    visitor.provokes(f"{CUT}|status of 5")
    with shut_to_others():
        expect(page.locator(".connection")).to_have_attribute("data-state", OUT_OF_DATE, timeout=ARRIVES_WITHIN_MS)
        seed.trained(world, job, 5)
    expect(page.locator("[data-value=done]").first).to_have_text("5", timeout=ARRIVES_WITHIN_MS)
    expect(page.locator("[data-connection-words]")).to_have_text("live", timeout=ARRIVES_WITHIN_MS)
