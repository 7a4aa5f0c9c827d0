"""Counts the words that a newcomer has to decode: `python -m tests.prose [PATH ...] [--list]`.

A report, not a gate: for each room the words of docstrings and comments, of messages (string literals of four words
and more), of documents and page templates, and how many of them CONTRIBUTING's word list asks to replace; then the
names of tests above 60 and 80 characters. `--list` prints every line with such a word, `--names` every long name.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DIALECT = {
    "nobody, whoever, whom": "name the actor: 'no reader', 'the member who submitted the job'",
    "told, tell, tells, telling": "notified, reports, passes, streams",
    "said, say, says, saying": "states, returns, prints, means, is set to",
    "asked, asks": "requests, calls, reads, requires",
    "heard, hear, hears": "received, last heartbeat",
    "beside, besides": "next to, in parallel with, in addition to, and",
    "stand, stands, stood": "is, lies, remains",
    "goes on, went on, go on, going on": "continues, resumes",
    "is no more, no longer there": "is gone, has ended, was deleted",
    "lest, anew, thereof, ere": "so that not, again, its, before",
}
WORDS = re.compile(
    r"\b(" + "|".join(word.strip() for row in DIALECT for word in row.split(",")) + r")\b", re.IGNORECASE
)
LONG, TOO_LONG = 60, 80
NUM_MESSAGE_WORDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    path: str
    number: int
    kind: str
    text: str

    @property
    def num_words(self) -> int:
        return len(re.findall(r"\w+", self.text))

    @property
    def num_dialect(self) -> int:
        return len(WORDS.findall(self.text))

    @property
    def room(self) -> str:
        return "/".join(self.path.split("/")[:-1][:2]) or "."


def files(paths: list[str]) -> list[str]:
    listed = subprocess.run(["git", "ls-files", *paths], capture_output=True, text=True, check=True)
    return [path for path in listed.stdout.split() if path.endswith((".py", ".md", ".html"))]


def lines_of(path: str) -> Iterator[Line]:
    source = Path(path).read_text()
    if not path.endswith(".py"):
        kind = "documents" if path.endswith(".md") else "templates"
        for number, text in enumerate(source.splitlines(), start=1):
            yield Line(path=path, number=number, kind=kind, text=re.sub(r"\{[%#{].*?[%#}]\}|<[^>]*>", " ", text))
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Line(path=path, number=token.start[0], kind="comments", text=token.string)
    tree = ast.parse(source)
    docstrings = {id(constant) for node in ast.walk(tree) if (constant := _docstring(node)) is not None}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            kind = "comments" if id(node) in docstrings else "messages"
            if kind == "comments" or len(node.value.split()) >= NUM_MESSAGE_WORDS:
                for offset, text in enumerate(node.value.splitlines()):
                    yield Line(path=path, number=node.lineno + offset, kind=kind, text=text)


def _docstring(node: ast.AST) -> ast.Constant | None:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:
        return None
    first = node.body[0]
    return first.value if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else None


def test_names(path: str) -> Iterator[str]:
    if path.startswith("tests/") and path.endswith(".py"):
        for node in ast.walk(ast.parse(Path(path).read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield node.name


def table(lines: list[Line], key: str) -> Iterator[str]:
    words: Counter[str] = Counter()
    dialect: Counter[str] = Counter()
    for line in lines:
        words[getattr(line, key)] += line.num_words
        dialect[getattr(line, key)] += line.num_dialect
    for name in sorted(words, key=lambda name: -dialect[name]):
        per_10_000 = dialect[name] / max(words[name], 1) * 10_000
        yield f"{name:32} {words[name]:9,} words {dialect[name]:6,} dialect {per_10_000:7.1f} in 10,000"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description=__doc__)
    parser.add_argument("paths", nargs="*", help="files or folders (all)")
    parser.add_argument("--list", action="store_true", help="print every line that holds such a word")
    parser.add_argument("--names", action="store_true", help="print every test name above 60 characters")
    args = parser.parse_args()
    paths = files(args.paths)
    lines = [line for path in paths for line in lines_of(path)]
    report = [*table(lines, "kind"), "", *table([line for line in lines if line.kind == "comments"], "room"), ""]
    if args.list:
        report = [f"{line.path}:{line.number}: {line.text.strip()}" for line in lines if line.num_dialect] + report
    names = [(path, name) for path in paths for name in test_names(path)]
    if args.names:
        report = [f"{path}::{name} ({len(name)})" for path, name in names if len(name) > LONG] + report
    long, too_long = (sum(len(name) > limit for _path, name in names) for limit in (LONG, TOO_LONG))
    report.append(f"{len(names):,} tests, {long:,} names above {LONG} characters, {too_long:,} above {TOO_LONG}")
    sys.stdout.write("\n".join(report) + "\n")


if __name__ == "__main__":
    main()
