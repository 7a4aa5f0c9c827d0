"""Pages run no scripts from user input, and error pages are plain."""

from html.parser import HTMLParser

import pytest
from django.test import Client
from django.urls import reverse

from backend.pages.job.tabs import TABS
from tests.frontend import seed
from tests.frontend.html_reading import Answer, text_of
from tests.frontend.new_job.job_form import filled, send
from tests.frontend.seed import World

HOSTILE = "<script>alert(1)</script></script><!-- ${7*7} {{7*7}} ‮مرحبا " + "w" * 60


class Markup(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if (
            tag == "script"
            and not (given.get("src") or "").startswith("/static/")
            and given.get("type") != "application/json"
        ):
            self.faults.append("a script that is not ours")
        if tag in {"iframe", "object", "embed", "base"} or (tag == "style"):
            self.faults.append(f"<{tag}>")
        self.faults += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        if "id" in given:
            self.ids.append(str(given["id"]))


PAGES = ["/jobs/", "/jobs/new", "/help/", "/docs/api", "/client/", "/nothing/here"]
PAGES += [f"/accounts/{page}/" for page in ("login", "logout", "password/change", "signup")]


def all_pages(world: World, client: Client) -> dict[str, Answer]:
    job = seed.running(world, steps_done=3, name=HOSTILE.replace("\u202e", "")[:120], tags=["<b>x</b>"])
    job.trajectories.update(response=HOSTILE, prompt="</script><img src=x onerror=alert(1)>", remark=HOSTILE)
    failed = seed.failed(world, name="'\"><svg onload=alert(1)>", message="</pre>" + HOSTILE)
    paths = [
        *PAGES,
        *(reverse(tab.page, args=[job.pk]) for tab in TABS),
        f"/jobs/{job.pk}/cancel",
        f"/jobs/{failed.pk}/",
        f"/jobs/new?from={failed.pk}",
    ]
    answers = {path: client.get(path, follow=False) for path in paths}
    wrong = filled(world, name=HOSTILE * 2, tags="<b>,<b>", training__steps="<script>")
    return answers | {"form": send(client, wrong), "search": client.get("/jobs/", {"q": "<script>alert(1)"})}


@pytest.mark.long
def test_no_page_holds_a_script_or_a_handler_that_is_not_ours(world: World, owner: Client) -> None:
    for path, response in all_pages(world, owner).items():
        markup = Markup()
        markup.feed(text_of(response))
        assert not markup.faults, (path, markup.faults)
        assert len(markup.ids) == len(set(markup.ids)), path
        assert "<script>alert" not in text_of(response), path
        assert "<svg onload" not in text_of(response), path


@pytest.mark.long
def test_every_answer_carries_the_policy(world: World, owner: Client) -> None:
    for path, response in all_pages(world, owner).items():
        policy = dict(part.split(" ", 1) for part in response["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'", path
        assert policy["script-src"] == "'self'", path
        assert policy["frame-ancestors"] == "'none'", path
        assert "unsafe" not in policy["style-src"], path


def test_wrong_turns_are_told_in_our_own_words(world: World, owner: Client, viewer: Client) -> None:
    assert "Page not found" in text_of(owner.get("/nothing/here"))
    assert "can view jobs" in text_of(viewer.get("/jobs/new"))


def test_an_error_of_ours_is_a_calm_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret inside")

    monkeypatch.setattr("backend.pages.jobs.list_views.rows_of", broken)
    client = Client(raise_request_exception=False)
    client.force_login(world.owner)
    response = client.get("/jobs/")
    assert response.status_code == 500
    assert "Something went wrong" in text_of(response)
    assert "secret" not in text_of(response)
