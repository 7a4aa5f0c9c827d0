"""The models that a job of the control plane may start from and learn from.

Invariants:
- a name leads to a built-in model, or to a folder directly in the store's `models` folder, links followed. A path would
  let one team read another's checkpoints, or whatever else the nodes can read;
- a teacher that does not know the policy's words is refused before any device is held.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import engine.models
from engine.models.vocabulary import refuse_other_words
from engine.spec.job import JobSpec, ModelSpec, TeacherSpec

BUILT_IN: Final[Mapping[str, Path]] = {"demo": Path(engine.models.__path__[0]) / "demo"}


def confined(spec: JobSpec, models: Path) -> JobSpec:
    """The spec with folders in place of its models' names. Raises `ValueError`."""
    algorithm, model = spec.algorithm, _confined("model.source", spec.model, models)
    if algorithm.has_teacher:
        teacher = _confined("algorithm.teacher.source", algorithm.teacher, models)
        algorithm = algorithm.model_copy(update={"teacher": algorithm.teacher.model_copy(update={"source": teacher})})
    return spec.model_copy(update={"model": spec.model.model_copy(update={"source": model}), "algorithm": algorithm})


def refuse_a_teacher_of_other_words(spec: JobSpec) -> None:
    """Of a spec whose models are folders. Raises `ValueError`."""
    if spec.algorithm.has_teacher and not spec.only_evaluates:
        refuse_other_words(folder_of(spec.model.source), folder_of(spec.algorithm.teacher.source))


def _confined(field: str, named: ModelSpec | TeacherSpec, models: Path) -> str:
    if named.source in BUILT_IN:
        return named.source
    folder = models / named.source
    if not named.is_name or not folder.is_dir() or folder.resolve().parent != models.resolve():
        raise ValueError(f"{field}: {', '.join(sorted(BUILT_IN))}, or a folder in {models}; got {named.source!r}")
    return str(folder)


def folder_of(source: str) -> Path:
    return BUILT_IN.get(source) or Path(source)
