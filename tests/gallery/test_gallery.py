"""Every page in every state passes axe-core, has large enough controls and a visible focus; and none is missing."""

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.backend.tenant_world import OPEN_PAGES, PAGES
from tests.frontend.conftest import Visitor, chromium, server, server_of_all, visit  # noqa: F401  # fixtures
from tests.gallery.exhibits import make_exhibits
from tests.gallery.looking import (
    LOOKS,
    Wanderer,
    complaints_of,
    grave_of,
    hard_to_press_on,
    take_screenshot,
    too_long_on,
)
from tests.gallery.manifest import ENTRIES, IN_MAKE_TEST, REFUSALS, STATES, Entry
from tests.gallery.showing import write_index

NO_PAGES = {"job_live", "job_series", "client_wheel"}
"""URLs of pulls and of a file, which have no page."""


def test_every_page_that_is_looked_at_has_an_entry() -> None:
    checked_view = {name for name, page in PAGES.items() if page.method == "GET" or page.asks} | OPEN_PAGES
    assert checked_view - NO_PAGES <= {entry.page for entry in ENTRIES}


def test_every_declared_state_and_refusal_has_an_entry() -> None:
    entered: dict[str, set[str]] = defaultdict(set)
    for entry in ENTRIES:
        entered[entry.page].add(entry.state)
    forgotten = {page: left for page, states in STATES.items() if (left := states - entered[page])}
    assert not forgotten
    assert {entry.status for entry in ENTRIES} >= REFUSALS


def test_each_entry_has_a_name_of_its_own() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(set(names)) == len(names) and set(names) >= IN_MAKE_TEST


@pytest.mark.long
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_most_visited_pages_are_accessible(visit: Callable[..., Visitor]) -> None:  # noqa: F811
    assert not found_on([entry for entry in ENTRIES if entry.name in IN_MAKE_TEST], visit)


@pytest.mark.soak
@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_every_page_in_every_state_is_accessible(visit: Callable[..., Visitor]) -> None:  # noqa: F811
    """Also takes the screenshot, if a folder is configured."""
    chosen = tuple(os.environ.get("GALLERY_NAMES", "").split())
    entries = [entry for entry in ENTRIES if not chosen or entry.name.startswith(chosen)]
    folder = os.environ.get("GALLERY_FOLDER")
    found = found_on(entries, visit, Path(folder) if folder else None)
    if folder:
        write_index(Path(folder), entries)
    assert not found, "\n".join(found)


def found_on(entries: Sequence[Entry], visit: Callable[..., Visitor], folder: Path | None = None) -> list[str]:  # noqa: F811
    wanderer, found = Wanderer(visit=visit, exhibits=make_exhibits(), visitors={}), []
    for look in LOOKS:
        for entry in entries:
            visitor = wanderer.see(entry, look)
            if folder:
                take_screenshot(visitor.page, folder, entry, look)
            found += [f"{entry.name} {look}: {line}" for line in grave_of(visitor.page)]
            found += [f"{entry.name} {look}: {line}" for line in too_long_on(visitor.page, entry, look)]
            found += [f"{entry.name} {look}: {line}" for line in hard_to_press_on(visitor.page)]
            found += [f"{entry.name} {look}: the console shows {line}" for line in complaints_of(visitor, entry)]
    return found
