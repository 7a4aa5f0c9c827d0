"""Opens an entry as its user, runs axe-core on it, checks its controls, and takes its screenshot."""

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
"""WCAG 2.2's target size of 24 pixels, an optional rule of axe-core."""
SETTLES_WITHIN_MS: Final = 5_000
SCREEN: Final = 844
MOST_SCREENS: Final = 5
"""Maximum number of phone screens of a page; content below is rarely found."""
LOOKS: Final[Mapping[str, Mapping[str, Any]]] = {"light": {}, "dark": {"dark": True}, "narrow": {"width": 390}}
"""The arguments of `visit` for each look."""
UNPROTECTED: Final[Mapping[str, Any]] = {"has_policy": False}
"""The same for pages without their content security policy."""


@dataclass(slots=True)
class Wanderer:
    """Visits the entries, each as one user in one look."""

    visit: Callable[..., Visitor]
    exhibits: Exhibits
    visitors: dict[tuple[str, str], Visitor]

    def see(self, entry: Entry, look: str) -> Visitor:
        key = (entry.who, look)
        if key not in self.visitors:
            self.visitors[key] = self.visit(self._person(entry.who), **LOOKS.get(look, UNPROTECTED))
        visitor = self.visitors[key]
        address = visitor.server.url + entry.address(self.exhibits)
        if entry.is_too_often:
            visitor.page.request.get(address)  # creates the rate limit's bucket
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
    """Console errors, except the browser's message for an error status."""
    known = f"Failed to load resource: the server responded with a status of {entry.status}"
    said = [line for line in visitor.complaints if entry.status == OK or not line.startswith(known)]
    visitor.complaints.clear()
    return said


def settled(page: Page) -> None:
    """Waits until every visible chart is drawn."""
    page.wait_for_load_state("load")
    page.wait_for_timeout(200)
    for _ in range(SETTLES_WITHIN_MS // 100):
        if page.evaluate(_WAITING) == 0:
            return
        page.wait_for_timeout(100)


_WAITING: Final = """[...document.querySelectorAll("[data-plot]:not(.blank)")].filter((plot) =>
    plot.checkVisibility() && plot.getBoundingClientRect().top < innerHeight && !plot.querySelector("svg")).length"""


def grave_of(page: Page) -> list[str]:
    """axe-core's violations: one line per element."""
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
    """Controls that are smaller than 24 pixels or do not show the focus: one line each. Leaves folded parts open. A
    script sets the focus; after a key press, browsers then draw the same focus ring as for keys."""
    page.keyboard.press("Tab")
    found: list[str] = page.evaluate(CONTROLS)
    return found


def too_long_on(page: Page, entry: Entry, look: str) -> list[str]:
    """Checks a job's first page on a phone: it starts with the name and is not too long."""
    if look != "narrow" or entry.page != "job" or entry.status != OK:
        return []
    height = page.evaluate("document.documentElement.scrollHeight")
    return [f"{height} pixels long on a phone"] if height > MOST_SCREENS * SCREEN else []


def take_screenshot(page: Page, folder: Path, entry: Entry, look: str) -> None:
    see_everything(page)
    settled(page)
    page.screenshot(path=folder / f"{entry.name}-{look}.png", full_page=True)
