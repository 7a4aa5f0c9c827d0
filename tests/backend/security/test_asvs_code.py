"""OWASP ASVS 5, chapters 1, 3.2, 3.5 and 15.3: what the code never does, checked on the source."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.backend.security.conftest import ROOT

OURS: Final = ("backend", "frontend/client", "engine/spec")
EVALUATES: Final = {"eval", "exec", "compile", "__import__", "mark_safe", "SafeString", "RawSQL", "from_string"}
UNSAFE_MODULES: Final = {"pickle", "marshal", "shelve", "dill", "xml", "lxml", "ldap", "ldap3", "memcache"}
SHELLS: Final = {("os", "system"), ("os", "popen"), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput")}
SINKS: Final = re.compile(
    r"\.(inner|outer)HTML\s*\+?=(?!=)|insertAdjacentHTML|document\.write|\beval\(|new Function|setTimeout\(\s*[\"'`]"
    r"|createContextualFragment|\bpostMessage\b|[\"']message[\"']\s*,|__proto__|document\.cookie|srcdoc"
)


def trees() -> Iterator[tuple[str, ast.Module]]:
    for top in OURS:
        for path in sorted((ROOT / top).rglob("*.py")):
            if "migrations" not in path.parts:
                yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


TREES: Final = dict(trees())


def calls(name: str) -> Iterator[tuple[ast.Call, str, str]]:
    """Every call in a file: the node, its receiver, its name."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Call):
            on = node.func.value if isinstance(node.func, ast.Attribute) else None
            owner = on.id if isinstance(on, ast.Name) else ""
            yield node, owner, node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def is_fixed(node: ast.expr) -> bool:
    """A fixed text: a literal, or a constant's name."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.isupper()
        case ast.JoinedStr(values=values):
            return all(is_fixed(each.value) if isinstance(each, ast.FormattedValue) else True for each in values)
        case ast.Subscript(value=value):
            return is_fixed(value)
        case ast.BinOp(left=left, right=right):
            return is_fixed(left) and is_fixed(right)
    return False


def is_super(node: ast.expr) -> bool:
    """A method of that name, of a library's class."""
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super"


def test_nothing_is_evaluated_and_no_text_is_called_safe() -> None:
    evaluating = [
        (name, word) for name in TREES for _, owner, word in calls(name) if word in EVALUATES and owner != "re"
    ]
    assert not evaluating


def test_nothing_is_unpickled_and_no_xml_parser_is_loaded() -> None:
    imports = []
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
            imports += [(name, module) for module in modules if module.split(".")[0] in UNSAFE_MODULES]
    assert not imports


def test_yaml_is_read_as_data() -> None:
    assert {word for name in TREES for _, owner, word in calls(name) if owner == "yaml"} <= {"safe_load"}


def test_no_shell_reads_a_command() -> None:
    for name in TREES:
        for node, owner, word in calls(name):
            assert (owner, word) not in SHELLS, name
            assert not [each for each in node.keywords if each.arg == "shell"], name


def test_values_reach_the_database_as_parameters_only() -> None:
    faults = []
    for name in TREES:
        for node, _, word in calls(name):
            if word in {"execute", "executemany", "raw", "extra"} and node.args:
                first = node.args[0]
                builds = isinstance(first, ast.JoinedStr | ast.BinOp) and not is_fixed(first)
                formats = isinstance(first, ast.Call) and getattr(first.func, "attr", "") == "format"
                faults += [f"{name}:{node.lineno}"] if builds or formats else []
    assert not faults


def test_patterns_and_format_strings_are_our_own() -> None:
    faults = []
    for name in TREES:
        for node, owner, word in calls(name):
            is_pattern = owner == "re" and word not in {"escape"}
            is_format = word == "format" and isinstance(node.func, ast.Attribute) and not is_super(node.func.value)
            pattern = node.args[0] if is_pattern else node.func.value if is_format else None  # type: ignore[attr-defined]
            if pattern is not None and not is_fixed(pattern):
                faults.append(f"{name}:{node.lineno} {word}")
    assert not faults


@pytest.mark.parametrize("path", sorted((ROOT / "frontend/templates").rglob("*.html")), ids=lambda path: path.name)
def test_templates_escape_everything(path: Path) -> None:
    assert not re.search(r"\|\s*safe\b|autoescape\s+off|\|\s*safeseq", path.read_text())


def test_scripts_write_only_text_and_ignore_other_windows() -> None:
    scripts = sorted((ROOT / "frontend/static/js").rglob("*.js"))
    assert scripts
    sinks = {path.name: SINKS.findall(path.read_text()) for path in scripts}
    assert not {name: hits for name, hits in sinks.items() if hits}


def test_only_the_colours_of_the_pages_are_kept_in_a_browser() -> None:
    keeping = re.compile(r"(?:localStorage|sessionStorage)\.setItem\(([^)]*)\)|indexedDB|caches\.open")
    scripts = (ROOT / "frontend/static/js").rglob("*.js")
    assert [hit for path in scripts for hit in keeping.findall(path.read_text())] == ['"theme", theme']
