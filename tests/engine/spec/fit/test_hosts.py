"""What hosts hold beside their devices: versions in shared memory, as a real handover leaves them there."""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from engine.live.weights.handover import Handover
from engine.live.weights.segments import FOLDER, PREFIX
from engine.models.decoder import Decoder
from engine.policy.lineage import WeightsId
from engine.spec.fit.hosts import (
    relay_bytes,
    relay_host_need,
    segment_bytes,
    trainer_host_need,
    version_bytes,
)
from engine.spec.fit.known_models import known_shape
from engine.spec.fit.plan import TrainerPlan
from engine.training.parts.published import published
from tests.engine.spec.fit.shapes_of_models import decoder_config

ONE_LAYER = replace(known_shape("Qwen3-0.6B"), num_layers=1)
OWNER = f"fit{os.getpid()}"


@pytest.fixture
def handover() -> Iterator[Handover]:
    handover = Handover(owner=OWNER)
    yield handover
    handover.close()


def bytes_in_shared_memory() -> int:
    return sum(file.stat().st_blocks * 512 for file in FOLDER.glob(f"{PREFIX}{OWNER}-*"))


def test_a_trainers_host_holds_what_was_handed_over_and_room_for_the_next(handover: Handover) -> None:
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
    assert relay_bytes(ONE_LAYER, 8) == 3 * version_bytes(ONE_LAYER, 8)


def test_relays_that_feed_others_keep_what_changed() -> None:
    alone, first = relay_host_need(ONE_LAYER), relay_host_need(ONE_LAYER, num_relays=2)
    assert first.counted == alone.counted + version_bytes(ONE_LAYER, 0) // 2
    assert relay_host_need(ONE_LAYER, lora_rank=8, num_relays=2) == relay_host_need(ONE_LAYER, lora_rank=8)


def test_only_deepspeed_reads_a_whole_model_into_a_hosts_memory() -> None:
    plan = TrainerPlan(pass_tokens=1, chunk_tokens=1, num_devices=8, division="zero3")
    for other, num_bytes in ((plan, 4 * ONE_LAYER.num_weights), (replace(plan, division="fsdp"), 0)):
        [reading, _] = trainer_host_need(ONE_LAYER, other).phases
        assert reading.num_bytes == num_bytes
