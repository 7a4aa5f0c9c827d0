"""Each backend's memory and traffic is shown only where there is a choice."""

import pytest

from engine.fit.backends import backend_lines, between_hosts_bytes, host_lines, sent_bytes, sum_lines
from engine.fit.known_models import KNOWN_CONFIGS, known_shape
from engine.fit.need import GB
from engine.fit.planning import plan_trainer
from engine.fit.trainer import trainer_need
from tests.engine.fit.shapes_of_models import job

LARGE, MIXTURE = known_shape("Qwen3-8B"), known_shape("Qwen3-30B-A3B")
DENSE = [name for name in KNOWN_CONFIGS if "A3B" not in name]
EIGHT = {"trainer_devices": 8}


def test_a_choice_is_told_with_each_stage() -> None:
    head, *lines = backend_lines(job(resources=EIGHT), LARGE)
    assert head.endswith(":") and len(lines) == 4
    assert "backend torch" in lines[0] and all(f"zero_stage {stage}" in lines[stage] for stage in (1, 2, 3))


def test_where_there_is_none_nothing_is_told() -> None:
    assert backend_lines(job(), LARGE) == []
    assert backend_lines(job(resources=EIGHT), MIXTURE) == []
    shared = job(resources=EIGHT, trainer={"sequence_parallel": 2})
    assert backend_lines(shared, LARGE) == [], "DeepSpeed shares no sequences"


def test_copies_on_hosts_are_weighed_where_there_are_several() -> None:
    assert host_lines(job(resources=EIGHT), LARGE) == []
    head, *lines = host_lines(job(resources={"trainer_devices": 16}), LARGE)
    assert "trainer.shard_within, with 8 devices per host" in head
    assert [line.split(":")[0].strip() for line in lines] == ["all", "node"]
    few = host_lines(job(resources=EIGHT), LARGE, devices_per_host=2)
    assert "with 2 devices per host" in few[0]
    assert host_lines(job(resources=EIGHT, trainer={"backend": "deepspeed"}), LARGE, devices_per_host=2) == []


def test_one_sum_an_update_is_chosen_where_it_fits() -> None:
    def lines(device_gb: int, devices: int = 8) -> list[str]:
        recomputed = {"activations": "recomputed"}
        spec = job(resources={"trainer_devices": devices}, trainer=recomputed)
        return sum_lines(spec, LARGE, plan_trainer(spec, LARGE), device_gb * GB)

    small, large = lines(40), lines(80)
    assert "gradient_sums micro_batch." in small[0] and "gradient_sums update." in large[0]
    assert small[1:] == large[1:] and len(small) == 3
    assert lines(80, devices=1) == []


def test_copies_send_less_between_hosts_from_two_passes_on() -> None:
    """In bfloat16 a sum of float32 gradients for all is as much as two gathers and a sum for their rows."""

    def sent(within: str, num_passes: int, **trainer: object) -> int:
        asked = {"shard_within": within, "compute_dtype": "bfloat16", **trainer}
        spec = job(resources={"trainer_devices": 16}, trainer=asked)
        plan = plan_trainer(spec, LARGE)
        return between_hosts_bytes(LARGE, plan, num_passes=num_passes, devices_per_host=8)

    assert sent("node", 1) == sent("node", 8) == sent("all", 1) == sent("all", 8) // 8
    assert sent("node", 1, lora_rank=16) < sent("all", 1, lora_rank=16) / 50


def test_fsdp_in_bfloat16_sends_less_than_zero_stage_3() -> None:
    def sent(**trainer: object) -> int:
        spec = job(resources=EIGHT, trainer={"compute_dtype": "bfloat16", **trainer})
        return sent_bytes(LARGE, plan_trainer(spec, LARGE))

    fsdp = sent()
    assert fsdp < sent(backend="deepspeed", zero_stage=3)
    assert fsdp == sent(backend="deepspeed", zero_stage=1) == sent(backend="deepspeed", zero_stage=2)


@pytest.mark.parametrize("num_devices", [2, 8, 64])
@pytest.mark.parametrize("name", DENSE)
def test_torch_takes_the_least_memory_at_every_size(name: str, num_devices: int) -> None:
    """Why it is the default. With a GPU's default products."""
    shape = known_shape(name)

    def needed(**trainer: object) -> int:
        asked = {"compute_dtype": "bfloat16", "activations": "recomputed", **trainer}
        spec = job(resources={"trainer_devices": num_devices}, trainer=asked, rollout={"max_new_tokens": 8_192})
        return trainer_need(shape, plan_trainer(spec, shape)).num_bytes

    assert needed() < min(needed(backend="deepspeed", zero_stage=stage) for stage in (1, 2, 3))
