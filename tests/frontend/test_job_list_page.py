"""The list of jobs: filters, pages, and what a row says."""

import re
from datetime import UTC, datetime

import pytest
from django.test import Client

from backend.pages.job_rows import rows_of
from tests.frontend import seed
from tests.frontend.html_reading import text_of
from tests.frontend.seed import World


def names_listed(client: Client, query: str) -> list[str]:
    return re.findall(r'dir="auto">(Alpha|Beta|Gamma)</a>', text_of(client.get(f"/jobs/?{query}")))


def test_the_list_filters_searches_and_counts(world: World, owner: Client) -> None:
    seed.submitted(world, name="Alpha", tags=["sweep"])
    seed.cancelled(world, name="Beta", tags=["sweep"])
    seed.cancelled(world, name="Gamma", tags=["other"])
    assert "all <b>3</b>" in (page := text_of(owner.get("/jobs/")))
    assert "cancelled <b>2</b>" in page
    assert names_listed(owner, "") == ["Gamma", "Beta", "Alpha"]
    assert names_listed(owner, "state=cancelled") == ["Gamma", "Beta"]
    assert names_listed(owner, "state=active") == ["Alpha"]
    assert names_listed(owner, "q=sweep") == ["Beta", "Alpha"]
    assert names_listed(owner, "q=alph") == ["Alpha"]
    assert names_listed(owner, "q=sweep&state=cancelled") == ["Beta"]
    assert owner.get("/jobs/?q=%07%ff&state=nonsense&page=-3").status_code == 200


def test_the_list_has_pages(world: World, owner: Client) -> None:
    for n in range(26):
        seed.submitted(world, name=f"Job {n:02}")
    assert "Job 25" in (first := text_of(owner.get("/jobs/")))
    assert "Page 1 of 2" in first
    assert "Job 00" in text_of(owner.get("/jobs/?page=2"))


def test_an_empty_list_invites_to_the_demo(world: World, owner: Client, viewer: Client) -> None:
    assert "Try the demo" in text_of(owner.get("/jobs/"))
    assert "Try the demo" not in text_of(viewer.get("/jobs/"))


def test_a_row_shows_reward_now_and_its_change(world: World) -> None:
    job = seed.running(world, steps_done=1)
    seed.trained(world, job, 2, reward=0.9)
    job.refresh_from_db()
    [row] = rows_of([job], now=datetime.now(UTC))
    assert row.reward == 0.9
    assert row.change == pytest.approx(0.9 - row.rewards[0])
