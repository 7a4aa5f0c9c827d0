"""Deterministic GPU kernels for a recorded step, so that the same step can be trained again bit for bit.

Invariant: an operation without a deterministic kernel still runs, and its name is recorded, so that a replay that
diverges can name the possible reason.
"""

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

WORKSPACE: Final = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
"""cuBLAS reads this variable when a process first multiplies; without it, products are not deterministic."""
_OPERATION: Final = re.compile(r"^(?P<name>\S+)(?: backward)?(?: \w+)* does not have a deterministic implementation")


def fix_workspace() -> None:
    """To be called before the first product in a process that records or replays a step."""
    os.environ.setdefault(*WORKSPACE)


@contextmanager
def deterministic_kernels(*, are_wanted: bool | None = None) -> Iterator[list[str]]:
    """Yields the names of operations without a deterministic kernel, complete when the context ends. By default on a
    GPU only: a CPU's order of additions is fixed by the number of threads anyway."""
    operations: list[str] = []
    if not (torch.cuda.is_available() if are_wanted is None else are_wanted):
        yield operations
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield operations
        operations += sorted({name for each in caught if (name := _read_operation(str(each.message)))})
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]


def _read_operation(warning: str) -> str:
    if "CUBLAS_WORKSPACE_CONFIG" in warning:
        return f"products, since {WORKSPACE[0]} was not set"
    match = _OPERATION.match(warning)
    return match["name"] if match else ""
