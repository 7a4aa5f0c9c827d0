"""The job list: filters, pages and rows."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from backend.accounts.models import Membership, Project, Role, User
from backend.jobs.models import Job
from backend.pages.jobs.rows import rows_of
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


@pytest.mark.long
def test_list_filters_by_owner_project_pool_tag_and_verdict(world: World, owner: Client) -> None:
    bea = User.objects.create_user("bea@example.org")
    Membership.objects.create(user=bea, team=world.team, role=Role.MEMBER)
    seed.submitted(world, name="Alpha", tags=["sweep"], user=bea)
    seed.doubted(world, name="Beta", tags=["other"])
    other = Project.objects.create(team=world.team, name="Second steps")
    seed.cancelled(replace(world, project=other), name="Gamma", tags=[])
    page = text_of(owner.get("/jobs/"))
    assert all(f'<option value="{value}">' in page for value in ("bea@example.org", other.pk, "sweep", "untrusted"))
    assert names_listed(owner, "owner=BEA@example.org") == ["Alpha"]
    assert names_listed(owner, f"project={other.pk}") == ["Gamma"]
    assert sorted(names_listed(owner, f"pool={world.pool.pk}")) == ["Alpha", "Beta", "Gamma"]
    assert names_listed(owner, "tag=other") == ["Beta"]
    assert names_listed(owner, "verdict=alarm") == ["Beta"]
    assert names_listed(owner, "verdict=untrusted&state=active") == ["Beta"]
    assert names_listed(owner, "verdict=stuck") == names_listed(owner, "tag=nobodys") == []
    narrowed = text_of(owner.get("/jobs/?tag=other&sort=name"))
    assert '<option value="other" selected>' in narrowed
    assert '<a href="?sort=name" aria-label="Show any tag">' in narrowed


def test_the_list_is_ordered_by_what_its_columns_say(world: World, owner: Client) -> None:
    seed.running(world, name="Beta", steps_done=3, training={"steps": 4})
    seed.running(world, name="Alpha", steps_done=4, training={"steps": 40})
    no_trainer = {"training": {"steps": 0}, "resources": {"trainer_devices": 0}}
    seed.submitted(world, name="Gamma", evaluation={"prompts": 8}, **dict[str, Any](no_trainer))
    Job.objects.filter(name="Gamma").update(answered=4)
    assert names_listed(owner, "sort=name") == ["Alpha", "Beta", "Gamma"]
    assert names_listed(owner, "sort=-name") == ["Gamma", "Beta", "Alpha"]
    assert names_listed(owner, "sort=-progress") == ["Beta", "Gamma", "Alpha"]
    assert names_listed(owner, "sort=age") == names_listed(owner, "sort=nonsense")[::-1]
    page = text_of(owner.get("/jobs/?sort=name&state=active"))
    assert 'aria-sort="ascending"><a href="?state=active&amp;sort=-name">Name' in page
    assert '<a href="?state=active&amp;sort=-devices">Devices' in page
    assert '<a href="?state=running&amp;sort=name"' in page


def test_a_row_has_the_tags_that_its_job_was_given_later(world: World, owner: Client) -> None:
    job = seed.submitted(world, name="Alpha", tags=["before"])
    owner.post(f"/jobs/{job.pk}/change", {"name": "Alpha", "tags": "after"})
    page = text_of(owner.get("/jobs/"))
    assert '<span class="tag" dir="auto">after</span>' in page and ">before</span>" not in page
    assert names_listed(owner, "q=after") == ["Alpha"]


def test_the_list_has_pages(world: World, owner: Client) -> None:
    for n in range(26):
        seed.submitted(world, name=f"Job {n:02}")
    assert "Job 25" in (first := text_of(owner.get("/jobs/")))
    assert "Page 1 of 2" in first
    assert 'href="?sort=name&amp;page=2"' in text_of(owner.get("/jobs/?sort=name"))
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
