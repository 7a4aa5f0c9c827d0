"""The models that a job of the control plane may start from and learn from.

Invariants:
- a name resolves to a built-in model, or to a folder directly in the store's `models` folder, links resolved. A path
  would let one team read another's checkpoints, or any other file on the nodes;
- a teacher with another vocabulary than the policy's is refused before any device is held.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import engine.models
from engine.live.texts.model_texts import words_of
from engine.models.vocabulary import refuse_vocabulary_mismatch
from engine.spec.job import JobSpec, ModelSpec, TeacherSpec

BUILT_IN: Final[Mapping[str, Path]] = {"demo": Path(engine.models.__path__[0]) / "demo"}


def confined(spec: JobSpec, models: Path) -> JobSpec:
    """Replaces model names of the spec by folders. Raises `ValueError` for a name without a folder."""
    algorithm, model = spec.algorithm, _resolve("model.source", spec.model, models)
    if algorithm.has_teacher:
        teacher = _resolve("algorithm.teacher.source", algorithm.teacher, models)
        algorithm = algorithm.model_copy(update={"teacher": algorithm.teacher.model_copy(update={"source": teacher})})
    return spec.model_copy(update={"model": spec.model.model_copy(update={"source": model}), "algorithm": algorithm})


def refuse_teacher_vocabulary(spec: JobSpec) -> None:
    """Raises `ValueError` if policy and teacher differ in vocabulary. The spec's models are folders already."""
    if spec.algorithm.has_teacher and not spec.only_evaluates:
        policy, teacher = folder_of(spec.model.source), folder_of(spec.algorithm.teacher.source)
        refuse_vocabulary_mismatch(policy, teacher, words_of=words_of)


def _resolve(field: str, model: ModelSpec | TeacherSpec, models: Path) -> str:
    if model.source in BUILT_IN:
        return model.source
    folder = models / model.source
    if not model.is_name or not folder.is_dir() or folder.resolve().parent != models.resolve():
        raise ValueError(f"{field}: must be {', '.join(BUILT_IN)} or a folder in {models}; got {model.source!r}")
    return str(folder)


def folder_of(source: str) -> Path:
    return BUILT_IN.get(source) or Path(source)
