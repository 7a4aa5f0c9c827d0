"""What every trainer does with its optional parts: critic, reference, adapter. Part of `ShardingConformance`."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import engine.training.step.head as head
from engine.models.loading import load_decoder, model_tensors
from engine.policy.lineage import WeightsId
from engine.spec.job import AlgorithmSpec, CriticSpec, KlSpec, OptimizerSpec, TeacherSpec, TrainerSpec
from engine.training.checkpoint.folder import MANIFEST_FILE, WritePart, write_checkpoint
from engine.training.parts.layout import own_part
from engine.training.step.mini_batch import UpdateLoss
from engine.weights.installing import Installer
from engine.weights.port import WeightVersion
from engine.weights.snapshot import map_weights
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import MakeTrainer, hash_of, save, trajectories_of

LORA: Final = TrainerSpec(lora_rank=3, lora_alpha=12.0)
WITH_KL: Final = KlSpec(coefficient=0.1)
PPO: Final = AlgorithmSpec(name="ppo")

MakeLayout = Callable[[str], Path]


# In both layers; five experts, whose rows do not divide evenly by an even number of ranks.
MIXTURE: Final = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}


def save_qwen(folder: Path, layout: str, *, dtype: str = "float32", **changes: Any) -> Path:
    from transformers import (
        Qwen2Config,
        Qwen2ForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
    )

    configure, build, more = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM, {}),
        "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, MIXTURE),
    }[layout]
    torch.manual_seed(0)
    usual: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 160,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
        "eos_token_id": 3,
    }
    model = build(configure(**usual | more | changes)).to(getattr(torch, dtype))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return folder


def with_spoiled_critic(checkpoint: Path, folder: Path) -> Path:
    """A valid copy of the checkpoint in which one value of the critic is NaN."""
    state = load_file(checkpoint / "optimizer.safetensors")
    state["critic_master/value.weight"][0] = float("nan")
    kept = [file.relative_to(checkpoint).as_posix() for file in checkpoint.rglob("*.*") if file.name != MANIFEST_FILE]
    parts: dict[str, WritePart] = {name: partial(shutil.copyfile, checkpoint / name) for name in kept}
    write_checkpoint(folder, parts | {"optimizer.safetensors": partial(save_file, state)})
    return folder


def installed(folder: Path, *versions: WeightVersion) -> dict[str, Tensor]:
    """The weights of a replica that installed these versions in order."""
    model = load_decoder(folder, device="cpu")
    installer = Installer(folder, device="cpu", is_of_base=True)
    for version in versions:
        installer.install(version, model_tensors(model))
    return model_tensors(model)


class PartsConformance:
    @pytest.mark.parametrize(
        ("algorithm", "trainer", "tied"),
        [
            (AlgorithmSpec(name="ppo", kl=WITH_KL), TrainerSpec(), False),
            (AlgorithmSpec(name="ppo", kl=WITH_KL), TrainerSpec(), True),
            (AlgorithmSpec(name="gspo", kl=KlSpec(coefficient=0.1, estimator="k1")), LORA, True),
            (AlgorithmSpec(name="ppo", entropy_coefficient=0.01), LORA, False),
        ],
    )
    def test_resume_is_exact_with_critic_reference_and_adapter(
        self,
        make_trainer: MakeTrainer,
        make_llama: MakeLlama,
        tmp_path: Path,
        algorithm: AlgorithmSpec,
        trainer: TrainerSpec,
        tied: bool,
    ) -> None:
        """The checkpoint is written during training; the load discards what the other trainer did before."""
        folder = make_llama(tied=tied)
        straight = make_trainer(folder, algorithm=algorithm, trainer=trainer)
        for step in range(3):
            straight.train_step(trajectories_of(step))
        write = straight.prepare_save(tmp_path)
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(write)
            metrics = [straight.train_step(trajectories_of(step)).metrics for step in range(3, 6)]
            written.result()
        resumed = make_trainer(folder, algorithm=algorithm, trainer=trainer)
        resumed.train_step(trajectories_of(99))
        resumed.load(tmp_path)
        assert [resumed.train_step(trajectories_of(step)).metrics for step in range(3, 6)] == metrics
        assert hash_of(resumed) == hash_of(straight)

    def test_critic_learns_the_value_of_answers(self, make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
        """A group's prompt determines the reward of its answers."""
        batch = [replace(each, prompt_ids=(10 + each.group,), reward=float(each.group)) for each in trajectories_of(0)]
        trainer = make_trainer(
            make_llama(),
            algorithm=AlgorithmSpec(name="ppo", critic=CriticSpec(learning_rate=1e-2)),
            optimizer=OptimizerSpec(learning_rate=1e-9, warmup_steps=0),
        )
        metrics = [trainer.train_step(batch).metrics for _ in range(30)]
        assert metrics[0]["train/value_mean"] == 0.0
        assert metrics[0]["train/explained_variance"] == pytest.approx(0.0, abs=1e-6)
        assert metrics[-1]["train/explained_variance"] > 0.8
        assert metrics[-1]["train/value_loss"] < 0.3 * metrics[0]["train/value_loss"]

    def test_gradient_of_the_critic_does_not_move_the_policy(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama
    ) -> None:
        def policy_after(learning_rate: float) -> str:
            critic = CriticSpec(learning_rate=learning_rate)
            trainer = make_trainer(make_llama(), algorithm=AlgorithmSpec(name="ppo", critic=critic))
            trainer.train_step(trajectories_of(0))
            return hash_of(trainer)

        assert policy_after(1e-5) == policy_after(1.0)

    def test_non_finite_critic_skips_the_policys_update_too(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
    ) -> None:
        trainer = make_trainer(make_llama(), algorithm=PPO)
        trainer.train_step(trajectories_of(0))
        trainer.load(with_spoiled_critic(save(trainer, tmp_path / "sound"), tmp_path / "spoiled"))
        before = hash_of(trainer)
        assert trainer.train_step(trajectories_of(1)).metrics["train/skipped"] == 1.0
        assert hash_of(trainer) == before

    @pytest.mark.parametrize("whose", ["_policy_loss", "_value_loss"])
    def test_non_finite_gradient_skips_policy_and_critic(
        self,
        make_trainer: MakeTrainer,
        make_llama: MakeLlama,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        whose: str,
    ) -> None:
        trainer = make_trainer(make_llama(), algorithm=PPO)
        trainer.train_step(trajectories_of(0))
        before = save(trainer, tmp_path / "before")
        sound: Callable[..., Tensor] = getattr(UpdateLoss, whose)

        def spoiled(*given: Any) -> Tensor:
            loss = sound(*given)
            loss.register_hook(lambda gradient: gradient * float("nan"))  # type: ignore[no-untyped-call]
            return loss

        with monkeypatch.context() as patch:
            patch.setattr(UpdateLoss, whose, spoiled)
            metrics = trainer.train_step(trajectories_of(1)).metrics
        assert metrics["train/skipped"] == 1.0 and "train/loss" in metrics and "train/value_loss" in metrics
        after = save(trainer, tmp_path / "after")
        for part in ("model.safetensors", "optimizer.safetensors"):
            assert (before / part).read_bytes() == (after / part).read_bytes()
        assert trainer.train_step(trajectories_of(2)).metrics["train/skipped"] == 0.0

    @pytest.mark.parametrize("trainer", [TrainerSpec(), LORA])
    def test_kl_to_the_reference_begins_at_zero_and_is_limited(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, trainer: TrainerSpec
    ) -> None:
        def distances(coefficient: float) -> list[float]:
            algorithm = AlgorithmSpec(name="reinforce_pp", kl=KlSpec(coefficient=coefficient))
            learner = make_trainer(make_llama(), algorithm=algorithm, trainer=trainer)
            return [learner.train_step(trajectories_of(0)).metrics["train/kl"] for _ in range(12)]

        free, held = distances(1e-9), distances(3.0)
        assert free[0] == pytest.approx(0.0, abs=1e-6)
        assert abs(held[-1]) < 0.8 * abs(free[-1])

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("trainer", [TrainerSpec(), LORA, TrainerSpec(compute_dtype="bfloat16")])
    def test_policy_that_is_its_own_teacher_does_not_move(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, trainer: TrainerSpec, dtype: str
    ) -> None:
        """In whichever dtype the teacher's weights are held, its results equal the policy's bit for bit."""
        folder = make_llama(dtype=dtype)
        alone = TeacherSpec(source=str(folder), reward_weight=0.0)
        learner = make_trainer(folder, algorithm=AlgorithmSpec(teacher=alone), trainer=trainer)
        before = hash_of(learner)
        metrics = learner.train_step(trajectories_of(0, tools=True)).metrics
        assert metrics["train/teacher_kl"] == metrics["train/grad_norm"] == metrics["train/skipped"] == 0.0
        assert hash_of(learner) == before

    @pytest.mark.parametrize("layout", ["llama", "qwen2", "qwen3"])
    def test_peft_loads_the_adapter_and_equals_merged_weights(
        self, make_trainer: MakeTrainer, make_layout: MakeLayout, tmp_path: Path, layout: str
    ) -> None:
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        folder = make_layout(layout)
        trainer = make_trainer(folder, trainer=LORA)
        for step in range(3):
            trainer.train_step(trajectories_of(step))
        save(trainer, tmp_path)
        ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
        with torch.no_grad():
            base = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
            merged = AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits
            adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), str(tmp_path / "adapter"))
            assert (merged - base).abs().max() > 0.1
            torch.testing.assert_close(adapted(ids).logits, merged, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("layout", ["llama", "qwen2", "qwen3"])
    def test_every_layout_trains_in_bfloat16_with_critic_and_adapter(
        self, make_trainer: MakeTrainer, make_layout: MakeLayout, layout: str
    ) -> None:
        folder, algorithm = make_layout(layout), AlgorithmSpec(name="ppo", kl=WITH_KL, entropy_coefficient=0.01)
        exact = make_trainer(folder, algorithm=algorithm, trainer=LORA)
        near = make_trainer(folder, algorithm=algorithm, trainer=LORA.model_copy(update={"compute_dtype": "bfloat16"}))
        for step in range(2):
            expected, metrics = (each.train_step(trajectories_of(step)).metrics for each in (exact, near))
            assert metrics["train/skipped"] == 0.0
            assert metrics["train/loss"] == pytest.approx(expected["train/loss"], abs=0.03)
            assert metrics["train/entropy"] == pytest.approx(expected["train/entropy"], abs=0.03)
            assert metrics["train/value_loss"] == pytest.approx(expected["train/value_loss"], abs=0.03)

    @pytest.mark.parametrize("lora_rank", [0, 3])
    def test_bfloat16_compute_is_near_float32_and_keeps_its_weights(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, lora_rank: int
    ) -> None:
        exact, trainer = (
            make_trainer(make_llama(), trainer=TrainerSpec(lora_rank=lora_rank, compute_dtype=dtype))
            for dtype in ("float32", "bfloat16")
        )
        expected, near = (each.train_step(trajectories_of(0)).metrics for each in (exact, trainer))
        assert near["train/loss"] == pytest.approx(expected["train/loss"], abs=0.02)
        assert near["train/loss"] != expected["train/loss"]
        assert near["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=0.05)
        assert {own_part(parameter).dtype for parameter in trainer._model.parameters()} == {torch.float32}

    def test_logits_in_chunks_give_the_same_gradient(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each chunk is recomputed in the backward pass, after a sharding has freed the head and gathered it again."""
        norms = []
        for logits in (head.LOGITS_ON_A_CPU, 40 * 16):
            monkeypatch.setattr(head, "LOGITS_ON_A_CPU", logits)
            trainer = make_trainer(make_llama())
            norms.append([trainer.train_step(trajectories_of(seed)).metrics["train/grad_norm"] for seed in range(2)])
        assert norms[1] == pytest.approx(norms[0], rel=1e-5)

    def test_adapter_begins_at_the_base_and_moves_only_its_matrices(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama
    ) -> None:
        trainer = make_trainer(make_llama(), trainer=LORA)
        before = installed(make_llama(), trainer.snapshot(WeightsId(0, 0)))
        base = map_weights(make_trainer(make_llama()).snapshot(WeightsId(0, 0)))
        assert before.keys() == base.keys() and all(torch.equal(before[name], base[name]) for name in base)
        trainer.train_step(trajectories_of(0))
        after = installed(make_llama(), trainer.snapshot(WeightsId(0, 1)))
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        assert moved == {name for name in before if name.endswith("_proj.weight")}
        for name in moved:
            assert torch.linalg.matrix_rank((after[name] - before[name]).double(), rtol=1e-4) <= 3

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_replicas_merge_an_adapter_bit_for_bit(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path, dtype: str
    ) -> None:
        """The same as in a checkpoint, which are the trainer's own. Only A and B are published."""
        folder = make_llama(dtype=dtype)
        trainer = make_trainer(folder, trainer=LORA)
        trainer.train_step(trajectories_of(0))
        version = trainer.snapshot(WeightsId(0, 1))
        saved = save(trainer, tmp_path)
        merged, replica = load_file(saved / "model.safetensors"), installed(folder, version)
        assert merged.keys() == replica.keys()
        for name, tensor in merged.items():
            assert torch.equal(replica[name], tensor) and replica[name].dtype == tensor.dtype, name
        adapter = load_file(saved / "adapter" / "adapter_model.safetensors")
        own = map_weights(version)
        assert own.keys() == adapter.keys() and all(torch.equal(own[name], adapter[name]) for name in adapter)

    def test_an_adapters_checkpoint_has_moments_of_the_adapter_only(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
    ) -> None:
        trainer = make_trainer(make_llama(), trainer=LORA)
        trainer.train_step(trajectories_of(0))
        folder = save(trainer, tmp_path)
        state = load_file(folder / "optimizer.safetensors")
        adapter = load_file(folder / "adapter" / "adapter_model.safetensors")
        kinds = ("master", "exp_avg", "exp_avg_sq")
        assert state.keys() == {f"{kind}/{name}" for kind in kinds for name in adapter} | {"random/cpu"}
        assert all(torch.equal(state[f"master/{name}"], tensor) for name, tensor in adapter.items())
        assert len(adapter) == 2 * 2 * 7 and {min(tensor.shape) for tensor in adapter.values()} == {3}
