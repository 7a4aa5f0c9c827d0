"""The operator's table of variables and .env.example match the declarations."""

import re
from pathlib import Path

import pytest

from backend.environment import DECLARED, OPTIONAL, read_environment
from infra.variables.containers import LINES
from infra.variables.documents import OPERATING, documents, table, with_table

ROOT = Path(__file__).resolve().parents[2]


def test_documents_of_variables_are_up_to_date() -> None:
    stale = [str(path) for path, text in documents().items() if path.read_text() != text]
    assert not stale, "python -m infra.variables"


def test_a_changed_table_is_replaced_whole() -> None:
    document = OPERATING.read_text()
    assert table() in document
    assert with_table(document.replace("| `LAMINAR_RATE_SCALE` |", "| `LAMINAR_RATES` |")) == document


def test_a_document_without_the_place_is_refused() -> None:
    with pytest.raises(ValueError, match="must have a line"):
        with_table("# Operating\n")


def test_every_variable_is_described_in_one_sentence_line() -> None:
    texts = [variable.text for variable in DECLARED.values()] + [line.text for line in LINES]
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
