"""A part that cannot fit is refused before it loads anything; one that may not fit is logged and runs."""

import json
import logging
from pathlib import Path

import pytest

from engine.fit.known_models import KNOWN_CONFIGS
from engine.fit.need import GB
from engine.live.process.fitting import HostTooSmall, check_fit, judge, judge_host
from engine.models.loading import DEMO_FOLDER
from engine.spec.job import JobSpec

SPEC = JobSpec.model_validate({"name": "t", "trainer": {"compute_dtype": "bfloat16"}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(KNOWN_CONFIGS["Qwen3-8B"]))
    return tmp_path


def test_trainer_that_cannot_fit_is_refused_with_arithmetic(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"moments, float32(.|\n)*needs 131\.1 GB .* has 80\.0 GB"):
        judge("trainer", SPEC, folder, memory_bytes=80 * GB, is_shared=False)


def test_replica_that_may_not_fit_is_logged_and_runs(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = SPEC.model_copy(update={"rollout": SPEC.rollout.model_copy(update={"max_new_tokens": 8_192})})
    judge("replica", spec, folder, memory_bytes=80 * GB, is_shared=False)
    assert "fit=doubtful part=replica" in caplog.text


def test_misfit_on_a_cpu_is_only_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    judge("trainer", SPEC, folder, memory_bytes=80 * GB, is_shared=True)
    assert "fit=doubtful part=trainer" in caplog.text


def test_shared_memory_without_room_for_weights_is_refused(folder: Path) -> None:
    expected = r"has 4\.0 GB of shared memory .* take 32\.8 GB there\. Set at least 31gb \(LAMINAR_RAY_SHM"
    with pytest.raises(HostTooSmall, match=expected):
        judge_host("trainer", SPEC, folder, shared_bytes=4 * GB, host_bytes=10_000 * GB)
    with pytest.raises(HostTooSmall, match=r"take 57\.3 GB there"):
        judge_host("replica", SPEC, folder, shared_bytes=32 * GB, host_bytes=10_000 * GB)


def test_an_adapter_needs_no_room_for_whole_weights(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = SPEC.model_copy(update={"trainer": SPEC.trainer.model_copy(update={"lora_rank": 16})})
    judge_host("trainer", spec, folder, shared_bytes=4 * GB, host_bytes=10_000 * GB)
    judge_host("replica", spec, folder, shared_bytes=4 * GB, host_bytes=10_000 * GB)
    assert not caplog.records


@pytest.mark.parametrize(("shared_gb", "host_gb"), [(20, 10_000), (400, 60), (400, 150)])
def test_a_tight_host_is_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture, shared_gb: int, host_gb: int
) -> None:
    judge_host("trainer", SPEC, folder, shared_bytes=shared_gb * GB, host_bytes=host_gb * GB)
    assert [record.getMessage()[:26] for record in caplog.records] == ["fit=doubtful part=trainer "]


def test_host_of_a_trainer_with_a_teacher_is_checked(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    algorithm = SPEC.algorithm.model_dump() | {"teacher": {"source": "Qwen3-8B", "coefficient": 1.0}}
    spec = JobSpec.model_validate(SPEC.model_dump() | {"algorithm": algorithm})
    judge_host("trainer", spec, folder, shared_bytes=400 * GB, host_bytes=60 * GB, teacher=folder)
    assert "fit=doubtful part=trainer" in caplog.text


def test_unknown_model_is_not_checked(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "config.json").write_text(json.dumps({**KNOWN_CONFIGS["Qwen3-8B"], "n_shared_experts": 1}))
    with caplog.at_level(logging.INFO):
        judge("trainer", SPEC, folder, memory_bytes=GB, is_shared=False)
        judge_host("trainer", SPEC, folder, shared_bytes=0, host_bytes=0)
    assert "fit=unknown part=trainer" in caplog.text


def test_demo_fits_this_machine(caplog: pytest.LogCaptureFixture) -> None:
    for part in ("trainer", "replica"):
        check_fit(part, JobSpec(name="t"), DEMO_FOLDER, "cpu")
    assert not caplog.records
