"""Conformance of other trainers with the torch trainer: they make the same steps.

A test module subclasses `SameStepsConformance`, named Test…, and provides the fixture `make_trainer`.
"""

from pathlib import Path
from typing import Any

import pytest

from engine.spec.job import AlgorithmSpec, KlSpec, OptimizerSpec, TeacherSpec, TrainerSpec
from engine.training.checkpoint.folder import MANIFEST_FILE
from engine.training.torch_trainer import TorchTrainer
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import (
    SMOOTH_EPS,
    MakeTrainer,
    assert_same_steps,
    save,
    settings,
    trajectories_of,
)
from tests.engine.training.trainer_parts_conformance import LORA, PPO, WITH_KL


class SameStepsConformance:
    @pytest.mark.parametrize(
        ("algorithm", "trainer"),
        [
            (AlgorithmSpec(name="ppo", kl=WITH_KL), TrainerSpec(micro_batch_tokens=60)),
            (AlgorithmSpec(name="gspo", kl=KlSpec(coefficient=0.1, estimator="k1")), LORA),
            (AlgorithmSpec(name="ppo", kl=WITH_KL, entropy_coefficient=0.01), LORA),
            (AlgorithmSpec(name="dapo", teacher=TeacherSpec(source="demo")), TrainerSpec(micro_batch_tokens=60)),
        ],
        ids=["critic", "adapter", "both", "teacher"],
    )
    def test_steps_and_checkpoints_equal_the_torch_trainers(
        self,
        make_trainer: MakeTrainer,
        make_llama: MakeLlama,
        tmp_path: Path,
        algorithm: AlgorithmSpec,
        trainer: TrainerSpec,
    ) -> None:
        """Gradients show in their norms and the moments, and all of them in the float32 weights."""
        folder = make_llama(dtype="bfloat16")
        optimizer = OptimizerSpec(learning_rate=1e-3, warmup_steps=3, weight_decay=0.1, eps=SMOOTH_EPS)
        given: dict[str, Any] = {"algorithm": algorithm, "optimizer": optimizer, "trainer": trainer}
        theirs, ours = TorchTrainer(folder, settings(**given), device="cpu"), make_trainer(folder, **given)
        metrics = [[each.train_step(trajectories_of(step)).metrics for step in range(3)] for each in (theirs, ours)]
        saved = {each: save(each, tmp_path / name) for name, each in (("theirs", theirs), ("ours", ours))}
        assert_same_steps(metrics[1], saved[ours], expected=metrics[0], expected_checkpoint=saved[theirs])
        for number, (loads, of) in enumerate(((theirs, ours), (ours, theirs))):
            loads.load(saved[of])
            again = save(loads, tmp_path / str(number))
            assert (again / MANIFEST_FILE).read_bytes() == (saved[of] / MANIFEST_FILE).read_bytes()

    def test_checkpoint_with_critic_or_adapter_is_refused_without(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
    ) -> None:
        plain = make_trainer(make_llama())
        others: list[dict[str, Any]] = [{"algorithm": PPO}, {"trainer": LORA}]
        for number, given in enumerate(others):
            saved = save(make_trainer(make_llama(), **given), tmp_path / str(number))
            with pytest.raises(ValueError, match="another critic or adapter"):
                plain.load(saved)
