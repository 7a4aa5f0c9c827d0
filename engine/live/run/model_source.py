"""The models that a job of the control plane may start from.

Invariant: a name leads to a built-in model, or to a folder directly in the store's `models` folder, links followed. A
path would let one team read another's checkpoints, or whatever else the nodes can read.
"""

from pathlib import Path
from typing import Final

from engine.spec.job import JobSpec

BUILT_IN: Final = frozenset({"demo"})


def confined(spec: JobSpec, models: Path) -> JobSpec:
    """The spec with the model's folder in place of its name. Raises `ValueError`."""
    source = spec.model.source
    if source in BUILT_IN:
        return spec
    folder = models / source
    if not spec.model.is_name or not folder.is_dir() or folder.resolve().parent != models.resolve():
        raise ValueError(f"model.source: {', '.join(sorted(BUILT_IN))}, or a folder in {models}; got {source!r}")
    return spec.model_copy(update={"model": spec.model.model_copy(update={"source": str(folder)})})
