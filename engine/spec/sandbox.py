"""The sandbox, as both planes speak of it: which environments need one, and a Ray node's word on whether it has one.

    a node begins (engine/node.py) ──label──▶ Ray ──▶ the driver, which places workers
                                                 └──▶ the control plane, before anything is held

Invariant: what nobody said is not held against a node: only its own `none` is.
"""

from collections.abc import Mapping
from typing import Final

SANDBOX_LABEL: Final = "laminar/sandbox"
"""Of a Ray node. Its value: the name of the sandbox that untrusted code runs in there, or `NO_SANDBOX`."""
NO_SANDBOX: Final = "none"

_ALWAYS: Final = frozenset({"reasoning_gym", "graded", "custom"})
_VERIFIERS: Final = frozenset({"regex", "math_verify", "unit_tests"})
_BY_VERIFIER: Final = frozenset({"jsonl", "tools"})
_TOOL: Final = "python"


def needs_sandbox(name: str, params: Mapping[str, object]) -> bool:
    """Whether an environment runs code that nobody here wrote, or what could hang on a model's text."""
    uses_python = name == "tools" and _TOOL in [tool.strip() for tool in str(params.get("tools", "")).split(",")]
    is_judged_there = name in _BY_VERIFIER and params.get("verifier") in _VERIFIERS
    return name in _ALWAYS or uses_python or is_judged_there


def has_sandbox(labels: Mapping[str, str]) -> bool:
    """As far as this node says."""
    return labels.get(SANDBOX_LABEL) != NO_SANDBOX
