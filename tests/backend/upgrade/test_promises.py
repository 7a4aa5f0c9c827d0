"""The guide's promises for /api/v1 ("What may change") are kept, from the first release on."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.backend.upgrade.promises import FOLDER, broken, present, rest_api

RELEASES = sorted(FOLDER.glob("api-*.txt"))
GUIDE = FOLDER.parents[2] / "frontend" / "templates" / "pages" / "programs" / "guide.html"


@pytest.mark.long
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_no_promise_of_a_release_is_removed_or_made_required(release: Any) -> None:
    assert RELEASES[0].stem == "api-0.1.0"
    assert broken(set(release.read_text().splitlines()), present()) == []


@pytest.mark.parametrize(
    ("gone", "come", "found"),
    [
        ("JobOut.state is", "", "JobOut.state is"),
        ("GET /api/v1/jobs takes query limit", "", "GET /api/v1/jobs takes query limit"),
        ("", "SubmitJob.colour must be given", "SubmitJob.colour must be given"),
        ("", "GET /api/v1/jobs takes query colour must be given", "GET /api/v1/jobs takes query colour must be given"),
        ("", "JobOut.colour is string", ""),
        ("", "GET /api/v1/colours takes query shade must be given", ""),
    ],
)
def test_breaking_changes_are_found_and_additions_are_not(gone: str, come: str, found: str) -> None:
    before = present()
    after = {line for line in before if not gone or not line.startswith(gone)} | ({come} if come else set())
    assert [line[: len(found)] for line in broken(before, after)][:1] == ([found] if found else [])


def test_deprecations_name_their_replacement() -> None:
    assert "marked <code>deprecated</code>" in GUIDE.read_text(), "as the guide promises"
    silent = [entry for entry in _deprecated(rest_api()) if not re.search(r"\b(instead|in its place)\b", str(entry))]
    assert silent == []


def _deprecated(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if node.get("deprecated") is True:
            yield node
        node = list(node.values())
    for each in node if isinstance(node, list) else []:
        yield from _deprecated(each)
