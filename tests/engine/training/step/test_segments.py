"""A trajectory with rewritten history (segments) is several sequences for attention, and one trajectory otherwise."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.models.routes import DENSE, RouteFormat
from engine.policy.lineage import WeightsId
from engine.spec.job import OptimizerSpec
from engine.training.batch import TrainingBatch, TrainingTrajectory
from engine.training.checks import check_batch
from engine.training.factory import build_trainer
from engine.training.replay.batch import as_tensors, from_tensors
from engine.training.sequences import Sequences
from engine.training.step.micro_batch import MicroBatch, batch_step
from engine.weights.snapshot import map_weights
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import SMOOTH_EPS, settings, trajectories_of

pytestmark = pytest.mark.usefixtures("one_thread")


def with_segments(each: TrainingTrajectory, *rewritten: int) -> TrainingTrajectory:
    """Adds segments after the first and the second written token, which begin with so many rewritten tokens."""
    written, ids, breaks = list[bool](), list[int](), list[int]()
    parts = [each.response_ids[:1], each.response_ids[1:2], each.response_ids[2:]][: len(rewritten) + 1]
    for part, num_rewritten in zip(parts, (0, *rewritten), strict=True):
        breaks += [len(ids)] if num_rewritten else []
        written += [False] * num_rewritten + [True] * len(part)
        ids += [4 + (7 * place + len(ids)) % 36 for place in range(num_rewritten)] + list(part)
    return replace(
        each,
        response_ids=tuple(ids),
        behaviour_logprobs=tuple(-3.6 if own else 0.0 for own in written),
        written=tuple(written),
        staleness=(0,) * len(ids),
        breaks=tuple(breaks),
    )


def pieces_of(each: TrainingTrajectory) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
    """(tokens, whether the model wrote them) for each segment."""
    written = (False,) * len(each.prompt_ids) + (each.written or (True,) * len(each.response_ids))
    ids = each.prompt_ids + each.response_ids
    ends = [*(len(each.prompt_ids) + place for place in each.breaks), len(ids)]
    return [(ids[start:end], written[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def some(num_segmented: int = 7) -> list[TrainingTrajectory]:
    batch = [each for each in trajectories_of(3, num=16) if len(each.response_ids) > 3]
    assert len(batch) > num_segmented
    return [with_segments(each, 5, 3 + at) if at < num_segmented else each for at, each in enumerate(batch)]


def read(batch: MicroBatch) -> dict[int, tuple[int, ...]]:
    return {member: tuple(batch.ids[places].tolist()) for member, places in batch.tokens.places.items()}


@given(st.lists(st.lists(st.integers(1, 9), max_size=2), min_size=1, max_size=6), st.sampled_from([20, 10_000]))
def test_written_token_is_trained_once_and_sees_only_its_segment(rewritten: list[list[int]], max_tokens: int) -> None:
    whole = [each for each in trajectories_of(3, num=16) if len(each.response_ids) > 3]
    batch = [with_segments(each, *nums) for each, nums in zip(whole, rewritten, strict=False)]
    pieces = [(owner, *piece) for owner, each in enumerate(batch) for piece in pieces_of(each)]
    seen: dict[int, tuple[int, int]] = {}
    for micro_batch in batch_step(batch, max_tokens=max_tokens, device="cpu").micro_batches:
        for member, ids in read(micro_batch).items():
            owner, expected, written = pieces[member]
            last = max(place for place, own in enumerate(written) if own)
            assert ids == expected[:last]
        for slot, target, owner in zip(
            micro_batch.slots_N.tolist(),
            micro_batch.targets_N.tolist(),
            micro_batch.trajectories_N.tolist(),
            strict=True,
        ):
            assert slot not in seen
            seen[slot] = (owner, target)
    sampled = [
        (owner, token)
        for owner, each in enumerate(batch)
        for token, own in zip(each.response_ids, each.written, strict=True)
        if own
    ]
    assert [seen[slot] for slot in sorted(seen)] == sampled


def own_logprobs(model: Any, each: TrainingTrajectory) -> Tensor:
    """The written tokens' log-probs, by transformers' own forward pass over each segment."""
    of_pieces = []
    for ids, written in pieces_of(each):
        logprobs = model(torch.tensor([ids])).logits.log_softmax(-1)[0, :-1]
        targets = torch.tensor(ids[1:])
        of_pieces.append(logprobs.gather(1, targets.unsqueeze(1)).squeeze(1)[torch.tensor(written[1:])])
    return torch.cat(of_pieces)


def step_by_hand(folder: Path, batch: list[TrainingTrajectory], *, lr: float) -> dict[str, Tensor]:
    """GRPO with a truncated importance weight: a segmented trajectory is one answer of its group, with one mean."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, eps=SMOOTH_EPS, weight_decay=0.0)
    total = torch.zeros(())
    for each in batch:
        rewards = torch.tensor([other.reward for other in batch if other.group == each.group])
        advantage = (each.reward - rewards.mean()) / (rewards.std() + 1e-6) if rewards.std() > 0 else 0.0
        logprobs = own_logprobs(model, each)
        weight = (logprobs.detach() + 3.6).exp().clamp(max=2.0)
        total = total - (weight * (logprobs - logprobs.detach()).exp() * advantage).mean() / len(batch)
    total.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def test_step_of_segmented_trajectories_equals_the_reference(make_llama: MakeLlama) -> None:
    folder, batch = make_llama(), [replace(each, reward=float(at % 2)) for at, each in enumerate(some())]
    optimizer = OptimizerSpec(learning_rate=1e-2, warmup_steps=0, weight_decay=0.0, eps=SMOOTH_EPS)
    trainer = build_trainer(folder, settings(optimizer=optimizer), device="cpu")
    trainer.train_step(batch)
    expected = step_by_hand(folder, batch, lr=1e-2)
    for name, tensor in map_weights(trainer.snapshot(WeightsId(0, 1))).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-4)


