"""Models of transformers' own classes in the trainers: two ranks, with or without sequence parallelism, make the same
steps as one process, and transformers reads the saved models."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from engine.models.families.trained_model import load_model
from engine.policy.lineage import WeightsId
from engine.spec.job import AlgorithmSpec, KlSpec, OptimizerSpec, TrainerSpec
from engine.training.factory import build_trainer
from engine.training.held_weights import HeldWeights
from engine.training.ranks.passes import PolicyPass
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.trainer import Trainer
from engine.weights.snapshot import map_weights
from tests.engine.models.families.tiny import VARIANTS, save_tiny
from tests.engine.training.fsdp.test_ranks import bytes_for_backward, divided
from tests.engine.training.ranks.two_ranks import together, version_of
from tests.engine.training.ranks.worlds import run_ranks
from tests.engine.training.trainer_conformance import (
    SMOOTH_EPS,
    assert_same_steps,
    hash_of,
    save,
    settings,
    tensors_of,
    trajectories_of,
)

# Families that the decoder supports too appear with a setting that it refuses.
FAMILIES: Final = ("llama-biases", "qwen2-windows", "qwen3-windows", "mistral-windows", "glm4", "olmo2", "phi3")
# Without shared sequences all families are sharded alike, with the attention of one process.
SHARED_OR_NOT: Final = [*((family, 2) for family in FAMILIES), ("llama-biases", 1), ("glm4", 1)]

pytestmark = pytest.mark.usefixtures("one_thread")


def settings_for(sharers: int = 1, **trainer: Any) -> TrainerSettings:
    """Settings with micro-batches of several sequences, recomputed layers and a sharded reference."""
    return settings(
        algorithm=AlgorithmSpec(kl=KlSpec(coefficient=0.1), entropy_coefficient=0.01),
        optimizer=OptimizerSpec(learning_rate=1e-3, warmup_steps=3, weight_decay=0.1, eps=SMOOTH_EPS),
        trainer=TrainerSpec(
            micro_batch_tokens=90, sequence_parallel=sharers, **{"activations": "recomputed", **trainer}
        ),
    )


def train(trainer: Trainer, folder: Path) -> list[dict[str, float]]:
    metrics = [trainer.train_step(trajectories_of(step, tools=True)).metrics for step in range(2)]
    save(trainer, folder)
    return metrics


def be_a_rank(world: World, folders: dict[str, Path], results: Path) -> None:
    for family, folder in folders.items():
        for sharers in (sharers for named, sharers in SHARED_OR_NOT if named == family):
            mine = results / family / f"{sharers}-share"
            mine.mkdir(parents=True, exist_ok=True)
            trainer = build_trainer(folder, settings_for(sharers), device="cpu", world=world)
            metrics = train(trainer, mine / "trained")
            before = version_of(trainer)
            trainer.load(results / family / "alone" / "trained")
            (mine / f"rank-{world.index}.json").write_text(
                json.dumps(
                    {"steps": metrics, "weights": [before, version_of(trainer)], "logprobs": trainer.probe().logprobs}
                )
            )
            trainer.close()
        write_low(folder, world, results / family / f"low-{world.index}.json")


def write_low(folder: Path, world: World, file: Path) -> None:
    """Writes a bfloat16 step of ranks that share sequences, and the bytes that a float32 forward pass saves."""
    trainer = build_trainer(folder, settings_for(2, compute_dtype="bfloat16"), device="cpu", world=world)
    low = trainer.train_step(trajectories_of(0, tools=True)).metrics
    trainer.close()
    file.write_text(json.dumps({"low": low, "kept": divided(folder, world)["for_backward"]}))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: save_tiny(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


@pytest.fixture(scope="module")
def results(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("families")
    for family, folder in folders.items():
        alone = results / family / "alone"
        alone.mkdir(parents=True)
        trainer = build_trainer(folder, settings_for(activations="kept"), device="cpu")
        metrics = train(trainer, alone / "trained")
        (alone / "rank-0.json").write_text(
            json.dumps({"steps": metrics, "weights": version_of(trainer), "logprobs": trainer.probe().logprobs})
        )
    assert run_ranks(2, be_a_rank, folders, results) == [0, 0]
    return results


def results_in(folder: Path, rank: int = 0) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((folder / f"rank-{rank}.json").read_text())
    return results


@pytest.mark.long
@pytest.mark.parametrize(("family", "sharers"), SHARED_OR_NOT)
def test_two_ranks_make_the_steps_of_one_process(results: Path, family: str, sharers: int) -> None:
    alone, shared = (results / family / name for name in ("alone", f"{sharers}-share"))
    assert results_in(shared, 0)["steps"] == results_in(shared, 1)["steps"]
    assert_same_steps(
        results_in(shared)["steps"],
        shared / "trained",
        expected=results_in(alone)["steps"],
        expected_checkpoint=alone / "trained",
    )


@pytest.mark.long
@pytest.mark.parametrize(("family", "sharers"), SHARED_OR_NOT)
def test_every_rank_has_the_probe_of_one_process(results: Path, family: str, sharers: int) -> None:
    expected = results_in(results / family / "alone")["logprobs"]
    for rank in range(2):
        assert results_in(results / family / f"{sharers}-share", rank)["logprobs"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_that_share_sequences_make_a_step_in_bfloat16(results: Path, family: str) -> None:
    low = [json.loads((results / family / f"low-{rank}.json").read_text())["low"] for rank in (0, 1)]
    assert low[0] == low[1]
    exact = results_in(results / family / "alone")["steps"][0]
    assert low[0]["train/loss"] == pytest.approx(exact["train/loss"], abs=0.02)
    assert low[0]["train/grad_norm"] == pytest.approx(exact["train/grad_norm"], rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_no_gathered_matrix_is_kept_for_the_backward_pass(results: Path, folders: dict[str, Path], family: str) -> None:
    model = load_model(folders[family], device="cpu")
    alone = bytes_for_backward(PolicyPass(model, settings_for()), model=model)
    assert [json.loads((results / family / f"low-{rank}.json").read_text())["kept"] for rank in (0, 1)] == [alone] * 2


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_resume_from_a_checkpoint_of_one_process(results: Path, family: str) -> None:
    ranks = [results_in(results / family / "2-share", rank)["weights"] for rank in (0, 1)]
    before, loaded = (together(*versions) for versions in zip(*ranks, strict=True))
    assert loaded == bytes.fromhex(results_in(results / family / "alone")["weights"]) != before


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_the_trained_weights(results: Path, folders: dict[str, Path], family: str) -> None:
    from transformers import AutoModelForCausalLM

    trained = results / family / "2-share" / "trained"
    with safe_open(folders[family] / "model.safetensors", framework="pt") as begun:
        stored = {name: tensor for name, tensor in tensors_of(trained).items() if "/" not in name}
        assert sorted(stored) == sorted(begun.keys())
    read: Any = AutoModelForCausalLM.from_pretrained(trained, output_loading_info=True)
    model, problems = read
    assert not any(problems.values())
    assert all(torch.equal(dict(model.named_parameters())[name], tensor) for name, tensor in stored.items())


def test_published_weights_have_the_dtype_of_rollouts(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, "phi3", dtype=torch.bfloat16)
    trainer = build_trainer(folder, settings_for(), device="cpu")
    stored, published = load_file(folder / "model.safetensors"), map_weights(trainer.snapshot(WeightsId(0, 0)))
    assert {name: tensor.dtype for name, tensor in published.items()} == dict.fromkeys(stored, torch.bfloat16)
    assert all(torch.equal(published[name], tensor) for name, tensor in stored.items())
    assert hash_of(HeldWeights(folder)) == hash_of(trainer)


def test_critic_of_such_a_model_resumes_exactly(folders: dict[str, Path], tmp_path: Path) -> None:
    with_critic = replace(settings_for(), algorithm=AlgorithmSpec(name="ppo"))
    straight = build_trainer(folders["olmo2"], with_critic, device="cpu")
    straight.train_step(trajectories_of(0))
    save(straight, tmp_path)
    expected = straight.train_step(trajectories_of(1)).metrics
    resumed = build_trainer(folders["olmo2"], with_critic, device="cpu")
    resumed.load(tmp_path)
    assert resumed.train_step(trajectories_of(1)).metrics == expected


def test_an_adapter_is_refused_by_name(folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=r"trainer\.lora_rank must be 0 for a model of transformers'.*got 3:"):
        build_trainer(folders["glm4"], settings_for(lora_rank=3), device="cpu")


def test_deepspeed_is_refused_by_name(folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=r"trainer\.backend must be torch for this model, got deepspeed"):
        build_trainer(folders["glm4"], settings_for(backend="deepspeed"), device="cpu")


def test_every_family_is_here() -> None:
    assert {family.partition("-")[0] for family in FAMILIES} == {family.partition("-")[0] for family in VARIANTS}
