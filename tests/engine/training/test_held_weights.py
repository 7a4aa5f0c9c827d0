"""HeldWeights publishes the same bytes as the trainer that wrote the checkpoint."""

from pathlib import Path

import pytest
import torch

from engine.spec.job import AlgorithmSpec, TrainerSpec
from engine.training.checkpoint.folder import CheckpointUnverified
from engine.training.factory import build_trainer
from engine.training.held_weights import HeldWeights
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import hash_of, save, settings, trajectories_of, whole_weights

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("algorithm", "trainer"),
    [
        (AlgorithmSpec(), TrainerSpec()),
        (AlgorithmSpec(name="ppo"), TrainerSpec()),
        (AlgorithmSpec(), TrainerSpec(lora_rank=3, lora_alpha=12.0)),
    ],
)
def test_evaluated_weights_equal_the_trainers_published_ones(
    make_llama: MakeLlama, tmp_path: Path, algorithm: AlgorithmSpec, trainer: TrainerSpec, dtype: str
) -> None:
    folder = make_llama(dtype=dtype)
    trained = build_trainer(folder, settings(algorithm=algorithm, trainer=trainer), device="cpu")
    trained.train_step(trajectories_of(0))
    held = HeldWeights(folder)
    before = whole_weights(held, folder)
    held.load(save(trained, tmp_path))
    weights, expected = whole_weights(held, folder), whole_weights(trained, folder)
    assert weights.keys() == expected.keys() and held.num_parameters == trained.num_parameters
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert any(not torch.equal(before[name], expected[name]) for name in expected)


def test_weights_without_a_checkpoint_are_the_models_own(make_llama: MakeLlama) -> None:
    folder = make_llama()
    untrained = build_trainer(folder, settings(), device="cpu")
    assert hash_of(HeldWeights(folder)) == hash_of(untrained)


def test_torn_checkpoint_or_one_of_another_model_is_refused(make_llama: MakeLlama, tmp_path: Path) -> None:
    saved = save(build_trainer(make_llama(), settings(), device="cpu"), tmp_path)
    with pytest.raises(ValueError, match="another model"):
        HeldWeights(make_llama(vocab_size=48)).load(saved)
    (saved / "optimizer.safetensors").unlink()
    HeldWeights(make_llama()).load(saved)  # does not need the optimizer's state
    with (saved / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(CheckpointUnverified):
        HeldWeights(make_llama()).load(saved)
