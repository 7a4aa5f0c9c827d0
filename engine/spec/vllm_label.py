"""A Ray node's label for vLLM's environment, as both planes read it.

Invariant: a node without the label counts as having vLLM; only the value `none` excludes it.
"""

from collections.abc import Mapping
from typing import Final

VLLM_LABEL: Final = "laminar/vllm"
FOUND, NO_VLLM = "found", "none"


def has_vllm(labels: Mapping[str, str]) -> bool:
    """Whether the node may have vLLM: its label does not deny it."""
    return labels.get(VLLM_LABEL) != NO_VLLM
