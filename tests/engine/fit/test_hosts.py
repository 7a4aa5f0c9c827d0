"""Host memory: versions in shared memory, as a real handover leaves them."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.fit.hosts import (
    flattened_bytes,
    relay_host_need,
    segment_bytes,
    version_bytes,
)
from engine.fit.known_models import KNOWN_CONFIGS, known_shape
from engine.fit.need import share
from engine.fit.plan import TrainerPlan
from engine.fit.shape import ModelShape
from engine.fit.trainer import SUM_BYTES, published_bytes
from engine.live.weights.handover import Handover
from engine.live.weights.segments import FOLDER, PREFIX
from engine.models.decoder import Decoder
from engine.models.make_random import make_random
from engine.policy.lineage import WeightsId
from engine.training.factory import build_trainer
from engine.training.parts.published import published
from engine.training.settings import TrainerSettings
from engine.training.zero.guest import import_deepspeed
from tests.engine.fit.measured.memory_of_a_pass import LiveBytes
from tests.engine.fit.shapes_of_models import decoder_config, job

ONE_LAYER = replace(known_shape("Qwen3-0.6B"), num_layers=1)
OWNER = f"fit{os.getpid()}"


@pytest.fixture
def handover() -> Iterator[Handover]:
    handover = Handover(owner=OWNER)
    yield handover
    handover.close()


def bytes_in_shared_memory() -> int:
    return sum(file.stat().st_blocks * 512 for file in FOLDER.glob(f"{PREFIX}{OWNER}-*"))


def test_trainers_host_holds_two_versions(handover: Handover) -> None:
    model = Decoder(decoder_config(ONE_LAYER), torch.bfloat16)
    weights = published(model, None, lambda parameter, _: parameter.detach().reshape(-1))
    held = []
    for version in range(1, 4):
        if version > 1:
            handover.forget(WeightsId(0, version - 1))  # as the trainer does before it publishes the next
        handover.keep(weights.pack(WeightsId(0, version), handover.allocate))
        handover.wait_until_ready()
        held.append(bytes_in_shared_memory())
    assert max(held) <= segment_bytes(ONE_LAYER, 0) * 1.001 <= 1.01 * min(held)


def test_a_version_of_an_adapter_is_the_adapter() -> None:
    assert version_bytes(ONE_LAYER, 8) == 4 * ONE_LAYER.adapter_weights(8)
    assert relay_host_need(ONE_LAYER, lora_rank=8).num_bytes == 3 * version_bytes(ONE_LAYER, 8)


def test_relays_that_feed_others_keep_what_changed() -> None:
    alone, first = relay_host_need(ONE_LAYER), relay_host_need(ONE_LAYER, num_relays=2)
    assert first.counted == alone.counted + version_bytes(ONE_LAYER, 0) // 2
    assert relay_host_need(ONE_LAYER, lora_rank=8, num_relays=2) == relay_host_need(ONE_LAYER, lora_rank=8)


PLAN: Final = TrainerPlan(pass_tokens=1, chunk_tokens=1, num_devices=8, division="zero3")


def test_stage_3_makes_one_piece_of_weights_in_a_hosts_memory() -> None:
    """What of DeepSpeed does it, for a rank whose part of the weights is on a device."""
    import_deepspeed("cpu")
    from deepspeed.runtime.zero.utils import defragment

    with FakeTensorMode():
        model = Decoder(decoder_config(ONE_LAYER), torch.float32)
        sizes = [share(each.numel(), PLAN.num_devices) for each in model.parameters()]
        parts = [torch.empty(size, device="cuda") for size in sizes]
        with LiveBytes(on="cpu") as live:
            defragment(parts)
    assert flattened_bytes(ONE_LAYER, PLAN) == pytest.approx(PLAN.num_devices * live.peak, rel=1e-4)


def test_stage_2_flattens_on_the_host_if_the_device_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU what is moved to the host is there already."""
    config = {**KNOWN_CONFIGS["Qwen3-0.6B"], "num_hidden_layers": 1, "vocab_size": 1_024, "max_position_embeddings": 64}
    make_random(tmp_path, config)
    import_deepspeed("cpu")
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    monkeypatch.setattr(type(get_accelerator()), "available_memory", lambda *_: 0)
    laid_out, peaks = DeepSpeedZeroOptimizer._update_model_bit16_weights, []

    def noted(optimizer: Any, group: int) -> None:
        peaks.append(live.peak)
        laid_out(optimizer, group)

    monkeypatch.setattr(DeepSpeedZeroOptimizer, "_update_model_bit16_weights", noted)
    spec = job(trainer={"backend": "deepspeed", "zero_stage": 2})
    with LiveBytes() as live:
        build_trainer(tmp_path, TrainerSettings.of(spec), device="cpu").close()
    assert 8 * ModelShape.of_config(config).num_weights == pytest.approx(max(peaks), rel=0.005)
    large, plan = known_shape("Qwen3-32B"), replace(PLAN, division="zero2")
    assert flattened_bytes(large, plan) == 8 * 8 * large.num_weights
    assert flattened_bytes(large, replace(plan, pass_tokens=131_072, chunk_tokens=2_048)) == 0, "needed later, anyway"


def test_who_divides_otherwise_makes_no_piece_of_them() -> None:
    assert flattened_bytes(ONE_LAYER, replace(PLAN, division="fsdp")) == 0
    assert flattened_bytes(ONE_LAYER, replace(PLAN, division="zero1")) == 0, "gradients need that room later"


def test_a_device_rounds_what_it_hands_over_tensor_by_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.training.parts.published.fetched", lambda sums: [0] * len(sums))  # they have no values
    plan = replace(PLAN, num_devices=1, division="whole")
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("meta"):
        model = Decoder(decoder_config(ONE_LAYER), torch.float32)
        weights = published(model, None, lambda parameter, _: parameter.detach().reshape(-1))
        with LiveBytes(on="meta") as live:
            weights.pack(WeightsId(0, 1), lambda num_bytes: memoryview(bytearray(num_bytes)))
    assert live.peak <= published_bytes(ONE_LAYER, plan) + SUM_BYTES <= 1.25 * live.peak
