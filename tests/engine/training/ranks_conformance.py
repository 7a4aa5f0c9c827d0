"""Conformance suite of shardings among ranks, here with a single one: they make the steps of the whole trainer, and
leave the process as it was.

A test module subclasses `RanksConformance`, named Test…, and provides the fixture `build` (conftest.py).
"""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch.distributed as torch_distributed
from torch.distributed import HashStore  # type: ignore[attr-defined]

from engine.spec.job import AlgorithmSpec, KlSpec, OptimizerSpec, TeacherSpec, TrainerSpec
from engine.training.checkpoint.folder import MANIFEST_FILE
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import (
    SMOOTH_EPS,
    MakeTrainer,
    assert_same_steps,
    hash_of,
    save,
    trainer_of,
    trajectories_of,
)
from tests.engine.training.trainer_parts_conformance import LORA, PPO, WITH_KL


class RanksConformance:
    IN_ONE_PROCESS: ClassVar = (TrainerSpec(), TrainerSpec(), TrainerSpec())
    """Of three trainers of one process, of which the first two live at the same time."""

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
    def test_steps_and_checkpoints_equal_the_whole_trainers(
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
        theirs, ours = trainer_of(folder, **given), make_trainer(folder, **given)
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

    # Process state ---------------------------------------------------------------------------------------------------

    def test_trainers_in_one_process_are_independent_and_clean_up(
        self, build: MakeTrainer, make_llama: MakeLlama
    ) -> None:
        """The world lasts until the last trainer has left, and can be entered again."""
        first, second = (build(make_llama(), trainer=spec) for spec in self.IN_ONE_PROCESS[:2])
        untouched = hash_of(second)
        first.train_step(trajectories_of(0))
        assert hash_of(second) == untouched != hash_of(first)
        first.close()
        second.train_step(trajectories_of(0))
        second.close()
        assert not torch_distributed.is_initialized()
        third = build(make_llama(), trainer=self.IN_ONE_PROCESS[2])
        assert hash_of(third) == untouched
        third.close()

    def test_process_group_of_other_code_is_left_alone(self, build: MakeTrainer, make_llama: MakeLlama) -> None:
        torch_distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        try:
            with pytest.raises(ValueError, match="process group"):
                build(make_llama())
            assert torch_distributed.get_world_size() == 1
        finally:
            torch_distributed.destroy_process_group()

    def test_unreadable_model_leaves_no_process_group_behind(
        self, build: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
    ) -> None:
        (tmp_path / "config.json").write_bytes((make_llama() / "config.json").read_bytes())
        with pytest.raises((OSError, ValueError)):
            build(tmp_path)
        assert not torch_distributed.is_initialized()
