"""The rules of the code base: size budgets, borders without heavy imports, self-contained documents.

Budgets are printed at every run (`pytest tests/test_architecture.py -s`). A breach is allowed where the file states
why in a line that begins with `# Over budget:`.
"""

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.census import circles_of, imports_of

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("backend", "engine", "frontend", "infra")
FILE_STOP, FUNCTION_STOP = 500, 80
FILE_AIM, FUNCTION_P95_AIM, MEDIAN_FILE_AIM = 300, 45, 100
VAGUE_NAMES = {"utils", "helpers", "misc", "common", "base_impl", "manager_utils"}
WRITTEN_HERE = {".py", ".md", ".toml", ".yml", ".yaml", ".json", ".html", ".js", ".css", ".txt", ".sh", ""}


@cache
def source_files() -> list[Path]:
    return [path for top in SOURCES for path in sorted((ROOT / top).rglob("*.py")) if "migrations" not in path.parts]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def statements(top: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node. Skips expressions, which are most of a tree and define no named function."""
    waiting = [top]
    while waiting:
        node = waiting.pop()
        yield node
        for blocks in ("body", "orelse", "finalbody", "handlers", "cases"):
            below = getattr(node, blocks, None)
            if isinstance(below, list):
                waiting += below


def functions(path: Path) -> Iterator[tuple[str, int, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in statements(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path.relative_to(ROOT)}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1, node


def explains_itself(path: Path) -> bool:
    return "# Over budget:" in path.read_text()


@pytest.mark.proof
def test_what_exceeds_the_budgets_carries_its_reason() -> None:
    files = {path: path.read_text().count("\n") for path in source_files()}
    lengths = {name: (length, path) for path in files for name, length, _ in functions(path)}
    p95 = statistics.quantiles([length for length, _ in lengths.values()], n=20)[-1]
    median = statistics.median(count for count in files.values() if count)
    print(
        f"\n{len(files)} files, median {median:.0f} lines (aim {MEDIAN_FILE_AIM}), longest {max(files.values())} "
        f"(aim {FILE_AIM}); {len(lengths)} functions, 95th percentile {p95:.0f} lines (aim {FUNCTION_P95_AIM}), "
        f"longest {max(length for length, _ in lengths.values())} (stop {FUNCTION_STOP})"
    )
    too_long = [f"{path.relative_to(ROOT)} ({count})" for path, count in files.items() if count > FILE_AIM]
    too_long += [f"{name} ({length})" for name, (length, _) in lengths.items() if length > FUNCTION_STOP]
    unexplained = [row for row in too_long if not explains_itself(ROOT / row.split(" ")[0].split(":")[0])]
    assert not unexplained, "over budget without a reason: " + ", ".join(unexplained)
    assert max(files.values()) <= FILE_STOP
    assert p95 <= FUNCTION_P95_AIM
    assert median <= MEDIAN_FILE_AIM


def test_no_modules_import_each_other() -> None:
    """Also not where the import is inside a function."""
    imports = imports_of({str(path.relative_to(ROOT)): path.read_text() for path in source_files()})
    assert sum(len(imported) for imported in imports.values()) > len(imports)
    assert not circles_of(imports)


def test_no_module_has_a_vague_name() -> None:
    assert not [path for path in source_files() if path.stem in VAGUE_NAMES or path.parent.name in VAGUE_NAMES]


def test_every_function_states_what_it_returns() -> None:
    bare = [name for path in source_files() for name, _, node in functions(path) if node.returns is None]
    assert not bare


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in source_files()
        if path.name not in {"__init__.py", "apps.py"} and not ast.get_docstring(parsed(path))
    ]
    assert not silent


def test_every_package_is_one_docstring() -> None:
    left_to_django = {"migrations", "management", "templatetags"}
    packages = [
        path
        for top in ("backend", "engine", "infra")
        for path in sorted((ROOT / top).rglob("__init__.py"))
        if not left_to_django & set(path.parts)
    ]
    assert packages
    assert not [path for path in packages if ast.get_docstring(parsed(path)) is None or len(parsed(path).body) != 1]


@pytest.mark.parametrize("module", ["engine.spec.control", "engine.spec.job", "engine.spec.facts"])
def test_the_border_brings_nothing_heavy(module: str) -> None:
    script = f"import {module}, sys; print(sorted({{m.split('.')[0] for m in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = {"torch", "ray", "vllm", "deepspeed", "numpy", "django", "celery", "transformers"}
    assert not heavy & set(ast.literal_eval(loaded.stdout))


def test_the_import_contracts_hold() -> None:
    done = subprocess.run([sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
                          cwd=ROOT, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stdout


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_the_documents_stand_alone() -> None:
    foreign = re.compile(r"\.\./shared|files\.pythonhosted|registry\.npmjs|deb\.debian\.org|pypi\.org")
    here = Path(__file__).resolve()
    naming = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if path.suffix in WRITTEN_HERE
        and path != here
        and "vendor" not in path.parts
        and foreign.search(path.read_text(errors="ignore"))
    ]
    assert not naming


def headings_of(document: str) -> set[str]:
    return {
        re.sub(r"[^\w\s-]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", document, re.M)
    }


def test_every_link_of_a_document_leads_somewhere() -> None:
    broken = []
    for path in tracked_files():
        if path.suffix != ".md" or "vendor" in path.parts:
            continue
        for link in re.findall(r"\]\(((?!\w+:|/)[^)\s]+)\)", path.read_text()):
            name, _, place = link.partition("#")
            target = path.parent / name if name else path
            if not target.exists() or (place and place not in headings_of(target.read_text())):
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert not broken, "\n".join(broken)


def test_every_decisions_file_that_is_named_exists() -> None:
    named = re.compile(r"\b(?:backend|engine|frontend|infra)/[\w/]*decisions\.md")
    texts = [path.read_text(errors="ignore") for path in tracked_files() if path.suffix in {".py", ".md", ".toml"}]
    names = {name for text in texts for name in named.findall(text)}
    assert names
    assert not [name for name in names if not (ROOT / name).is_file()]