def test_without_a_break_sequences_are_trajectories() -> None:
    batch = TrainingBatch.of(trajectories_of(0, tools=True))
    sequences = Sequences.of(batch)
    assert sequences.owners_Q.tolist() == list(range(len(batch)))
    assert (sequences.lengths_Q == batch.prompt_lengths_N + batch.response_lengths_N).all()
    assert (sequences.rest_starts_Q == batch.response_starts_N).all()
    assert (sequences.num_written_Q == batch.num_written_N).all()


def test_selected_trajectories_keep_their_breaks() -> None:
    batch = some()
    chosen = TrainingBatch.of(batch).only(np.array([1, 9, 4]))
    expected = TrainingBatch.of([batch[1], batch[9], batch[4]])
    for name in ("lengths_Q", "num_written_Q", "owners_Q", "slot_starts_Q", "last_written_Q"):
        assert (getattr(Sequences.of(chosen), name) == getattr(Sequences.of(expected), name)).all()


def test_length_limit_applies_to_segments_not_trajectories() -> None:
    [long] = [with_segments(each, 30) for each in trajectories_of(3) if len(each.response_ids) > 3][:1]
    longest = max(len(ids) for ids, _ in pieces_of(long))
    assert len(long.prompt_ids + long.response_ids) > longest
    check_batch(TrainingBatch.of([long]), vocab_size=40, max_positions=longest - 1)
    with pytest.raises(ValueError, match=f"trajectory 0: at most {longest - 2} tokens fit this model, got {longest}"):
        check_batch(TrainingBatch.of([long]), vocab_size=40, max_positions=longest - 2)


def test_recorded_step_keeps_its_breaks() -> None:
    tensors = as_tensors(some())
    again = from_tensors(tensors)
    assert (Sequences.of(again).lengths_Q == Sequences.of(TrainingBatch.of(some())).lengths_Q).all()


def test_only_the_first_segment_replays_routes() -> None:
    layout = RouteFormat(num_mixtures=1, num_experts=4, chosen=1, dtype=torch.uint8)
    [each] = [with_segments(each, 4) for each in trajectories_of(3) if len(each.response_ids) > 3][:1]
    num = len(each.prompt_ids)
    routed = replace(each, routes=bytes(place % 4 for place in range(num)))
    [one] = batch_step([routed], max_tokens=10_000, device="cpu", route_format=layout).micro_batches
    assert one.routes_TWk is not None and DENSE.token_bytes == 0
    by_member = {member: one.routes_TWk[places].flatten().tolist() for member, places in one.tokens.places.items()}
    assert by_member[0] == [place % 4 for place in range(num)]
    assert set(by_member[1]) == {layout.unknown}
