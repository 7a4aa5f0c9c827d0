"""Whether a job fits its pool's devices, as known to the control plane: the pool's memory and the model's shape."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.accounts.models import Team
from backend.assets.registering import register_asset
from backend.assets.using.naming import AssetsOfTeams
from backend.jobs.models import Job
from backend.jobs.submitting.fitting import Fit, fit_of, shapes_of
from backend.pools.models import ResourcePool
from engine.fit.known_models import KNOWN_CONFIGS
from engine.spec.job import JobSpec
from tests.backend.conftest import NOW, MakeSpec

LARGE = "Qwen3-32B"


@pytest.fixture
def models(tmp_path: Path, settings: Any) -> Path:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, store_dir=tmp_path)
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def registered(models: Path, team: Team, name: str, config: str) -> str:
    """A folder of the operator's, whose config.json the control plane stores."""
    (models / name).mkdir()
    (models / name / "config.json").write_text(config)
    register_asset(team=team, kind="model", name=name, place=name, now=NOW)
    return name


@pytest.fixture
def stored(models: Path, team: Team) -> str:
    """A model with 32 billion weights."""
    return registered(models, team, "ours", json.dumps(KNOWN_CONFIGS[LARGE]))


@pytest.fixture
def gpus(pool: ResourcePool) -> ResourcePool:
    pool.device_gb = 80
    pool.save()
    return pool


@pytest.fixture
def spec_of(make_spec: MakeSpec) -> Any:
    def make(source: str, *, trainer_devices: int = 1) -> JobSpec:
        large: dict[str, Any] = {
            "rollout": {"engine": "vllm", "replicas": 1},
            "resources": {"trainer_devices": trainer_devices},
        }
        return make_spec(model={"source": source}, **large)

    return make


def judge_fit(spec: JobSpec, pool: ResourcePool, team: Team) -> Fit | None:
    return fit_of(spec, pool, shapes_of(spec, team))


def body(spec: JobSpec) -> dict[str, Any]:
    return {"spec": spec.model_dump(mode="json", exclude_defaults=True) | {"name": "Large"}}


def test_job_that_fits_with_no_batch_is_refused_with_remedy(
    api: Any, gpus: ResourcePool, project: Any, stored: str, spec_of: Any
) -> None:
    response = api.post("/jobs", {"project": project.pk, **body(spec_of(stored))})
    assert response.status_code == 422, response.content
    refusal = response.json()
    assert refusal["code"] == "does_not_fit" and not Job.objects.exists()
    assert "has 80.0 GB" in refusal["detail"] and "It fits if you" in refusal["detail"]
    assert any("gradients, float32" in line for line in refusal["arithmetic"])
    [error] = refusal["errors"]
    assert error["pointer"].startswith("/spec/")


def test_replica_size_that_cannot_split_heads_is_refused(
    api: Any, pool: ResourcePool, project: Any, stored: str, make_spec: MakeSpec
) -> None:
    """Whether or not the pool's memory is known."""
    spec = make_spec(
        model={"source": stored},
        rollout={"engine": "vllm", "replicas": 1},
        resources={"devices_per_replica": 3},
    )
    response = api.post("/jobs", {"project": project.pk, **body(spec)})
    assert response.status_code == 422, response.content
    [error] = response.json()["errors"]
    assert error["pointer"] == "/spec/resources/devices_per_replica" and error["code"] == "does_not_fit"
    assert "must divide the model's 64 heads; got 3, accepted: 1, 2, 4, 8" in error["message"]
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_advised_change_is_enough(team: Team, gpus: ResourcePool, stored: str, spec_of: Any) -> None:
    fit = judge_fit(spec_of(stored), gpus, team)
    assert fit is not None and fit.misfit is not None and fit.misfit.changes is not None
    document = spec_of(stored).model_dump(mode="json")
    for change in fit.misfit.changes:
        for path, value in change.settings.items():
            section, name = path.split(".")
            document[section][name] = value
    better = judge_fit(JobSpec.model_validate(document), gpus, team)
    assert better is not None and not better.is_refused and better.misfit is None


def test_preview_shows_need_of_each_device(
    api: Any, gpus: ResourcePool, project: Any, team: Team, models: Path, spec_of: Any
) -> None:
    registered(models, team, "small", json.dumps(KNOWN_CONFIGS["Qwen3-0.6B"]))
    fit = api.post("/jobs:preview", body(spec_of("small"))).json()["fit"]
    assert fit["fits"] and "each replica's device needs up to" in fit["message"] and len(fit["arithmetic"]) > 10


def test_preview_reads_each_models_config_once(
    api: Any, gpus: ResourcePool, project: Any, stored: str, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Presets, sharding rules and the fit all need the shape."""
    sources: list[str] = []
    config_of = AssetsOfTeams.config_of

    def count(self: AssetsOfTeams, team: Team, source: str) -> dict[str, Any] | None:
        sources.append(source)
        return config_of(self, team, source)

    monkeypatch.setattr(AssetsOfTeams, "config_of", count)
    spec = make_spec(model={"source": stored}, resources={"devices_per_replica": 2}, rollout={"engine": "vllm"})
    api.post("/jobs:preview", body(spec))
    assert sources == [f"{stored}@1"]


@pytest.mark.django_db
def test_public_model_name_alone_refuses_nothing(team: Team, gpus: ResourcePool, models: Path, spec_of: Any) -> None:
    """The folder of that name may contain another model."""
    fit = judge_fit(spec_of(LARGE), gpus, team)
    assert fit is not None and fit.misfit is not None and not fit.is_refused


@pytest.mark.django_db
@pytest.mark.parametrize("content", ["{}", '{"model_type": "mamba"}'])
def test_unknown_model_is_not_judged(team: Team, gpus: ResourcePool, models: Path, spec_of: Any, content: str) -> None:
    assert judge_fit(spec_of(registered(models, team, "odd", content)), gpus, team) is None
    assert judge_fit(spec_of("nobodys"), gpus, team) is None


@pytest.mark.django_db
def test_pool_of_unknown_memory_refuses_nothing(team: Team, pool: ResourcePool, stored: str, spec_of: Any) -> None:
    assert judge_fit(spec_of(stored), pool, team) is None


@pytest.mark.django_db
def test_teacher_counts_and_its_shape_is_required(
    team: Team, gpus: ResourcePool, stored: str, models: Path, make_spec: MakeSpec
) -> None:
    registered(models, team, "small", json.dumps(KNOWN_CONFIGS["Qwen3-0.6B"]))
    distilled: dict[str, Any] = {"model": {"source": "small"}, "rollout": {"engine": "vllm", "replicas": 1}}
    alone = judge_fit(make_spec(**distilled), gpus, team)
    assert alone is not None and alone.misfit is None
    taught = make_spec(**distilled, algorithm={"teacher": {"source": stored, "coefficient": 1.0}})
    fit = judge_fit(taught, gpus, team)
    assert fit is not None and fit.is_refused and any("teacher" in line for line in fit.arithmetic)
    unknown = make_spec(**distilled, algorithm={"teacher": {"source": "elsewhere", "coefficient": 1.0}})
    assert judge_fit(unknown, gpus, team) is None
