"""Counts the code of checkouts, one column each: `python -m tests.census [CHECKOUT ...]`.

A report, not a gate. Migrations are left out. A circle is a group of modules that import each other, also where the
import is inside a function. The submit walk is `backend/jobs/submitting/submit.py`.
"""

import ast
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.prose import LONG, TOO_LONG, files, lines_of, test_names

SOURCES = ("backend/", "engine/", "frontend/", "infra/")
FULL_ROOM = 20
WALK = "backend/jobs/submitting/submit.py"
VARIABLE = re.compile(r"\bLAMINAR_[A-Z_]+\b")


def main(checkouts: list[str]) -> None:
    home = Path.cwd()
    columns = []
    for checkout in checkouts:
        os.chdir(home / checkout)
        columns.append(dict(figures()))
    for name in columns[0]:
        sys.stdout.write(f"{name:44}" + "".join(f"{column[name]:>12}" for column in columns) + "\n")


def figures() -> Iterator[tuple[str, str]]:
    paths = [path for path in files([]) if "/migrations/" not in path]
    texts = {path: Path(path).read_text() for path in paths if path.endswith(".py")}
    source = {path: text for path, text in texts.items() if path.startswith(SOURCES)}
    tests = {path: text for path, text in texts.items() if path.startswith("tests/")}
    names = [name for path in tests for name in test_names(path)]
    rooms = Counter(str(Path(path).parent) for path in source if not path.endswith("__init__.py"))
    circles = circles_of(imports_of(source))
    yield "lines of source", f"{num_lines(source):,}"
    yield "lines of tests", f"{num_lines(tests):,}"
    yield "tests", f"{len(names):,}"
    yield "lines of tests for a line of source", f"{num_lines(tests) / num_lines(source):.2f}"
    yield "dialect words in 10,000", f"{dialect(paths):.1f}"
    yield f"test names above {LONG} characters", str(sum(len(name) > LONG for name in names))
    yield f"test names above {TOO_LONG} characters", str(sum(len(name) > TOO_LONG for name in names))
    yield f"rooms above {FULL_ROOM} modules", str(sum(count > FULL_ROOM for count in rooms.values()))
    yield "modules in the largest room", str(max(rooms.values()))
    yield "circles of modules", str(len(circles))
    named = Counter(name for text in source.values() for name in set(VARIABLE.findall(text)))
    yield "variables that several modules name", str(sum(count > 1 for count in named.values()))
    yield "returns of the submit walk", str(num_returns(source.get(WALK, "")))


def num_lines(texts: Mapping[str, str]) -> int:
    return sum(text.count("\n") for text in texts.values())


def dialect(paths: Iterable[str]) -> float:
    lines = [line for path in paths for line in lines_of(path)]
    return sum(line.num_dialect for line in lines) / sum(line.num_words for line in lines) * 10_000


def num_returns(source: str) -> int:
    """The returns of the function with the most."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return max((sum(isinstance(node, ast.Return) for node in ast.walk(each)) for each in functions), default=0)


def imports_of(source: Mapping[str, str]) -> dict[str, set[str]]:
    """By module, the modules of the source that it imports."""
    modules = {path.removesuffix("/__init__.py").removesuffix(".py").replace("/", "."): path for path in source}
    return {name: set(_imported(ast.parse(source[path]))) & set(modules) for name, path in modules.items()}


def _imported(top: ast.AST) -> Iterator[str]:
    """What the statements below a node import, without what they import for types only."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(top, block, ()):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
                yield from _imported(node)


def circles_of(imports: Mapping[str, set[str]]) -> list[set[str]]:
    """The strongly connected groups of more than one module, each module with what it reaches and is reached by."""
    reach: dict[str, set[str]] = {}
    for module in imports:
        reached: set[str] = set()
        ahead = list(imports[module])
        while ahead:
            other = ahead.pop()
            if other not in reached:
                reached.add(other)
                ahead += imports[other]
        reach[module] = reached
    circles: list[set[str]] = []
    for module, reached in reach.items():
        circle = {other for other in reached if module in reach[other]} | {module}
        if len(circle) > 1 and circle not in circles:
            circles.append(circle)
    return circles


if __name__ == "__main__":
    main(sys.argv[1:] or ["."])
