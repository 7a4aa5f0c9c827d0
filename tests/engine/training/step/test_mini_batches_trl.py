"""A step of four updates equals four updates with TRL's losses, for TRL's algorithms and corrections.

B answers of a mini-batch    T tokens of the longest
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from engine.algorithms.advantages import group_advantages
from engine.spec.job import AlgorithmSpec, CorrectionSpec, OptimizerSpec
from engine.spec.recipes import AlgorithmName, CorrectionName
from engine.training.factory import build_trainer
from engine.training.port import TrainingTrajectory
from tests.engine.algorithms.trl_loss import trl_loss, trl_weights
from tests.engine.conftest import MakeLlama
from tests.engine.training.step.mini_batch_conformance import (
    LEARNING_RATE,
    PARTS,
    assert_same_weights,
    four_groups,
    own_logprobs,
    written_by,
)
from tests.engine.training.trainer_conformance import MAX_NEW_TOKENS, SMOOTH_EPS, settings

pytestmark = pytest.mark.usefixtures("one_thread")


def updates_by_trl(
    folder: Path, batch: Sequence[TrainingTrajectory], spec: AlgorithmSpec, *, passes: int
) -> dict[str, Tensor]:
    """Weights after an update of torch's AdamW on every mini-batch's loss."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=1e-3, weight_decay=0.0)
    rewards, groups = (torch.tensor([getattr(each, name) for each in batch]) for name in ("reward", "group"))
    advantages = group_advantages(rewards, groups, "group_mean" if spec.name == "dr_grpo" else "group_std")
    with torch.no_grad():
        start = [own_logprobs(model, each) for each in batch]
    written = [torch.tensor(each.behaviour_logprobs) for each in batch]
    corrects = spec.corrects_by != "none"
    for part in PARTS * passes:
        start_BT, written_BT, mask_BT = (
            pad_sequence([row(index) for index in part], batch_first=True)
            for row in (
                start.__getitem__,
                written.__getitem__,
                lambda index: torch.ones(len(start[index]), dtype=torch.int64),
            )
        )
        loss = trl_loss(
            spec,
            pad_sequence([own_logprobs(model, batch[index]) for index in part], batch_first=True),
            mask_BT=mask_BT,
            advantages_B=advantages[list(part)],
            old_logprobs_BT=start_BT if corrects else written_BT,
            weights_BT=trl_weights(spec, start_BT - written_BT) if corrects else None,
            max_new_tokens=MAX_NEW_TOKENS,
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "correction"),
    [
        ("grpo", "truncated"),
        ("grpo", "masked"),
        ("grpo", "icepop"),
        ("dr_grpo", "truncated"),
        ("dapo", "truncated"),
        ("gspo", "none"),
        ("grpo", "none"),
        ("cispo", "none"),
    ],
)
def test_four_updates_equal_those_with_trls_losses(
    make_llama: MakeLlama, name: AlgorithmName, correction: CorrectionName
) -> None:
    folder = make_llama()
    spec = AlgorithmSpec(name=name, correction=CorrectionSpec(name=correction, cap=1.2, low=0.8, high=1.2))
    batch = written_by(folder, four_groups(), aside=lambda index: 0.3 - 0.2 * (index % 5))
    given = settings(
        algorithm=spec,
        optimizer=OptimizerSpec(learning_rate=LEARNING_RATE, warmup_steps=0, eps=SMOOTH_EPS),
        mini_batches=len(PARTS),
        passes=2,
    )
    trainer = build_trainer(folder, given, device="cpu")
    metrics = trainer.train_step(batch).metrics
    assert_same_weights(trainer, updates_by_trl(folder, batch, spec, passes=2))
    assert name == "cispo" or metrics["train/clip_fraction"] > 0.0
