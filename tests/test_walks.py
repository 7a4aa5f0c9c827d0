"""The walks in the READMEs match the code: every file exists, every call is an import, and no walk returns to a room
more than twice."""

import ast
import re
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_RETURNS = 2
LINE = re.compile(r"^(?P<arrow>[ →⇢]) (?P<file>(?:backend|engine)/\S+\.py)(?: +\S.*)?$")


class Stop(NamedTuple):
    arrow: str
    file: str

    @property
    def room(self) -> str:
        """A part's brain and its body are one room, under one name in two places."""
        house, *folders = Path(self.file).parent.parts
        if house == "engine" and folders[0] in ("live", "pipeline"):
            folders = folders[1:]
        return "/".join((house, *folders))


def walks() -> dict[str, list[Stop]]:
    found: dict[str, list[Stop]] = {}
    for side in ("backend", "engine"):
        for block in re.findall(r"^```walk\n(.*?)^```$", (ROOT / side / "README.md").read_text(), re.M | re.S):
            title, *lines = block.splitlines()
            matches = [LINE.match(line) for line in lines]
            assert all(matches), f"{title}: {lines}"
            found[f"{side}: {title}"] = [Stop(match["arrow"], match["file"]) for match in matches if match]
    return found


def imports(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    names = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names} | {
        str(node.module) for node in nodes
    }
    return {f"{name.replace('.', '/')}.py" for name in names}


def test_each_side_draws_its_walks() -> None:
    titles = " ".join(walks())
    for walked in (
        "backend: A spec",
        "backend: A fact",
        "engine: A spec",
        "engine: A traj",
        "engine: Weights",
        "engine: A fact",
    ):
        assert walked in titles


@pytest.mark.parametrize("title", walks())
def test_every_stop_is_there_and_what_is_called_is_imported(title: str) -> None:
    passed: list[str] = []
    for stop in walks()[title]:
        assert (ROOT / stop.file).is_file(), stop.file
        if stop.arrow == "→":
            ways = imports(stop.file)
            assert any(stop.file in imports(before) or before in ways for before in passed), stop.file
        passed.append(stop.file)


@pytest.mark.parametrize("title", walks())
def test_nobody_comes_back_to_a_room_more_than_twice(title: str) -> None:
    visits = Counter(room for room, _ in groupby(stop.room for stop in walks()[title]))
    assert max(visits.values()) <= 1 + MOST_RETURNS, visits
