"""A Ray node's label for vLLM's environment, as both planes read it.

Invariant: what nobody said is not held against a node: only its own `none` is.
"""

from collections.abc import Mapping
from typing import Final

VLLM_LABEL: Final = "laminar/vllm"
FOUND, NO_VLLM = "found", "none"


def has_vllm(labels: Mapping[str, str]) -> bool:
    """As far as this node says."""
    return labels.get(VLLM_LABEL) != NO_VLLM
