"""Usage: the API's numbers by day, person, job, project and key, as a table and as a file."""

import csv
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import unescape
from io import StringIO
from typing import Any

import pytest
from django.test import Client

from backend.accounts.models import User
from backend.jobs.models import Job
from backend.usage.report import GroupBy, usage_of
from backend.usage.split import Kinds
from tests.frontend import seed
from tests.frontend.seed import World

AsUser = Callable[[User], Client]


@pytest.fixture
def used(world: World) -> Job:
    return seed.finished(world, steps=5, at=datetime.now(UTC) - timedelta(hours=30), name="=Running sums")


def page_of(client: Client, query: str = "", *, status: int = 200) -> str:
    answer = client.get(f"/usage/{query}")
    assert answer.status_code == status
    return " ".join(unescape(str(answer.content, "utf-8")).split())


def around(job: Job) -> str:
    """A range that contains the whole job, on any day of the month."""
    return f"from={job.created_at.date()}&to={datetime.now(UTC).date()}"


def held_hours(world: World, job: Job) -> float:
    now = datetime.now(UTC)
    groups = usage_of(world.team, GroupBy.DAY, first=job.created_at.date(), last=now.date(), now=now)
    return sum((each.kinds for each in groups), Kinds()).held / 3.6e9


def days_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script id="usage-days" type="application/json">(.*?)</script>', page)
    assert found
    document: dict[str, Any] = json.loads(found[1])
    return document


@pytest.mark.parametrize("group_by", ["day", "user", "job", "project", "key"])
def test_every_grouping_adds_up_to_what_was_held(owner: Client, world: World, used: Job, group_by: str) -> None:
    table = csv_of(owner, f"?by={group_by}&{around(used)}&format=csv")
    assert table and sum(float(row["held_gpu_seconds"]) for row in table) / 3_600 == pytest.approx(
        held_hours(world, used)
    )
    page = page_of(owner, f"?by={group_by}&{around(used)}")
    assert {"day": str(used.created_at.date()), "user": world.owner.email, "job": "=Running sums",
            "project": "First steps", "key": "no API key"}[group_by] in page  # fmt: skip


def csv_of(client: Client, query: str) -> list[dict[str, str]]:
    answer = client.get(f"/usage/{query}")
    assert answer["Content-Type"].startswith("text/csv") and "attachment" in answer["Content-Disposition"]
    return list(csv.DictReader(StringIO(str(answer.content, "utf-8"))))


def test_the_chart_has_every_day_and_all_hours(owner: Client, world: World, used: Job) -> None:
    shown = days_of(page_of(owner, f"?{around(used)}"))
    wanted = (datetime.now(UTC).date() - used.created_at.date()).days + 1
    assert len(shown["days"]) == wanted and set(shown["kinds"]) == {"useful", "startup", "stale", "fault", "idle"}
    total = sum(hour for hours in shown["kinds"].values() for hour in hours)
    assert total == pytest.approx(held_hours(world, used), abs=0.001)


def test_a_job_leads_to_its_page_and_is_no_formula_in_the_file(owner: Client, used: Job) -> None:
    assert f'<a href="/jobs/{used.pk}/" dir="auto">=Running sums</a>' in page_of(owner, f"?by=job&{around(used)}")
    [row] = csv_of(owner, f"?by=job&{around(used)}&format=csv")
    assert row["label"] == "'=Running sums"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?from=yesterday", "Enter dates such as"),
        ("?from=2026-02-30", "Enter dates such as"),
        ("?from=2026-03-02&to=2026-03-01", "must not be before"),
        ("?from=2020-01-01&to=2026-01-01", "at most 366 days"),
        ("?from=0001-01-01", "Enter dates such as"),
    ],
)
def test_a_range_that_is_none_is_told_and_never_a_file(owner: Client, used: Job, query: str, said: str) -> None:
    for suffix in ("", "&format=csv"):
        page = page_of(owner, query + suffix, status=422)
        assert said in page and "Showing this month instead" in page


def test_an_unknown_grouping_is_by_day(owner: Client, used: Job) -> None:
    assert "By day" in page_of(owner, f"?by=shoe&{around(used)}")


def test_long_tables_come_in_pages(owner: Client, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.pages.budgets.usage_views.ROWS_A_PAGE", 2)
    start = datetime.now(UTC) - timedelta(hours=2)
    jobs = [seed.finished(world, steps=1, at=start, name=f"Number {each}") for each in range(3)]
    pages = [page_of(owner, f"?by=job&{around(jobs[0])}&page={each}") for each in (1, 2)]
    assert "Page 1 of 2" in pages[0] and 'rel="next"' in pages[0] and 'rel="prev"' in pages[1]
    names = [re.findall(r"Number \d", page) for page in pages]
    assert sorted(names[0] + names[1]) == ["Number 0", "Number 1", "Number 2"] and len(names[0]) == 2
    assert "All 3" in pages[0], "the sum is of all pages"


def test_a_viewer_sees_it_and_another_team_does_not(viewer: Client, outsider: Client, world: World, used: Job) -> None:
    assert "Running sums" in page_of(viewer, f"?by=job&{around(used)}")
    assert "No usage" in page_of(outsider, f"?by=job&{around(used)}")
    assert outsider.get(f"/usage/?team={world.team.pk}").status_code == 404
    assert outsider.get(f"/usage/?team={world.team.pk}&format=csv").status_code == 404


def test_where_nothing_was_used_it_says_what_counts(owner: Client, world: World) -> None:
    page = page_of(owner)
    assert "No usage" in page and "held a device from" in page and "plotly" not in page


def test_strangers_are_sent_to_sign_in(db: None) -> None:
    assert Client().get("/usage/")["Location"] == "/accounts/login/?next=/usage/"
