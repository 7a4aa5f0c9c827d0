"""The operator's table of variables and .env.example match the declarations."""

import re
from pathlib import Path

import pytest

from backend.environment import DECLARED, OPTIONAL, read_environment
from engine.spec.node_variables import NODE_VARIABLES, read_variable
from infra.variables.containers import LINES
from infra.variables.documents import OPERATING, documents, table, table_of_nodes, with_table

ROOT = Path(__file__).resolve().parents[2]


def test_documents_of_variables_are_up_to_date() -> None:
    stale = [str(path) for path, text in documents().items() if path.read_text() != text]
    assert not stale, "python -m infra.variables"


def test_a_changed_table_is_replaced_whole() -> None:
    document = OPERATING.read_text()
    assert table() in document and table_of_nodes() in document
    assert with_table(document.replace("| `LAMINAR_RATE_SCALE` |", "| `LAMINAR_RATES` |")) == document


def test_a_document_without_the_place_is_refused() -> None:
    with pytest.raises(ValueError, match="must have a line"):
        with_table("# Operating\n")


def test_every_variable_is_described_in_one_sentence_line() -> None:
    texts = [variable.text for variable in DECLARED.values()]
    texts += [variable.text for variable in NODE_VARIABLES.values()] + [line.text for line in LINES]
    assert not [text for text in texts if not text.endswith(".") or "\n" in text or "|" in text]


def test_a_declared_default_is_what_is_read() -> None:
    required = {name: "x" for name in DECLARED if name not in OPTIONAL}
    unset = read_environment(required)
    empty = read_environment(required | dict.fromkeys(OPTIONAL, ""))
    defaults = {name: variable.default or "" for name, variable in DECLARED.items() if name in OPTIONAL}
    said = read_environment(required | defaults)
    assert unset == empty == said
    assert (unset.keep_logs_days, unset.session_idle_hours, unset.oidc_name) == (90, 12, "single sign-on")


def test_what_compose_insists_on_is_not_called_optional() -> None:
    insisted = set(re.findall(r"\$\{([A-Z_]+):\?", (ROOT / "docker-compose.yml").read_text()))
    assert insisted and not {line.name for line in LINES if line.is_optional} & insisted


def test_engine_reads_the_declared_variables_and_no_others() -> None:
    declarations = ROOT / "engine" / "spec" / "node_variables.py"
    sources = [path.read_text() for path in (ROOT / "engine").rglob("*.py") if path != declarations]
    assert set(re.findall(r'read_variable\("(LAMINAR_\w+)"', "\n".join(sources))) == set(NODE_VARIABLES)
    direct = re.compile(r'(?:environ|environment)(?:\.get\(|\[)f?"(LAMINAR_\w*)')
    assert not [name for source in sources for name in direct.findall(source)]
    with pytest.raises(KeyError):
        read_variable("LAMINAR_RAY_URL", {"LAMINAR_RAY_URL": "http://ray"})


def test_document_lists_each_variable_of_nodes_once() -> None:
    shared, own = set(NODE_VARIABLES) & set(DECLARED), set(NODE_VARIABLES) - set(DECLARED)
    assert {variable.when_unset != "" for name, variable in NODE_VARIABLES.items() if name in own} == {True}
    assert set(re.findall(r"^\| `(\w+)` \|", table_of_nodes(), re.MULTILINE)) == own
    [intro] = re.findall(r"^Ray nodes read these of them: (.*?);", table_of_nodes(), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", intro)) == shared
