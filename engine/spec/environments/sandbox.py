"""The sandbox for both planes: which environments need one, and the label of a Ray node that has one.

    a node starts (engine/node.py) ──label──▶ Ray ──▶ the driver, which places workers
                                                 └──▶ the control plane, before it reserves devices

Invariant: a node without the label counts as having a sandbox; only the value `none` excludes it.
"""

from collections.abc import Mapping
from typing import Final

SANDBOX_LABEL: Final = "laminar/sandbox"
"""A Ray node's label. Its value: the name of the sandbox that untrusted code runs in on that node, or `NO_SANDBOX`."""
NO_SANDBOX: Final = "none"

_ALWAYS: Final = frozenset({"reasoning_gym", "graded", "custom"})
_VERIFIERS: Final = frozenset({"regex", "math_verify", "unit_tests"})
_BY_VERIFIER: Final = frozenset({"jsonl", "tools"})
_TOOL: Final = "python"


def needs_sandbox(name: str, params: Mapping[str, object]) -> bool:
    """Whether an environment runs foreign code, or code of ours that a model's text could hang."""
    uses_python = name == "tools" and _TOOL in [tool.strip() for tool in str(params.get("tools", "")).split(",")]
    is_verified_there = name in _BY_VERIFIER and params.get("verifier") in _VERIFIERS
    return name in _ALWAYS or uses_python or is_verified_there


def has_sandbox(labels: Mapping[str, str]) -> bool:
    """Whether the node may have a sandbox: its label does not deny it."""
    return labels.get(SANDBOX_LABEL) != NO_SANDBOX
