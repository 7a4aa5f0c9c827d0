"""Several devices of a replica: which numbers a model takes, what each of them has, and when it is advised."""

from dataclasses import replace
from typing import Any

import pytest

from engine.fit.known_models import known_shape
from engine.fit.need import GB
from engine.fit.remedies import with_changes
from engine.fit.replica import ReplicaPlan, kv_bytes_of_token, replica_need
from engine.fit.shards import shard_of, why_not_shardable
from engine.fit.verdict import replica_misfit
from tests.engine.fit.shapes_of_models import job

DENSE, MIXTURE = known_shape("Qwen3-8B"), known_shape("Qwen3-30B-A3B")


@pytest.mark.parametrize(
    ("changed", "num_devices", "rule"),
    [
        ({}, 3, "must divide the model's 32 heads; got 3, accepted: 1, 2, 4, 8, 16, 32"),
        ({"num_heads": 24, "num_kv_heads": 8}, 12, "must divide the model's 8 key/value heads, or be a multiple"),
        ({"mlp_width": 12_290}, 4, "must divide the width of the model's MLP, 12,290; got 4, accepted: 1, 2"),
        (
            {"num_heads": 33, "num_kv_heads": 33, "mlp_width": 12_288, "vocab_size": 100},
            3,
            "must divide 128, the model's",
        ),
    ],
)
def test_layout_vllm_rejects_is_refused_with_valid_ones(changed: dict[str, Any], num_devices: int, rule: str) -> None:
    why = why_not_shardable(replace(DENSE, **changed), num_devices)
    assert why is not None and why.startswith(f"resources.devices_per_replica {rule}"), why


def test_a_mixtures_experts_are_dealt_whole_or_by_their_width() -> None:
    assert why_not_shardable(MIXTURE, 4) is None
    few = why_not_shardable(replace(MIXTURE, num_experts=2, experts_per_token=1), 4)
    assert few is not None and "must not exceed the model's 2 experts" in few
    narrow = why_not_shardable(replace(MIXTURE, expert_width=770), 4)
    assert narrow is not None and "must divide the width of the model's experts, 770" in narrow


def test_key_heads_are_divided_then_replicated() -> None:
    of_token = kv_bytes_of_token(DENSE)
    for num_devices, share in ((2, 2), (8, 8), (16, 8), (32, 8)):
        assert why_not_shardable(DENSE, num_devices) is None
        assert kv_bytes_of_token(shard_of(DENSE, num_devices)) == of_token // share


def test_what_is_divided_is_divided_and_nothing_else() -> None:
    each = shard_of(DENSE, 4)
    norms = DENSE.num_layers * (2 * DENSE.width + 2 * DENSE.head_dim) + DENSE.width
    assert each.num_weights == (DENSE.num_weights - norms) // 4 + norms
    router = MIXTURE.num_mixtures * MIXTURE.num_experts * MIXTURE.width
    whole = router + MIXTURE.num_layers * (2 * MIXTURE.width + 2 * MIXTURE.head_dim) + MIXTURE.width
    assert shard_of(MIXTURE, 4).num_weights == (MIXTURE.num_weights - whole) // 4 + whole


def test_too_large_model_is_advised_to_take_more_devices() -> None:
    shape = known_shape("Qwen3-32B")
    for engine in ("vllm", "torch"):
        spec = job(rollout={"engine": engine, "max_batch": 64, "kv_tokens": 65_536})
        misfit = replica_misfit(spec, shape, 48 * GB)
        assert misfit is not None and misfit.is_certain and misfit.changes is not None
        assert "split each replica over 2 devices (resources.devices_per_replica 2" in misfit.advice
        advised = with_changes(spec, misfit.changes)
        assert advised is not None and (advised.rollout.engine, advised.resources.devices_per_replica) == ("vllm", 2)
        need = replica_need(shape, ReplicaPlan.of_spec(advised, shape))
        assert need.num_bytes <= 48 * GB and "Each of a replica's 2 devices" in need.lines[0]
