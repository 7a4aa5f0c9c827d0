"""The whole trainer: the conformance suite, and a reward that rises."""

from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import engine.training.whole.sharding as whole_sharding
from engine.inference.port import SamplingParams, SequenceRequest
from engine.inference.torch_engine import TorchRolloutEngine
from engine.models.loading import load_decoder
from engine.policy.lineage import WeightsId
from engine.spec.job import AlgorithmSpec, OptimizerSpec, TrainerSpec
from engine.training.checkpoint.folder import CheckpointUnverified, verify_checkpoint
from engine.training.parts.exact_dtype import WrongDtype
from engine.training.port import TrainingTrajectory
from engine.training.step.scoring import Critic
from engine.weights.port import WeightVersion
from engine.weights.snapshot import map_weights
from tests.engine.conftest import MakeLlama
from tests.engine.training.sharding_conformance import ShardingConformance
from tests.engine.training.step.mini_batch_conformance import MiniBatchConformance
from tests.engine.training.trainer_conformance import TrainerConformance, hash_of, save, trainer_of, trajectories_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.long_except(*vars(TrainerConformance), *vars(MiniBatchConformance))  # fsdp: its parts, in the gate
class TestWhole(ShardingConformance):
    pass


def test_step_with_non_finite_weights_changes_nothing(make_llama: MakeLlama) -> None:
    trainer = trainer_of(make_llama())
    parameter = next(trainer._model.parameters())
    kept = parameter.detach().clone()
    parameter.data[5] = float("inf")
    result = trainer.train_step(trajectories_of(1))
    parameter.data.copy_(kept)
    assert result.metrics["train/skipped"] == 1.0
    assert all(torch.isfinite(torch.tensor(value)) for value in result.metrics.values())
    assert hash_of(trainer) == hash_of(trainer_of(make_llama()))


