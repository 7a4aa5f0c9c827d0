"""`needs_sandbox` agrees with the environments themselves."""

from pathlib import Path

import pytest

from engine.environments.port import GraderError
from engine.environments.registry import ENVIRONMENT_NAMES, make_environment
from engine.environments.sandbox.outcome import SandboxUnavailable
from engine.spec.environments.params import TOOLS, VERIFIERS
from engine.spec.environments.sandbox import NO_SANDBOX, SANDBOX_LABEL, has_sandbox, needs_sandbox
from engine.spec.job import EnvironmentSpec

CODE = "def prompt(*_): return {'text': 'x'}\ndef respond(*_): pass"
CASES = [
    *((name, {}) for name in ENVIRONMENT_NAMES),
    *((name, {"verifier": verifier}) for name in ("jsonl", "tools") for verifier in VERIFIERS),
    *(("tools", {"tools": tool}) for tool in TOOLS),
    ("tools", {"tools": "calculator, python"}),
]


@pytest.mark.parametrize(("name", "params"), CASES, ids=str)
def test_needs_sandbox_agrees_with_the_environments(
    name: str, params: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap
    for file, row in (("rows", '{"prompt": "%d", "answer": "1"}\n'), ("corpus", '{"title": "%d", "text": "y"}\n')):
        (tmp_path / f"{file}.jsonl").write_text("".join(row % number for number in range(64)))
    has_data = {"data": str(tmp_path / "rows.jsonl")} if name in ("jsonl", "graded") else {}
    has_corpus = {"corpus": str(tmp_path / "corpus.jsonl")} if name == "tools" else {}
    spec = EnvironmentSpec(
        name=name,
        params={**has_data, **has_corpus, **params},
        code=CODE if name in ("custom", "graded") else "",
    )
    try:
        make_environment(spec, seed=0, data_folder=None)
        starts_without = True
    except (SandboxUnavailable, GraderError):
        starts_without = False
    assert needs_sandbox(name, spec.params) is not starts_without


def test_only_the_label_none_denies_a_sandbox() -> None:
    assert has_sandbox({}) and has_sandbox({SANDBOX_LABEL: "gvisor"})
    assert not has_sandbox({SANDBOX_LABEL: NO_SANDBOX})
