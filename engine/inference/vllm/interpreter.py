"""The Python interpreter for vLLM rollout engines. vLLM needs another `transformers` than the rest of the engine.

Invariants:
- the search imports nothing of vLLM;
- an interpreter named by the operator is used or refused, never silently replaced.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[3]
STARTED_WITH: Final = {
    "OMP_WAIT_POLICY": "PASSIVE",  # read when torch is loaded: waiting threads release their core
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise all replicas of a host would be bound to its first cores
}
"""Environment variables of a process that will run vLLM."""


def find_vllm_python(named: str, *, root: Path = ROOT) -> Path:
    """`named`: LAMINAR_VLLM_PYTHON. If empty, this copy's own environment or the running interpreter."""
    if named:
        if not Path(named).is_absolute() or not os.access(named, os.X_OK):
            raise ValueError(f"LAMINAR_VLLM_PYTHON: the absolute path of an interpreter with vLLM, got {named!r}")
        return Path(named)
    own = root / ".laminar" / "vllm"
    if (own / "laminar-stamp.json").is_file() and os.access(own / "bin" / "python", os.X_OK):
        return own / "bin" / "python"
    if _has_vllm():
        return Path(sys.executable)
    raise ValueError(
        "rollout.engine: vllm needs a Python interpreter with vLLM, and none was found; run `make vllm`, or set "
        "LAMINAR_VLLM_PYTHON"
    )


@contextmanager
def explain_missing_packages() -> Iterator[None]:
    """Turns an `ImportError` into a `ValueError`: a retry would meet the same environment."""
    try:
        yield
    except ImportError as error:
        raise ValueError(
            f"rollout.engine: vllm runs in {sys.executable}, which lacks a package ({error}); rebuild its environment "
            "with `make vllm`, or set LAMINAR_VLLM_PYTHON to another interpreter"
        ) from error


def _has_vllm() -> bool:
    """Ignores a mere folder named vllm, which Python takes for a namespace package."""
    spec = importlib.util.find_spec("vllm")
    return spec is not None and spec.origin is not None
