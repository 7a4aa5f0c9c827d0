"""More devices never need more of each, longer sequences never less: for any shape and any plan."""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from engine.fit.hosts import trainer_host_need
from engine.fit.plan import Division, Moments, TrainerPlan
from engine.fit.remedies import changed, trainer_remedies
from engine.fit.replica import ReplicaPlan, kv_bytes_of_token, replica_need
from engine.fit.shape import ModelShape
from engine.fit.shards import shard_of, why_not_shardable
from engine.fit.trainer import trainer_need


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    kv_heads, mixtures = draw(st.integers(1, 8)), draw(st.booleans())
    num_layers = draw(st.integers(1, 80))
    return ModelShape(
        vocab_size=draw(st.integers(32, 200_000)),
        width=64 * draw(st.integers(1, 128)),
        num_layers=num_layers,
        num_heads=kv_heads * draw(st.integers(1, 8)),
        num_kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([32, 64, 128])),
        mlp_width=64 * draw(st.integers(1, 400)),
        tied=draw(st.booleans()),
        stored_bytes=draw(st.sampled_from([2, 4])),
        max_positions=draw(st.integers(256, 200_000)),
        qk_norm=draw(st.booleans()),
        num_experts=128 if mixtures else 0,
        experts_per_token=8 if mixtures else 0,
        expert_width=768 if mixtures else 0,
        num_mixtures=draw(st.integers(1, num_layers)) if mixtures else 0,
    )


@st.composite
def plans(draw: st.DrawFn) -> TrainerPlan:
    division: Division = draw(st.sampled_from(["whole", "fsdp", "zero1", "zero2", "zero3"]))
    ranks = 2 ** draw(st.integers(0, 3)) if division == "fsdp" else 1
    per_host = draw(st.none() | st.integers(1, 8)) if division == "fsdp" else None
    return TrainerPlan(
        devices_per_host=per_host,
        sums_once=division == "fsdp" and draw(st.booleans()),
        pass_tokens=draw(st.integers(512, 200_000)),
        chunk_tokens=draw(st.integers(1, 4_096)),
        num_devices=1 if division == "whole" else ranks * draw(st.integers(1, 64)),
        division=division,
        sequence_parallel=ranks,
        products=draw(st.sampled_from(["float32", "bfloat16"])),
        activations=draw(st.sampled_from(["kept", "recomputed", "offloaded"])),
        caches_casts=draw(st.booleans()),
        moments=draw(st.sampled_from(["float32", "bfloat16", "float8"])),
        offloads_moments=draw(st.booleans()),
        lora_rank=draw(st.sampled_from([0, 0, 8])),
        has_reference=draw(st.booleans()),
        has_critic=draw(st.booleans()),
        teacher=draw(st.none() | shapes()),
    )


def counted(shape: ModelShape, plan: TrainerPlan) -> int:
    return trainer_need(shape, plan).counted


@given(shapes(), plans(), st.integers(2, 8))
def test_more_devices_never_need_more_of_each(shape: ModelShape, plan: TrainerPlan, factor: int) -> None:
    assume(plan.division != "whole" and (plan.division != "zero3" or plan.num_devices > 1))
    more = replace(plan, num_devices=plan.num_devices * factor)
    assert counted(shape, more) <= counted(shape, plan)


@given(shapes(), plans(), st.integers(1, 100_000))
def test_longer_passes_never_need_less(shape: ModelShape, plan: TrainerPlan, more: int) -> None:
    assert counted(shape, replace(plan, pass_tokens=plan.pass_tokens + more)) >= counted(shape, plan)


@given(shapes(), plans())
def test_what_saves_memory_never_needs_more(shape: ModelShape, plan: TrainerPlan) -> None:
    pairs: tuple[tuple[Moments, Moments], ...] = (("float32", "bfloat16"), ("bfloat16", "float8"))
    for weaker, stronger in pairs:
        assert counted(shape, replace(plan, moments=stronger)) <= counted(shape, replace(plan, moments=weaker))
    on_host = replace(plan, offloads_moments=True)
    assert counted(shape, on_host) <= counted(shape, replace(plan, offloads_moments=False))
    recomputed, offloaded = replace(plan, activations="recomputed"), replace(plan, activations="offloaded")
    assert counted(shape, offloaded) <= counted(shape, recomputed)
    if plan.division == "fsdp" and shape.can_deal_heads(2 * plan.sequence_parallel):
        shared = replace(plan, num_devices=2 * plan.num_devices, sequence_parallel=2 * plan.sequence_parallel)
        assert counted(shape, shared) <= counted(shape, plan)


