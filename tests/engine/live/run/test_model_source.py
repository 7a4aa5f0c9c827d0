"""A job of the control plane starts from a model of the cluster, and from no other file on its disks."""

from pathlib import Path

import pytest

from engine.live.run.model_source import confined
from engine.spec.job import AlgorithmSpec, JobSpec, ModelSpec, TeacherSpec


def spec(source: str) -> JobSpec:
    return JobSpec(name="x", model=ModelSpec(source=source))


def test_built_in_model_stays_a_name(tmp_path: Path) -> None:
    assert confined(spec("demo"), tmp_path).model.source == "demo"


def test_name_resolves_to_its_folder_among_the_models(tmp_path: Path) -> None:
    (tmp_path / "qwen-small").mkdir()
    assert confined(spec("qwen-small"), tmp_path).model.source == str(tmp_path / "qwen-small")
    taught = AlgorithmSpec(teacher=TeacherSpec(source="qwen-small", coefficient=0.5))
    resolved = confined(JobSpec(name="x", algorithm=taught), tmp_path)
    assert resolved.algorithm.teacher == TeacherSpec(source=str(tmp_path / "qwen-small"), coefficient=0.5)
    assert resolved.model.source == "demo"


@pytest.mark.parametrize("source", ["absent", "/etc", "..", "../secret", "inner/model", "."])
def test_path_outside_the_models_is_refused(tmp_path: Path, source: str) -> None:
    models = tmp_path / "models"
    (models / "inner" / "model").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    with pytest.raises(ValueError, match=r"^model\.source"):
        confined(spec(source), models)
    with pytest.raises(ValueError, match=r"^algorithm\.teacher\.source"):
        confined(JobSpec(name="x", algorithm=AlgorithmSpec(teacher=TeacherSpec(source=source))), models)


def test_link_out_of_the_models_is_refused(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (tmp_path / "secret").mkdir()
    (models / "innocent").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=r"model\.source"):
        confined(spec("innocent"), models)
