"""The promise of every trainer that is not the torch trainer: it makes the torch trainer's steps.

A test module subclasses `SameStepsConformance`, named Test…, and gives the fixture `make_trainer`.
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
    def test_critic_reference_and_adapter_take_the_torch_trainers_steps_and_each_goes_on_from_the_other(
        self,
        make_trainer: MakeTrainer,
        make_llama: MakeLlama,
        tmp_path: Path,
        algorithm: AlgorithmSpec,
        trainer: TrainerSpec,
    ) -> None:
        """Gradients show in their norms and the moments, and all of it in the float32 weights."""
        folder = make_llama(dtype="bfloat16")
        optimizer = OptimizerSpec(learning_rate=1e-3, warmup_steps=3, weight_decay=0.1, eps=SMOOTH_EPS)
        asked: dict[str, Any] = {"algorithm": algorithm, "optimizer": optimizer, "trainer": trainer}
        theirs, ours = TorchTrainer(folder, settings(**asked), device="cpu"), make_trainer(folder, **asked)
        told = [[each.train_step(trajectories_of(step)).metrics for step in range(3)] for each in (theirs, ours)]
        saved = {each: save(each, tmp_path / name) for name, each in (("theirs", theirs), ("ours", ours))}
        assert_same_steps(told[1], saved[ours], expected=told[0], expected_checkpoint=saved[theirs])
        for number, (loads, of) in enumerate(((theirs, ours), (ours, theirs))):
            loads.load(saved[of])
            again = save(loads, tmp_path / str(number))
            assert (again / MANIFEST_FILE).read_bytes() == (saved[of] / MANIFEST_FILE).read_bytes()

    def test_what_was_trained_with_a_critic_or_an_adapter_is_not_gone_on_from_without(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
    ) -> None:
        plain = make_trainer(make_llama())
        others: list[dict[str, Any]] = [{"algorithm": PPO}, {"trainer": LORA}]
        for number, asked in enumerate(others):
            saved = save(make_trainer(make_llama(), **asked), tmp_path / str(number))
            with pytest.raises(ValueError, match="another critic or adapter"):
                plain.load(saved)
