"""The trainer: whole steps or none, exact resume, and reward that rises."""

import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import engine.training.torch_trainer as torch_trainer
from engine.inference.port import SamplingParams, SequenceRequest
from engine.inference.torch_engine import TorchRolloutEngine
from engine.spec.job import AlgorithmSpec, OptimizerSpec
from engine.training.checkpoint import MANIFEST_FILE, CheckpointUnverified, verify_checkpoint
from engine.training.port import TrainingTrajectory
from engine.training.torch_trainer import TorchTrainer
from engine.weights.port import WeightVersion
from engine.weights.snapshot import map_weights
from tests.engine.conftest import MakeLlama

pytestmark = pytest.mark.usefixtures("one_thread")


def trainer_of(folder: Path, **optimizer: float) -> TorchTrainer:
    settings = {"learning_rate": 1e-2, "warmup_steps": 0, **optimizer}
    return TorchTrainer(
        folder,
        optimizer=OptimizerSpec.model_validate(settings),
        algorithm=AlgorithmSpec(),
        temperature=1.0,
        seed=0,
        device="cpu",
    )


def trajectories_of(seed: int, *, logprob: float = -3.6, num: int = 12) -> list[TrainingTrajectory]:
    rng = random.Random(seed)
    made = []
    for index in range(num):
        response = tuple(rng.randrange(4, 40) for _ in range(rng.randint(1, 30)))
        made.append(
            TrainingTrajectory(
                group=index // 4,
                prompt_ids=tuple(rng.randrange(4, 40) for _ in range(rng.randint(1, 9))),
                response_ids=response,
                behaviour_logprobs=(logprob,) * len(response),
                reward=float(rng.random() < 0.5),
            )
        )
    return made


def hash_of(trainer: TorchTrainer) -> str:
    return trainer.snapshot(0).manifest.sha256


def test_a_step_changes_the_weights_and_names_its_metrics(make_llama: MakeLlama) -> None:
    trainer = trainer_of(make_llama())
    before, batch = hash_of(trainer), trajectories_of(0)
    result = trainer.train_step(batch)
    assert hash_of(trainer) != before
    assert len(result.advantages) == len(batch)
    assert result.metrics.keys() == {
        "train/loss",
        "train/entropy",
        "train/clip_fraction",
        "train/ratio_mean",
        "train/behaviour_kl",
        "train/logprob_gap",
        "train/grad_norm",
        "train/learning_rate",
        "train/skipped",
        "train/tokens",
        "reward/mean",
        "reward/std",
        "length/mean",
        "length/p99",
    }
    assert result.metrics["train/tokens"] == sum(len(each.prompt_ids + each.response_ids) for each in batch)


