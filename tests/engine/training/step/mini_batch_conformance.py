"""What every trainer does in steps of several updates. Part of `ShardingConformance`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from engine.policy.lineage import WeightsId
from engine.spec.job import OptimizerSpec
from engine.training.port import TrainingTrajectory
from engine.weights.snapshot import map_weights
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import (
    SMOOTH_EPS,
    MakeTrainer,
    hash_of,
    save,
    trajectories_of,
)

NUM_TOKENS: Final = (30, 10, 20, 5)
"""Tokens per answer, by group. The longest group goes to the emptiest mini-batch, so 0 and 3 share one."""
PARTS: Final = ((0, 1, 2, 3, 12, 13, 14, 15), (4, 5, 6, 7, 8, 9, 10, 11))
LEARNING_RATE: Final = 1e-2


def four_groups() -> list[TrainingTrajectory]:
    """Four groups of four answers, with one length per group."""
    batch = []
    for index, each in enumerate(trajectories_of(0, num=16)):
        length = NUM_TOKENS[index // 4]
        batch.append(
            replace(
                each,
                prompt_ids=(5 + index // 4, 7, 9),
                response_ids=tuple(4 + (7 * index + 5 * at + at * at) % 36 for at in range(length)),
                behaviour_logprobs=(-3.6,) * length,
                reward=float(index % 3 == 0),
                staleness=(1,) * length,
            )
        )
    return batch


def own_logprobs(model: Any, each: TrainingTrajectory) -> Tensor:
    """The answer's log-probs by transformers' own forward pass."""
    ids = torch.tensor([each.prompt_ids + each.response_ids])
    logprobs: Tensor = model(ids).logits.log_softmax(-1)[0, len(each.prompt_ids) - 1 : -1]
    return logprobs.gather(1, torch.tensor(each.response_ids).unsqueeze(1)).squeeze(1)


def written_by(
    folder: Path, batch: Sequence[TrainingTrajectory], *, aside: Callable[[int], float] = lambda index: 0.0
) -> list[TrainingTrajectory]:
    """The batch as written by the folder's model, or by one whose log-probs differ from it by `aside`."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return [
            replace(each, behaviour_logprobs=tuple((own_logprobs(model, each) + aside(index)).tolist()))
            for index, each in enumerate(batch)
        ]


def updates_by_hand(
    folder: Path, batch: Sequence[TrainingTrajectory], *, passes: int
) -> tuple[dict[str, Tensor], float]:
    """(weights, share of clipped token gradients) after a step of GRPO with a truncated importance weight, update by
    update: min(π_start/μ, 2) · min(r·A, clip(r)·A) with r = π_θ/π_start."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=1e-3, weight_decay=0.0)
    with torch.no_grad():
        start = [own_logprobs(model, each) for each in batch]
    num_clipped = num_tokens = 0
    for part in PARTS * passes:
        total = torch.zeros(())
        for index in part:
            each = batch[index]
            rewards = torch.tensor([other.reward for other in batch if other.group == each.group])
            advantage = (each.reward - rewards.mean()) / (rewards.std() + 1e-6)
            weight = (start[index] - torch.tensor(each.behaviour_logprobs)).exp().clamp(max=2.0)
            ratio = (own_logprobs(model, each) - start[index]).exp()
            gain = weight * torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            total = total - gain.mean() / len(part)
            num_clipped += int(((ratio > 1.2) & (advantage > 0)).sum() + ((ratio < 0.8) & (advantage < 0)).sum())
            num_tokens += len(ratio)
        optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}, num_clipped / num_tokens


def assert_same_weights(trainer: Any, expected: dict[str, Tensor]) -> None:
    """Equal within rounding, for a trainer whose ε is `SMOOTH_EPS`."""
    for name, tensor in map_weights(trainer.snapshot(WeightsId(0, 1))).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-4)


def poisoned(batch: Sequence[TrainingTrajectory], index: int) -> list[TrainingTrajectory]:
    spoiled = replace(batch[index], behaviour_logprobs=(float("nan"),) * len(batch[index].response_ids))
    return [*batch[:index], spoiled, *batch[index + 1 :]]


class MiniBatchConformance:
    def test_step_of_four_updates_equals_the_reference(self, make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
        folder = make_llama()
        batch = written_by(folder, four_groups(), aside=lambda index: 0.3 - 0.2 * (index % 5))
        expected, clipped = updates_by_hand(folder, batch, passes=2)
        optimizer = OptimizerSpec(learning_rate=LEARNING_RATE, warmup_steps=0, eps=SMOOTH_EPS)
        trainer = make_trainer(folder, optimizer=optimizer, mini_batches=2, passes=2)
        metrics = trainer.train_step(batch).metrics
        assert_same_weights(trainer, expected)
        assert metrics["train/updates"] == 4.0 and metrics["train/skipped"] == 0.0
        assert metrics["train/clip_fraction"] == pytest.approx(clipped) and clipped > 0.0
        assert metrics["train/trained_tokens"] == sum(len(each.response_ids) for each in batch)

    def test_non_finite_mini_batch_is_skipped_alone(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
    ) -> None:
        folder, batch = make_llama(), four_groups()
        for spoiled, sound in ((1, 0), (0, 1)):
            smooth = OptimizerSpec(learning_rate=LEARNING_RATE, warmup_steps=0, eps=SMOOTH_EPS)
            trainer = make_trainer(folder, optimizer=smooth, mini_batches=2)
            alone = make_trainer(folder, optimizer=smooth)
            metrics = trainer.train_step(poisoned(batch, PARTS[spoiled][3])).metrics
            expected = alone.train_step([batch[index] for index in PARTS[sound]]).metrics
            assert (metrics["train/skipped"], metrics["train/updates"]) == (1.0, 1.0)
            assert metrics["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-4)
            assert metrics["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=1e-4)
            assert_same_weights(trainer, dict(map_weights(alone.snapshot(WeightsId(0, 1)))))
            progress = json.loads((save(trainer, tmp_path / str(spoiled)) / "trainer.json").read_text())
            assert (progress["num_updates"], progress["num_skipped"]) == (1, 1)

    def test_updates_resume_exactly_and_warm_up_one_by_one(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
    ) -> None:
        given: dict[str, Any] = {
            "optimizer": OptimizerSpec(learning_rate=1e-2, warmup_steps=4, weight_decay=0.1),
            "mini_batches": 2,
            "passes": 2,
        }
        straight = make_trainer(make_llama(), **given)
        rates = [straight.train_step(trajectories_of(step)).metrics["train/learning_rate"] for step in range(2)]
        assert rates == pytest.approx([1e-2 * 4 / 16, 1e-2 * 8 / 16])
        saved = save(straight, tmp_path)
        resumed = make_trainer(make_llama(), **given)
        resumed.train_step(trajectories_of(99))
        resumed.load(saved)
        metrics = [[each.train_step(trajectories_of(step)).metrics for step in (2, 3)] for each in (straight, resumed)]
        assert metrics[0] == metrics[1] and hash_of(straight) == hash_of(resumed)
        assert metrics[0][-1]["train/learning_rate"] == pytest.approx(1e-2)
