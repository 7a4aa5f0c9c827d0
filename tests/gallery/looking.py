"""Opening an entry as the person that it is for, asking axe-core about it, pressing what is on it, and its picture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it carries no types
from playwright.sync_api import Page

from backend.accounts.models import User
from backend.api.models import RateBucket
from tests.frontend.conftest import Visitor
from tests.frontend.test_browser import see_everything
from tests.gallery.exhibits import Exhibits
from tests.gallery.manifest import NEIGHBOUR, NEWCOMER, OPERATOR, OWNER, VIEWER, Entry

OK: Final = 200
GRAVE: Final = {"serious", "critical"}
ALSO: Final = {"rules": {"target-size": {"enabled": True}}}
"""WCAG 2.2's 24 pixels for whatever is pressed, which axe-core asks for only when told to."""
SETTLES_WITHIN_MS: Final = 5_000
SCREEN: Final = 844
MOST_SCREENS: Final = 5
"""Of a telephone, below one another: what is further down is not found."""
LOOKS: Final[Mapping[str, Mapping[str, Any]]] = {"light": {}, "dark": {"dark": True}, "narrow": {"width": 390}}
"""How `visit` is asked for each."""


@dataclass(slots=True)
class Wanderer:
    """Goes from entry to entry, as one person in one look each."""

    visit: Callable[..., Visitor]
    exhibits: Exhibits
    visitors: dict[tuple[str, str], Visitor]

    def see(self, entry: Entry, look: str) -> Visitor:
        key = (entry.who, look)
        if key not in self.visitors:
            self.visitors[key] = self.visit(self._person(entry.who), **LOOKS[look])
        visitor = self.visitors[key]
        address = visitor.server.url + entry.address(self.exhibits)
        if entry.is_too_often:
            visitor.page.request.get(address)  # the bucket is there now
            RateBucket.objects.update(full_at=datetime.now(UTC) + timedelta(hours=1))
        answer = visitor.page.goto(address)
        if entry.then is not None:
            with visitor.page.expect_response(lambda one: one.request.is_navigation_request()) as sent:
                entry.then(visitor.page)
            answer = sent.value
        expected = {entry.status, 302} if entry.then else {entry.status}
        assert answer is not None and answer.status in expected, f"{entry.name}: {answer and answer.status}"
        if entry.is_too_often:
            RateBucket.objects.all().delete()
        settled(visitor.page)
        return visitor

    def _person(self, who: str) -> User | None:
        people = {
            OWNER: self.exhibits.owner,
            VIEWER: self.exhibits.viewer,
            NEIGHBOUR: self.exhibits.neighbour,
            NEWCOMER: self.exhibits.newcomer,
            OPERATOR: self.exhibits.operator,
        }
        return people.get(who)


def complaints_of(visitor: Visitor, entry: Entry) -> list[str]:
    """But for what a browser says of every page that is a refusal."""
    known = f"Failed to load resource: the server responded with a status of {entry.status}"
    said = [line for line in visitor.complaints if entry.status == OK or not line.startswith(known)]
    visitor.complaints.clear()
    return said


def settled(page: Page) -> None:
    """Every chart in sight is drawn."""
    page.wait_for_load_state("load")
    page.wait_for_timeout(200)
    for _ in range(SETTLES_WITHIN_MS // 100):
        if page.evaluate(_WAITING) == 0:
            return
        page.wait_for_timeout(100)


_WAITING: Final = """[...document.querySelectorAll("[data-plot]:not(.blank)")].filter((plot) =>
    plot.checkVisibility() && plot.getBoundingClientRect().top < innerHeight && !plot.querySelector("svg")).length"""


def grave_of(page: Page) -> list[str]:
    """What axe-core finds that keeps people out: one line for each thing on the page."""
    found = Axe().run(page, options=ALSO).response["violations"]
    return [
        f"{rule['id']} ({rule['impact']}): {thing['html'][:160]} — {_why(thing['failureSummary'])}"
        for rule in found
        if rule["impact"] in GRAVE
        for thing in rule["nodes"]
    ]


CONTROLS: Final = (Path(__file__).parent / "controls.js").read_text()


def _why(summary: str) -> str:
    return summary.splitlines()[-1].strip()[:200]


def hard_to_press_on(page: Page) -> list[str]:
    """Whatever is smaller than 24 pixels, or shows nothing of having the focus: one line for each. What was folded is
    open afterwards. The focus is put by a script, which browsers mark as they do for keys after a key was used."""
    page.keyboard.press("Tab")
    found: list[str] = page.evaluate(CONTROLS)
    return found


def too_long_on(page: Page, entry: Entry, look: str) -> list[str]:
    """Of a job's first page on a telephone: it begins with its name, and does not go on for ever."""
    if look != "narrow" or entry.page != "job" or entry.status != OK:
        return []
    height = page.evaluate("document.documentElement.scrollHeight")
    return [f"{height} pixels long on a telephone"] if height > MOST_SCREENS * SCREEN else []


def photograph(page: Page, folder: Path, entry: Entry, look: str) -> None:
    see_everything(page)
    settled(page)
    page.screenshot(path=folder / f"{entry.name}-{look}.png", full_page=True)
