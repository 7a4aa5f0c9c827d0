"""The tries are recorded whole, and the page still shows for each of these runs what was answered from its picture."""

import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import Page

from backend.verdicts.rules.finding import WORDS
from backend.verdicts.selectors import verdict_of
from tests.frontend.conftest import Visitor, as_user, chromium, owner, server, server_of_all, visit, world  # noqa: F401
from tests.frontend.seed import World, make_world
from tests.frontend.test_browser import see_everything
from tests.gallery.looking import settled
from tests.verdict.as_jobs import told_as_job
from tests.verdict.blind.choosing import HEALTHY, NUM, Shown, choose
from tests.verdict.blind.records import KEY, RECORDS, digest_of, judged, opened
from tests.verdict.runs import RUNS

TRIES = sorted(RECORDS.glob("*"))
WELL = {"solved", "learning", "early"}


def key_of(a_try: Path) -> str:
    return (a_try / KEY).read_text()


def last_result() -> dict[str, Any]:
    return dict(json.loads((TRIES[-1] / "result.json").read_text()))


def test_each_try_is_whole_and_its_answers_belong_to_its_key() -> None:
    for a_try in TRIES:
        answers = json.loads((a_try / "answers.json").read_text())
        result = json.loads((a_try / "result.json").read_text())
        shown = opened(key_of(a_try))
        assert answers["digest of the key"] == digest_of(key_of(a_try))
        assert len(shown) == NUM == result["of"]
        assert result["each"] == [
            {"number": each.number, "answer": each.answer, "kind": each.kind, "run": each.run}
            for each in judged(answers, shown)
        ]
        assert result["right"] == sum(each.is_right for each in judged(answers, shown))


def test_the_last_try_named_all_of_every_kind_that_has_a_run() -> None:
    result = last_result()
    assert result["right"] == result["of"]
    assert {each["kind"] for each in result["each"]} >= {HEALTHY, *(run.kind for run in RUNS if run.kind)}


@pytest.mark.long
@pytest.mark.django_db
def test_the_page_still_says_what_was_answered(world: World, owner: Client) -> None:  # noqa: F811
    for number, shown in enumerate(opened(key_of(TRIES[-1])), start=1):
        job = told_as_job(world, shown.run, name=f"Run {number}", until_s=shown.until_s, now=datetime.now(UTC))
        answer = last_result()["each"][number - 1]["answer"]
        found = verdict_of(job).findings
        kinds = [each.kind for each in found]
        assert answer_by(kinds) == answer, (number, shown.name, kinds)
        html = unescape(owner.get(f"/jobs/{job.pk}/").content.decode())
        [line] = re.findall(r'<section class="verdict\b.*?</section>', html, re.S)
        assert all(each.sentence in line and each.remedy in line for each in found)


def answer_by(kinds: list[str]) -> str:
    """What a reader takes from the line: the first that is neither praise nor the wish to see more."""
    return next((kind for kind in kinds if kind not in WELL), HEALTHY)


def test_a_choice_is_made_by_its_seed_and_has_every_kind() -> None:
    kinds = {run.kind or HEALTHY for run in RUNS}
    for seed in ("a", "b"):
        shown = choose(seed)
        assert shown == choose(seed)
        assert len({each.name for each in shown}) == NUM
        assert {each.kind for each in shown} == kinds
        assert kinds <= {HEALTHY, *WORDS}


@pytest.mark.soak
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_pictures_of_runs_without_their_names_and_settings(visit: Callable[..., Visitor], tmp_path: Path) -> None:  # noqa: F811
    folder = Path(os.environ.get("BLIND_FOLDER", tmp_path))
    shown = opened((folder / KEY).read_text()) if (folder / KEY).exists() else choose("soak")
    site = make_world()
    visitor = visit(site.owner)
    for number, each in enumerate(shown, start=1):
        take_screenshot(visitor, site, each, number, folder)
    assert len(list(folder.glob("*.png"))) == NUM
    assert not visitor.complaints


def take_screenshot(visitor: Visitor, site: World, shown: Shown, number: int, folder: Path) -> None:
    job = told_as_job(site, shown.run, name=f"Run {number}", until_s=shown.until_s, now=datetime.now(UTC))
    page = visitor.open(f"/jobs/{job.pk}/")
    see_everything(page)
    settled(page)
    page.screenshot(path=folder / f"{number:02}.png", full_page=True, mask=hidden(page))


def hidden(page: Page) -> list[Any]:
    """The settings and the first events: they reveal the job's size, and whether it has code of its own."""
    begun = page.locator(".events li").filter(has_text=re.compile("Submitted|validating|queued|starting"))
    return [page.locator("dl.facts"), page.locator("#region-timeline"), begun]
