"""The Python that a rollout engine of vLLM's runs in. vLLM wants another `transformers` than the rest of the engine.

Invariants:
- nothing of vLLM is imported to answer;
- what the operator named is taken as named, or refused: never silently replaced.
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
    "OMP_WAIT_POLICY": "PASSIVE",  # read when torch is loaded: threads that wait for each other give their core away
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # replicas that share a host would all be bound to its first cores
}
"""The environment of a process in which vLLM will run."""


def find_vllm_python(named: str, *, root: Path = ROOT) -> Path:
    """`named`: LAMINAR_VLLM_PYTHON, or empty. Then it is this copy's own environment, or the interpreter that runs."""
    if named:
        if not Path(named).is_absolute() or not os.access(named, os.X_OK):
            raise ValueError(f"LAMINAR_VLLM_PYTHON: the absolute path of an interpreter that has vLLM, got {named!r}")
        return Path(named)
    own = root / ".laminar" / "vllm"
    if (own / "laminar-stamp.json").is_file() and os.access(own / "bin" / "python", os.X_OK):
        return own / "bin" / "python"
    if _has_vllm():
        return Path(sys.executable)
    raise ValueError(
        "rollout.engine: vllm needs an interpreter that has vLLM and none is here: make one with `make vllm`, or name "
        "one with LAMINAR_VLLM_PYTHON"
    )


@contextmanager
def refuse_what_lacks_something() -> Iterator[None]:
    """Whoever tries it again finds the same environment."""
    try:
        yield
    except ImportError as error:
        raise ValueError(
            f"rollout.engine: vllm runs in {sys.executable}, which cannot import all that it needs ({error}): make its "
            "environment anew with `make vllm`, or name another interpreter with LAMINAR_VLLM_PYTHON"
        ) from error


def _has_vllm() -> bool:
    """A mere folder of that name, which Python takes for a namespace, is not it."""
    found = importlib.util.find_spec("vllm")
    return found is not None and found.origin is not None