def test_wrong_dtype_is_named_when_built_and_after_a_load(
    make_llama: MakeLlama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(make_llama(), algorithm=AlgorithmSpec(name="ppo"))
    saved = save(trainer, tmp_path)
    trainer.load(saved)
    critic = trainer._modules["critic"]
    assert isinstance(critic, Critic)
    critic.value_D.data = critic.value_D.data.bfloat16()
    with pytest.raises(WrongDtype, match=r"float32: critic's value_D is bfloat16$"):
        trainer.load(saved)
    monkeypatch.setattr(whole_sharding, "load_model", lambda folder, **_: load_decoder(folder, device="cpu"))
    with pytest.raises(WrongDtype, match=r"float32: policy's embedding_VD is bfloat16, .* more$"):
        trainer_of(make_llama(dtype="bfloat16"))


def test_a_fresh_trainer_can_be_saved_and_loaded(make_llama: MakeLlama, tmp_path: Path) -> None:
    fresh, loaded = trainer_of(make_llama(tied=True)), trainer_of(make_llama(tied=True))
    loaded.load(save(fresh, tmp_path))
    assert fresh.train_step(trajectories_of(0)) == loaded.train_step(trajectories_of(0))
    assert hash_of(fresh) == hash_of(loaded)


def test_refuses_a_torn_checkpoint_and_one_of_another_kind(make_llama: MakeLlama, tmp_path: Path) -> None:
    trainer = trainer_of(make_llama())
    before = hash_of(trainer)
    optimizer_file = save(trainer, tmp_path / "torn") / "optimizer.safetensors"
    optimizer_file.write_bytes(optimizer_file.read_bytes()[:-1] + b"x")
    for folder in (tmp_path / "torn", tmp_path / "nowhere"):
        with pytest.raises(CheckpointUnverified):
            trainer.load(folder)
    with pytest.raises(ValueError, match="another model"):
        trainer.load(save(trainer_of(make_llama(tied=True)), tmp_path / "other"))
    with pytest.raises(ValueError, match="another critic or adapter"):
        trainer.load(save(trainer_of(make_llama(), algorithm=AlgorithmSpec(name="ppo")), tmp_path / "ppo"))
    assert hash_of(trainer) == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"response_ids": (), "behaviour_logprobs": ()}, "at least one token"),
        ({"behaviour_logprobs": (-1.0,)}, "needs one log-prob per response token"),
        ({"written": (True,)}, "needs one written mark per response token"),
        ({"staleness": (0, 1, 2)}, "needs one staleness per response token"),
        ({"reward": float("nan")}, "reward must be finite"),
        ({"prompt_ids": (40,)}, "token ids"),
        ({"prompt_ids": (5,) * 200}, "at most 160 tokens"),
    ],
)
def test_invalid_batch_is_refused_by_name(make_llama: MakeLlama, change: dict[str, object], named: str) -> None:
    sound = TrainingTrajectory(
        group=0, prompt_ids=(5,), response_ids=(6, 7), behaviour_logprobs=(-1.0, -1.0), reward=0.0
    )
    trainer = trainer_of(make_llama())
    with pytest.raises(ValueError, match=named):
        trainer.train_step([sound, replace(sound, **change)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"needs at least one trajectory$"):
        trainer.train_step([])
    with pytest.raises(ValueError, match="at least one token that the model wrote"):
        trainer.train_step([replace(sound, written=(False, False))])


@pytest.mark.long_except("kept0", "kept2")
@pytest.mark.parametrize(
    "kept",
    [
        {"moments": "bfloat16"},
        {"moments": "float8"},
        {"offload": True},
        {"moments": "bfloat16", "offload": True},
        {"moments": "float8", "offload": True},
    ],
)
def test_moments_stored_apart_are_saved_and_resumed_exactly(
    make_llama: MakeLlama, tmp_path: Path, kept: dict[str, Any]
) -> None:
    """With a critic and an adapter, each with its own moments."""
    given: dict[str, Any] = {
        "algorithm": AlgorithmSpec(name="ppo"),
        "trainer": TrainerSpec(lora_rank=3),
        "optimizer": OptimizerSpec(learning_rate=1e-2, warmup_steps=0, **kept),
    }
    straight = trainer_of(make_llama(), **given)
    for step in range(2):
        straight.train_step(trajectories_of(step))
    middle = save(straight, tmp_path / "middle")
    state = load_file(middle / "optimizer.safetensors")
    dtypes = {tensor.dtype for name, tensor in state.items() if "exp_avg" in name and tensor.dim() > 1}
    assert dtypes == {torch.bfloat16 if "moments" in kept else torch.float32}
    resumed = trainer_of(make_llama(), **given)
    resumed.train_step(trajectories_of(99))
    resumed.load(middle)
    metrics = [[each.train_step(trajectories_of(step)).metrics for step in (2, 3)] for each in (straight, resumed)]
    assert metrics[0] == metrics[1]
    ends = [save(each, tmp_path / name) for name, each in (("straight", straight), ("resumed", resumed))]
    assert verify_checkpoint(ends[0]) == verify_checkpoint(ends[1])


def test_moments_in_host_memory_equal_those_on_the_device(make_llama: MakeLlama) -> None:
    near, far = (
        trainer_of(make_llama(), optimizer=OptimizerSpec(learning_rate=1e-2, warmup_steps=0, offload=offload))
        for offload in (False, True)
    )
    for step in range(3):
        assert near.train_step(trajectories_of(step)) == far.train_step(trajectories_of(step))
    assert hash_of(near) == hash_of(far)


@pytest.mark.parametrize("moments", ["bfloat16", "float8"])
def test_moments_are_loaded_in_the_jobs_dtype(make_llama: MakeLlama, tmp_path: Path, moments: str) -> None:
    exact = OptimizerSpec(learning_rate=1e-2, warmup_steps=0)
    rounded = exact.model_copy(update={"moments": moments})
    first = trainer_of(make_llama(), optimizer=rounded)
    first.train_step(trajectories_of(0))
    states = [load_file(save(first, tmp_path / "0") / "optimizer.safetensors")]
    for number, optimizer in enumerate((exact, rounded), start=1):
        taken = trainer_of(make_llama(), optimizer=optimizer)
        taken.load(tmp_path / str(number - 1))
        states.append(load_file(save(taken, tmp_path / str(number)) / "optimizer.safetensors"))
    assert {tensor.dtype for name, tensor in states[1].items() if "exp_avg" in name} == {torch.float32}
    for name, tensor in states[0].items():
        assert torch.equal(states[1][name], tensor.to(states[1][name].dtype))
        assert torch.equal(states[2][name], tensor) and states[2][name].dtype == tensor.dtype


def test_bfloat16_rollouts_are_trained_in_float32(make_llama: MakeLlama) -> None:
    optimizer = OptimizerSpec(learning_rate=1e-6, warmup_steps=0)
    trainer = trainer_of(make_llama(dtype="bfloat16"), optimizer=optimizer)
    snapshots: list[WeightVersion] = []
    for step in range(20):
        trainer.train_step(trajectories_of(0))
        snapshots.append(trainer.snapshot(WeightsId(0, step)))
    first, last = map_weights(snapshots[0]), map_weights(snapshots[-1])
    assert {tensor.dtype for tensor in last.values()} == {torch.bfloat16}
    changed = sum(int((first[name] != last[name]).sum()) for name in first)
    assert 0 < changed < 0.2 * trainer.num_parameters  # small steps add up until they cross a rounding boundary


def test_a_heavy_tailed_step_is_padded_little(make_llama: MakeLlama) -> None:
    lengths = [round(2 * 1.12**k) for k in range(36)]  # median 13, longest 106
    batch = [
        TrainingTrajectory(
            group=number // 4,
            prompt_ids=(5,),
            response_ids=(6,) * length,
            behaviour_logprobs=(-3.0,) * length,
            reward=float(number % 2),
        )
        for number, length in enumerate(lengths * 2)
    ]
    metrics = trainer_of(make_llama(), trainer=TrainerSpec(micro_batch_tokens=512)).train_step(batch).metrics
    assert metrics["train/padding_fraction"] < 0.1


def test_reward_rises_through_engine_trainer_and_install(make_llama: MakeLlama) -> None:
    """The reward is the share of token 5 in a response."""
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
        means.append(mean(each.reward for each in batch))
        rollouts.install(trainer.snapshot(WeightsId(0, step + 1)))
    assert means[0] < 0.2
    assert means[-1] > 0.6