@pytest.mark.parametrize("poison", ["behaviour", "weights"])
def test_a_step_that_is_not_finite_is_skipped_whole(make_llama: MakeLlama, tmp_path: Path, poison: str) -> None:
    trainer = trainer_of(make_llama(), warmup_steps=4)
    trainer.train_step(trajectories_of(0))
    trainer.save(tmp_path / "before")
    if poison == "behaviour":
        result = trainer.train_step(trajectories_of(1, logprob=float("nan")))
    else:
        parameter = next(trainer._model.parameters())
        kept = parameter.detach().clone()
        parameter.data[5] = float("inf")
        result = trainer.train_step(trajectories_of(1))
        parameter.data.copy_(kept)
    assert result.metrics["train/skipped"] == 1.0
    assert all(torch.isfinite(torch.tensor(value)) for value in result.metrics.values())
    trainer.save(tmp_path / "after")
    for part in ("model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "before" / part).read_bytes() == (tmp_path / "after" / part).read_bytes()
    after = trainer.train_step(trajectories_of(2)).metrics
    assert after["train/skipped"] == 0.0
    assert after["train/learning_rate"] == pytest.approx(1e-2 * 2 / 4)


def test_the_learning_rate_warms_up(make_llama: MakeLlama) -> None:
    trainer = trainer_of(make_llama(), warmup_steps=3, learning_rate=3e-4)
    rates = [trainer.train_step(trajectories_of(i)).metrics["train/learning_rate"] for i in range(5)]
    assert rates == pytest.approx([1e-4, 2e-4, 3e-4, 3e-4, 3e-4])


def test_micro_batches_change_nothing_but_rounding(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trainer_of(make_llama()).train_step(trajectories_of(0)).metrics
    monkeypatch.setattr(torch_trainer, "MICRO_BATCH_TOKENS", 50)
    parts = trainer_of(make_llama()).train_step(trajectories_of(0)).metrics
    assert parts == pytest.approx(whole, rel=1e-4, abs=1e-6)


def test_a_snapshot_is_a_copy(make_llama: MakeLlama) -> None:
    trainer = trainer_of(make_llama())
    snapshot = trainer.snapshot(4)
    kept = bytes(snapshot.buffer)
    trainer.train_step(trajectories_of(0))
    assert snapshot.version == 4
    assert bytes(snapshot.buffer) == kept
    assert hash_of(trainer) != snapshot.manifest.sha256


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resume_is_exact(make_llama: MakeLlama, tmp_path: Path, tied: bool, dtype: str) -> None:
    folder = make_llama(tied=tied, dtype=dtype)
    straight = trainer_of(folder, warmup_steps=4, weight_decay=0.1)
    for step in range(3):
        straight.train_step(trajectories_of(step))
    straight.save(tmp_path)
    resumed = trainer_of(folder, warmup_steps=4, weight_decay=0.1)
    resumed.train_step(trajectories_of(99))  # whatever it did before is gone
    resumed.load(tmp_path)
    assert hash_of(resumed) == hash_of(straight)
    for step in (3, 4):
        one, other = straight.train_step(trajectories_of(step)), resumed.train_step(trajectories_of(step))
        assert one == other
    straight.save(tmp_path / "straight")
    resumed.save(tmp_path / "resumed")
    assert verify_checkpoint(tmp_path / "straight") == verify_checkpoint(tmp_path / "resumed")


def test_a_fresh_trainer_can_be_saved_and_loaded(make_llama: MakeLlama, tmp_path: Path) -> None:
    fresh, loaded = trainer_of(make_llama()), trainer_of(make_llama())
    fresh.save(tmp_path)
    loaded.load(tmp_path)
    assert fresh.train_step(trajectories_of(0)) == loaded.train_step(trajectories_of(0))
    assert hash_of(fresh) == hash_of(loaded)


def test_a_checkpoint_is_a_model_folder(make_llama: MakeLlama, tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    trainer = trainer_of(make_llama(tied=True))
    trainer.train_step(trajectories_of(0))
    trainer.save(tmp_path)
    assert hash_of(trainer_of(tmp_path)) == hash_of(trainer)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert LlamaForCausalLM.from_pretrained(tmp_path).num_parameters() == trainer.num_parameters


def test_refuses_a_folder_that_does_not_verify_and_one_of_another_model(make_llama: MakeLlama, tmp_path: Path) -> None:
    trainer = trainer_of(make_llama())
    trainer.save(tmp_path / "torn")
    before = hash_of(trainer)
    shutil.copytree(tmp_path / "torn", tmp_path / "unsealed")
    (tmp_path / "unsealed" / MANIFEST_FILE).unlink()
    optimizer_file = tmp_path / "torn" / "optimizer.safetensors"
    optimizer_file.write_bytes(optimizer_file.read_bytes()[:-1] + b"x")
    for folder in (tmp_path / "torn", tmp_path / "unsealed", tmp_path / "nowhere"):
        with pytest.raises(CheckpointUnverified):
            trainer.load(folder)
    trainer_of(make_llama(tied=True)).save(tmp_path / "other")
    with pytest.raises(ValueError, match="another model"):
        trainer.load(tmp_path / "other")
    assert hash_of(trainer) == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"response_ids": (), "behaviour_logprobs": ()}, "at least one token"),
        ({"behaviour_logprobs": (-1.0,)}, "one log-prob for each"),
        ({"reward": float("nan")}, "reward must be finite"),
        ({"prompt_ids": (40,)}, "token ids"),
        ({"prompt_ids": (5,) * 200}, "at most 160 tokens"),
    ],
)
def test_refuses_a_batch_that_makes_no_sense(make_llama: MakeLlama, change: dict[str, object], named: str) -> None:
    from dataclasses import replace

    sound = TrainingTrajectory(
        group=0, prompt_ids=(5,), response_ids=(6, 7), behaviour_logprobs=(-1.0, -1.0), reward=0.0
    )
    trainer = trainer_of(make_llama())
    with pytest.raises(ValueError, match=named):
        trainer.train_step([sound, replace(sound, **change)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        trainer.train_step([])


def test_bfloat16_rollouts_are_trained_in_float32(make_llama: MakeLlama) -> None:
    trainer = trainer_of(make_llama(dtype="bfloat16"), learning_rate=1e-6)
    snapshots: list[WeightVersion] = []
    for step in range(20):
        trainer.train_step(trajectories_of(0))
        snapshots.append(trainer.snapshot(step))
    first, last = map_weights(snapshots[0]), map_weights(snapshots[-1])
    assert {tensor.dtype for tensor in last.values()} == {torch.bfloat16}
    changed = sum(int((first[name] != last[name]).sum()) for name in first)
    assert 0 < changed < 0.2 * trainer.num_parameters  # small steps add up, and show where they cross a rounding edge


def test_reward_rises_through_engine_trainer_and_install(make_llama: MakeLlama) -> None:
    """Say token 5: the share of fives in a response is its reward."""
    folder = make_llama()
    rollouts = TorchRolloutEngine(folder, max_batch=32, device="cpu")
    trainer = trainer_of(folder)
    means = []
    for step in range(12):
        rollouts.submit(
            [
                SequenceRequest(
                    sequence_id=f"{prompt}/{sample}",
                    prompt_ids=(6 + prompt, 7),
                    sampling=SamplingParams(max_new_tokens=6, temperature=1.0, seed=step * 100 + prompt * 8 + sample),
                )
                for prompt in range(6)
                for sample in range(8)
            ]
        )
        batch = []
        while rollouts.view().num_running + rollouts.view().num_waiting:
            for output in rollouts.step():
                assert set(output.versions) == {step}
                batch.append(
                    TrainingTrajectory(
                        group=int(output.sequence_id.split("/")[0]),
                        prompt_ids=(6 + int(output.sequence_id.split("/")[0]), 7),
                        response_ids=output.token_ids,
                        behaviour_logprobs=output.logprobs,
                        reward=output.token_ids.count(5) / 6,
                    )
                )
        metrics = trainer.train_step(batch).metrics
        assert metrics["train/logprob_gap"] < 1e-5  # same weights, so rollouts and trainer agree on every token
        means.append(metrics["reward/mean"])
        rollouts.install(trainer.snapshot(step + 1))
    assert means[0] < 0.2
    assert means[-1] > 0.6
