"""The schedule of a page's pulls: lib/live.js in node, with a simulated clock, randomness and network.

No real clock is read: simulated seconds pass at once.
"""

import itertools
import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

HERE: Final = Path(__file__).parent
LIVE: Final = HERE.parents[2] / "frontend/static/js/lib/live.js"
NUM_SEEDS: Final = 60
BEGINS_MS, ANSWER_MS, REFUSED_AFTER_MS = 10_000, 300, 20
"""The outage, and how long a response and a refusal of a socket take in world.mjs."""

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


@pytest.fixture(scope="module")
def lived() -> dict[str, Any]:
    command = ["node", str(HERE / "prove.mjs"), LIVE.as_uri(), str(NUM_SEEDS)]
    return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


OUTAGES: Final = [
    ("socket", "refused"), ("socket", "stalled"), ("socket", "database away"),
    ("http", "refused"), ("http", "stalled"), ("http", "database away"), ("http", "pull hangs"),
]  # fmt: skip
"""What a page pulls over, and the kind of outage: server down, no responses, database down, hanging requests."""


@pytest.fixture(params=OUTAGES, ids="-".join)
def pages(lived: dict[str, Any], request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return pages_of(lived, *request.param)


def pages_of(lived: dict[str, Any], wire: str, outage: str) -> list[dict[str, Any]]:
    return [page for page in lived["found"] if (page["wire"], page["outage"]) == (wire, outage)]


def tries_in_outage(page: dict[str, Any]) -> list[float]:
    """Pulls, and attempts to open a socket."""
    return sorted(at for at in page["tries"] + page["openings"] if BEGINS_MS <= at < page["until"])


def test_page_is_current_within_5_s_after_outage(pages: list[dict[str, Any]]) -> None:
    assert max(page["equalAt"] - page["until"] for page in pages) <= 3_000 + 2 * ANSWER_MS


def test_page_is_marked_stale_within_5_s_of_last_response(pages: list[dict[str, Any]]) -> None:
    for page in pages:
        told = next(said["at"] for said in page["statuses"] if said["state"] in {"stale", "offline"})
        last_good = BEGINS_MS if page["outage"] != "pull hangs" else min(tries_in_outage(page))
        assert told - last_good <= 5_000


def test_once_equal_it_says_live_and_says_nothing_else_after(pages: list[dict[str, Any]]) -> None:
    assert {page["statuses"][-1]["state"] for page in pages} == {"live"}


def test_tries_start_every_3_s_and_at_most_two_overlap(pages: list[dict[str, Any]]) -> None:
    for page in pages:
        tries = tries_in_outage(page)
        longest_pause = 3_000 if page["outage"] != "refused" else 3_000 + REFUSED_AFTER_MS
        assert max(after - before for before, after in itertools.pairwise(tries)) <= longest_pause
        assert page["mostAtOnce"] <= 2


def test_hanging_requests_do_not_concern_a_page_with_a_socket(lived: dict[str, Any]) -> None:
    pages = pages_of(lived, "socket", "pull hangs")
    assert all(page["equalAt"] < page["until"] for page in pages)
    assert {said["state"] for page in pages for said in page["statuses"]} == {"live"}


def test_page_that_waits_for_its_socket_hardly_pulls(lived: dict[str, Any]) -> None:
    """A restarted server gets sockets, which cost it a tenth of a request: not both from every page."""
    for page in pages_of(lived, "socket", "refused"):
        pulls = [at for at in page["tries"] if BEGINS_MS <= at < page["until"]]
        assert len(pulls) <= 1 + (page["until"] - BEGINS_MS) / 15_000


def test_who_waits_asks_a_bounded_number_of_times(pages: list[dict[str, Any]]) -> None:
    a_minute = [60_000 * len(tries_in_outage(page)) / (page["until"] - BEGINS_MS) for page in pages]
    assert max(a_minute) <= 70


def test_pages_spread_their_retries_after_an_outage(lived: dict[str, Any]) -> None:
    """The first successful tries of all pages: no tenth of a second has more than a fifth of them."""
    firsts = [
        next(at for at in page["tries"] if at >= page["until"]) - page["until"]
        for page in lived["found"]
        if (page["wire"], page["outage"]) == ("socket", "refused")
    ]
    assert max(Counter(int(at // 100) for at in firsts).values()) <= NUM_SEEDS / 5


def test_slow_responses_are_awaited_not_retried_forever(lived: dict[str, Any]) -> None:
    """Every response takes 12 s: the oldest try is kept until it completes."""
    for page in lived["slow"]:
        assert page["equalAt"] is not None and page["mostAtOnce"] <= 2
