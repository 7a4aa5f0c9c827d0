"""What is refused cannot fit, what is advised fits and is accepted, and the least harm comes first."""

from dataclasses import replace

import pytest

from engine.fit.known_models import KNOWN_CONFIGS, known_shape
from engine.fit.need import GB
from engine.fit.planning import plan_trainer
from engine.fit.remedies import Change, changed, smallest, trainer_remedies, with_changes
from engine.fit.trainer import trainer_need
from engine.fit.verdict import Misfit, replica_misfit, trainer_misfit, will_not_fit
from tests.engine.fit.shapes_of_models import job

SMALL, LARGE = known_shape("Qwen3-1.7B"), known_shape("Qwen3-8B")


@pytest.mark.parametrize("device_gb", [30, 40, 60, 80, 141])
@pytest.mark.parametrize("name", KNOWN_CONFIGS)
def test_a_job_with_what_is_advised_is_accepted_and_fits(name: str, device_gb: int) -> None:
    shape = known_shape(name)
    spec = job(trainer={"compute_dtype": "bfloat16"}, rollout={"max_new_tokens": 2_048, "max_batch": 256})
    for misfit_of in (trainer_misfit, replica_misfit, will_not_fit):
        misfit = misfit_of(spec, shape, device_gb * GB)
        if misfit is not None and misfit.changes is not None:
            advised = with_changes(spec, misfit.changes)
            assert advised is not None and misfit_of(advised, shape, device_gb * GB) is None


def test_what_fits_is_not_spoken_of() -> None:
    assert will_not_fit(job(), known_shape("Qwen3-0.6B"), 141 * GB) is None


def test_copies_on_hosts_take_what_a_host_alone_would() -> None:
    def need(devices: int, within: str) -> int:
        spec = job(trainer={"shard_within": within}, resources={"trainer_devices": devices})
        return trainer_need(LARGE, plan_trainer(spec, LARGE)).certain

    assert need(64, "node") == need(8, "node") == need(8, "all") > need(64, "all")
    assert need(12, "node") == need(6, "all"), "two hosts of six"


def test_one_copy_is_advised_where_a_host_is_too_small() -> None:
    spec = job(
        trainer={"shard_within": "node", "activations": "recomputed", "compute_dtype": "bfloat16"},
        resources={"trainer_devices": 64},
    )
    misfit = trainer_misfit(spec, known_shape("Qwen3-32B"), 80 * GB, devices_per_host=4)
    assert misfit is not None and misfit.changes is not None
    assert [dict(change.settings) for change in misfit.changes] == [{"trainer.shard_within": "all"}]


def test_an_evaluation_needs_no_trainer() -> None:
    spec = job(training={"steps": 0})
    assert trainer_misfit(spec, LARGE, GB) is None
    misfit = will_not_fit(spec, LARGE, GB)
    assert misfit is not None and misfit == replica_misfit(spec, LARGE, GB)


def test_only_terms_of_any_batch_make_a_misfit_certain() -> None:
    spec = job()
    need = trainer_need(SMALL, plan_trainer(spec, SMALL))

    def at(num_bytes: int) -> Misfit | None:
        return trainer_misfit(spec, SMALL, num_bytes)

    for device_bytes, is_certain in ((need.certain - 1, True), (need.certain, False), (need.num_bytes - 1, False)):
        misfit = at(device_bytes)
        assert misfit is not None and misfit.is_certain == is_certain
    assert at(need.num_bytes) is None


def test_the_arithmetic_is_told_with_the_advice() -> None:
    misfit = trainer_misfit(job(trainer={"compute_dtype": "bfloat16"}), LARGE, 80 * GB)
    assert misfit is not None
    text = "\n".join(misfit.lines)
    for part in ("8.19 billion", "gradients", "moments", "needs 131.1 GB", "has 80.0 GB"):
        assert part in text


def test_one_change_comes_before_two_and_less_harm_before_more() -> None:
    first, second = (Change(words=name, settings={}) for name in "ab")
    seen: list[tuple[Change, ...]] = []

    def never(changes: tuple[Change, ...]) -> bool:
        seen.append(changes)
        return False

    assert smallest([(first,), (second,)], is_enough=never) is None
    assert seen == [(first,), (second,), (first, second)]


def test_nothing_is_advised_that_the_spec_would_refuse() -> None:
    spec = job()
    every = [change for doses in trainer_remedies(plan_trainer(spec, SMALL), longest=1) for change in doses]
    asked = [with_changes(spec, [change]) for change in every]
    assert None in asked and any(asked)
    offload = next(each for change, each in zip(every, asked, strict=True) if "optimizer.offload" in change.settings)
    assert offload is not None and offload.optimizer.offload and not spec.optimizer.offload


def test_a_sequence_is_shared_only_among_devices_that_are_there() -> None:
    plan = plan_trainer(job(), SMALL)
    shared = Change(words="", settings={}, fields={"sequence_parallel": 4})
    assert changed(plan, SMALL, [shared]) is None
    devices = Change(words="", settings={}, fields={"num_devices": 4, "division": "fsdp"})
    both = changed(plan, SMALL, [shared, devices])
    assert both is not None and both.tokens * 4 >= plan.tokens
    assert changed(plan, replace(SMALL, num_heads=6), [shared, devices]) is None, "six heads are not dealt to four"
