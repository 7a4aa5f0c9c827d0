"""The status page: for operators only, one examination at a time, and no more often than needed."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from backend.accounts.models import User
from backend.clock import database_now
from backend.environment import Environment
from backend.operating import status
from backend.operating.checks import disks, site
from backend.operating.checks.findings import Finding, good
from backend.operating.models import Examination
from backend.operating.status import Kind, check_again, last_seen

pytestmark = pytest.mark.django_db


class Looking:
    """A counted check that can be made to block."""

    def __init__(self) -> None:
        self.times = 0
        self.began, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()

    def __call__(self, _: Environment) -> Iterator[Finding]:
        self.times += 1
        self.began.set()
        assert self.may_end.wait(timeout=30)
        yield good("it is <well>")
        yield disks.LOW.found("1 GB left")
        yield site.NOBODY.found("this site has no operator")


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Looking:
    looking = Looking()
    kind = Kind(name="site", checks={"This": looking}, lasts=timedelta(seconds=10))
    for place in ("backend.operating.status", "backend.pages.operating.status_views"):
        monkeypatch.setattr(f"{place}.OF_THE_SITE", kind)
        monkeypatch.setattr(f"{place}.OF_THE_NODES", Kind(name="nodes", checks={"Nodes": looking}, lasts=kind.lasts))
    return looking


@pytest.fixture
def operator(alice: User) -> Client:
    User.objects.filter(pk=alice.pk).update(is_staff=True)
    browser = Client()
    browser.force_login(alice)
    return browser


def _age(name: str, by: timedelta) -> None:
    row = Examination.objects.get(pk=name)
    assert row.began_at is not None
    Examination.objects.filter(pk=name).update(began_at=row.began_at - by, ended_at=row.ended_at and row.ended_at - by)


def test_an_operator_reads_what_is_wrong_and_what_to_do(operator: Client, looking: Looking) -> None:
    page = operator.get("/status/")
    text = page.content.decode()
    assert page.status_code == 200 and page.headers["Cache-Control"].startswith("max-age=0")
    assert "1 problem found." in text and "python manage.py bootstrap" in text and "site.nobody" in text
    assert "it is &lt;well&gt;" in text and "1 GB left" in text


def test_other_users_see_nothing_and_trigger_no_check(bob: User, looking: Looking) -> None:
    browser = Client()
    assert browser.get("/status/").status_code == 302
    browser.force_login(bob)
    for answer in (browser.get("/status/"), browser.post("/status/")):
        assert answer.status_code == 403 and b"site.nobody" not in answer.content
    assert looking.times == 0
    assert b"/status/" not in browser.get("/jobs/").content


def test_an_operator_finds_it_in_the_menu(operator: Client) -> None:
    assert b'href="/status/"' in operator.get("/jobs/").content


def test_repeated_check_within_seconds_reuses_the_result(operator: Client, looking: Looking) -> None:
    for _ in range(5):
        operator.get("/status/")
    assert looking.times == 1
    _age("site", timedelta(seconds=11))
    operator.get("/status/")
    assert looking.times == 2


def test_nodes_are_checked_on_request(operator: Client, looking: Looking) -> None:
    assert b"nodes have not been checked" in operator.get("/status/").content
    assert operator.post("/status/").headers["Location"] == "/status/"
    assert b"nodes have not been checked" not in operator.get("/status/").content
    assert looking.times == 2
    assert b"within the last minute" in operator.post("/status/", follow=True).content
    assert looking.times == 2


@pytest.mark.django_db(transaction=True)
def test_only_one_examines_at_a_time(looking: Looking, in_own_connection: Callable[..., Any]) -> None:
    looking.may_end.clear()
    results: list[bool] = []
    first = threading.Thread(target=in_own_connection(lambda: results.append(check_again(status.OF_THE_SITE))))
    first.start()
    assert looking.began.wait(timeout=30)
    assert not check_again(status.OF_THE_SITE) and last_seen(status.OF_THE_SITE) is None
    looking.may_end.set()
    first.join()
    assert results == [True] and looking.times == 1
    seen = last_seen(status.OF_THE_SITE)
    assert seen is not None and [finding.fault for finding in seen.parts[0].findings] == ["", "disk.low", "site.nobody"]


def test_interrupted_examination_is_given_up(looking: Looking) -> None:
    Examination.objects.create(name="site", began_at=database_now() - timedelta(minutes=1))
    assert not check_again(status.OF_THE_SITE)
    _age("site", timedelta(minutes=5))
    assert check_again(status.OF_THE_SITE)