@given(shapes(), plans())
def test_recomputing_layers_never_keeps_more_of_them(shape: ModelShape, plan: TrainerPlan) -> None:
    """Of one layer alone there is nothing to save: it is computed again, with its input kept."""
    assume(shape.num_layers > 1)
    kept, again = replace(plan, activations="kept"), replace(plan, activations="recomputed")
    assert counted(shape, again) <= counted(shape, kept)


@given(shapes(), plans())
def test_everything_that_is_needed_is_told(shape: ModelShape, plan: TrainerPlan) -> None:
    for need in (trainer_need(shape, plan), trainer_host_need(shape, plan)):
        told = [float(line.split(" GB")[0]) for line in need.lines[1:] if " GB  " in line]
        assert abs(sum(told) - need.num_bytes / 1e9) <= 0.005 * len(told) + 1e-6
        assert all(term.num_bytes >= 0 for phase in need.phases for term in phase.terms)


@given(shapes(), st.integers(1, 8), st.integers(1, 512), st.integers(1, 10**6))
def test_a_replica_with_more_of_anything_never_needs_less(
    shape: ModelShape, slots: int, rows: int, tokens: int
) -> None:
    plan = ReplicaPlan(
        weight_slots=slots,
        max_batch=rows,
        longest=2_048,
        kv_tokens=tokens,
        takes_kv_at_once=True,
        read_in_tokens=1_024,
    )
    for grows, is_vllm in ((False, False), (True, False), (False, True)):
        plan = replace(plan, takes_kv_at_once=not grows, is_vllm=is_vllm)
        for more in (replace(plan, max_batch=2 * rows, kv_tokens=2 * tokens), replace(plan, cuts=True)):
            assert replica_need(shape, more).counted >= replica_need(shape, plan).counted
        assert replica_need(shape, replace(plan, weight_slots=slots + 1)).certain > replica_need(shape, plan).certain
        other = replica_need(shape, replace(plan, kv_tokens=tokens + 1))
        assert other.counted >= replica_need(shape, plan).counted + (0 if grows else kv_bytes_of_token(shape))


@given(shapes(), st.sampled_from([2, 3, 4, 8]), st.integers(1, 512), st.integers(1, 10**6))
def test_device_of_a_replica_needs_no_more_than_one_alone(
    shape: ModelShape, num_devices: int, rows: int, tokens: int
) -> None:
    plan = ReplicaPlan(
        weight_slots=1,
        max_batch=rows,
        longest=2_048,
        kv_tokens=tokens,
        takes_kv_at_once=True,
        read_in_tokens=1_024,
        is_vllm=True,
    )
    assume(why_not_shardable(shape, num_devices) is None)
    alone, each = replica_need(shape, plan), replica_need(shape, replace(plan, num_devices=num_devices))
    filled_up = 2 * 64 * shape.width * shape.stored_bytes
    assert alone.certain / num_devices - filled_up <= each.certain <= alone.certain + filled_up
    assert num_devices * shard_of(shape, num_devices).num_weights >= shape.num_weights


@given(shapes(), plans())
def test_every_remedy_lessens_what_each_device_needs(shape: ModelShape, plan: TrainerPlan) -> None:
    """But for LoRA, which merges a layer before it computes with it."""
    assume(plan.division != "zero3" or plan.num_devices > 1)
    *others, _ = trainer_remedies(plan, longest=1)
    for dose in (each for doses in others for each in doses):
        other = changed(plan, shape, [dose])
        if other is not None and other.division == plan.division and shape.num_layers > 1:
            assert counted(shape, other) <= counted(shape, plan)
