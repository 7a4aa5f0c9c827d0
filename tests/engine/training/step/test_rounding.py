"""The bound of the gap: bfloat16 rounding stays within it, and faults of a policy as peaked as a trained one do not."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from engine.commands.fit import DEMO_FOLDER
from engine.fit.known_models import known_shape
from engine.inference.port import SamplingParams, SequenceRequest
from engine.inference.torch_engine import TorchRolloutEngine
from engine.models.loading import read_config
from engine.spec.job import TrainerSpec
from engine.training.factory import build_trainer
from engine.training.port import TrainingTrajectory
from engine.training.step.activations import shape_of
from engine.training.step.gap import GapTally
from engine.training.step.head import head_scores
from engine.training.step.micro_batch import batch_step
from engine.training.step.ranks import Alone
from engine.training.step.rounding import Rounding
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import settings

VOCAB = 152_000
BF16 = torch.bfloat16
GAP, BOUND = "train/logprob_gap_p90", "train/logprob_gap_bound"


def test_bfloat16_rounds_65536_times_more_than_float32(make_llama: MakeLlama) -> None:
    """Except in the sums of products, which are float32 in both."""
    config = read_config(make_llama())

    def of_terms(published: torch.dtype, products: torch.dtype, **sizes: Any) -> float:
        shape = shape_of(replace(config, **sizes))
        return Rounding.between(shape, published=published, products=products).of_terms

    exact, rounded = of_terms(torch.float32, torch.float32), of_terms(BF16, BF16)
    assert 1_000 < rounded / exact < 65_536
    assert of_terms(BF16, BF16, num_layers=32) > of_terms(BF16, BF16, num_layers=16)
    assert exact < of_terms(BF16, torch.float32) < rounded


# Logits as a trained policy's, at the vocabulary of Qwen3 ---------------------------------------------------------


def peaked_logits(num: int) -> Tensor:
    """Four of five positions have one likely word, every fifth has eight."""
    draw = torch.Generator().manual_seed(0)
    logits_NV = torch.randn(num, VOCAB, generator=draw)
    single = num * 4 // 5
    logits_NV[:single, 0] += 13.0
    logits_NV[single:, :8] += torch.linspace(9.0, 6.0, 8)
    return logits_NV


def tempered(logits_NV: Tensor) -> Tensor:
    return logits_NV / 0.6


def noisy(logits_NV: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return logits_NV + 0.5 * torch.randn(logits_NV.shape, generator=draw)


def with_one_layer_replaced(logits_NV: Tensor) -> Tensor:
    """Models a logit as the sum of 36 layers' equal contributions with independent signs, one of them replaced."""
    others_NV = torch.randn(logits_NV.shape, generator=torch.Generator().manual_seed(2))
    replaced_NV: Tensor = logits_NV * (35 / 36) + others_NV * (1 / 36) ** 0.5
    return replaced_NV


def metrics_of(behaviour_N: Tensor, begun_N: Tensor, logits_N2: Tensor, rounding: Rounding) -> dict[str, float]:
    num = len(begun_N)
    trajectory = TrainingTrajectory(
        group=0,
        prompt_ids=(0,),
        response_ids=(0,) * num,
        behaviour_logprobs=tuple(behaviour_N.tolist()),
        reward=0.0,
    )
    (batch,) = batch_step([trajectory], max_tokens=num + 1, device="cpu").micro_batches
    tally = GapTally([num], device="cpu", rounding=rounding)
    tally.count(batch, begun_N, logits_N2)
    return tally.metrics(Alone())


def drawn(logits_NV: Tensor) -> tuple[Tensor, Tensor]:
    """Samples tokens; returns them and their log-probs."""
    draw = torch.Generator().manual_seed(3)
    all_NV = logits_NV.log_softmax(dim=1)
    targets_N1 = all_NV.exp().multinomial(1, generator=draw)
    return targets_N1.squeeze(1), all_NV.gather(1, targets_N1).squeeze(1)


@pytest.mark.parametrize("fault", [tempered, noisy, with_one_layer_replaced])
def test_fault_of_a_peaked_policy_of_8b_exceeds_bound(fault: Callable[[Tensor], Tensor]) -> None:
    logits_NV = peaked_logits(50)
    targets_N, behaviour_N = drawn(fault(logits_NV))
    begun_N, _, logits_N2 = head_scores(
        torch.eye(len(logits_NV)),
        logits_NV.t(),
        targets_N,
        temperature=1.0,
        dtype=torch.float32,
        train_entropy=False,
        chunk=len(logits_NV),
    )
    rounding = Rounding.between(known_shape("Qwen3-8B"), published=BF16, products=BF16)
    metrics = metrics_of(behaviour_N, begun_N, logits_N2, rounding)
    assert metrics[GAP] > metrics[BOUND] > 0.05


# Measured rounding ------------------------------------------------------------------------------------------------


def stream(num: int, width: int, num_writes: int, dtype: torch.dtype) -> Tensor:
    """A normed residual stream: branches are added in `dtype`, each with the six roundings of its own results."""
    draw = torch.Generator().manual_seed(4)
    stream_ND = torch.randn(num, width, generator=draw).to(dtype)
    for _ in range(num_writes):
        branch_ND = torch.randn(num, width, generator=draw).to(dtype)
        for _ in range(5):
            scale_D = torch.rand(width, generator=draw).add(0.5).to(dtype)
            branch_ND = (branch_ND * scale_D) / scale_D
        stream_ND = stream_ND + branch_ND
    return functional.rms_norm(stream_ND, (width,))


def peaked_head(normed_ND: Tensor, vocab_size: int) -> Tensor:
    """A head with one very likely word for each position, followed by random words."""
    num, width = normed_ND.shape
    draw = torch.Generator().manual_seed(5)
    weight_VD: Tensor = torch.randn(vocab_size, width, generator=draw) / width**0.5
    weight_VD[:num] += torch.linspace(4.0, 16.0, num).unsqueeze(1) * normed_ND / width
    return weight_VD


def gap_of_rounding(vocab_size: int, products: torch.dtype) -> dict[str, float]:
    num, shape = 48, replace(known_shape("Qwen3-8B"), vocab_size=vocab_size)
    writes = 2 * shape.num_layers
    exact_ND = stream(num, shape.width, writes, torch.float32)
    rounded_ND = stream(num, shape.width, writes, BF16)
    weight_VD = peaked_head(exact_ND, vocab_size)
    targets_N, behaviour_N = drawn((rounded_ND @ weight_VD.to(BF16).t()).float())
    begun_N, _, logits_N2 = head_scores(
        exact_ND, weight_VD, targets_N, temperature=1.0, dtype=products, train_entropy=False, chunk=num
    )
    return metrics_of(behaviour_N, begun_N, logits_N2, Rounding.between(shape, published=BF16, products=products))


@pytest.mark.parametrize("products", [torch.float32, BF16])
def test_rounding_at_the_width_of_8b_stays_within_bound(products: torch.dtype) -> None:
    metrics = gap_of_rounding(4_096, products)
    assert 0.0 < metrics[GAP] < metrics[BOUND]


@pytest.mark.long
def test_rounding_at_the_size_of_8b_head_stays_within_bound() -> None:
    metrics = gap_of_rounding(VOCAB, BF16)
    assert 0.0 < metrics[GAP] < metrics[BOUND]


# Engine against trainer, with a trained model ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model in bfloat16."""
    folder = tmp_path_factory.mktemp("demo")
    return copied(DEMO_FOLDER, folder, {name: value.to(BF16) for name, value in weights_of(DEMO_FOLDER).items()})


def weights_of(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def copied(source: Path, folder: Path, weights: dict[str, Tensor]) -> Path:
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    config = json.loads((source / "config.json").read_text()) | {"dtype": dtype}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


def answers(folder: Path, temperature: float = 1.0) -> list[TrainingTrajectory]:
    rollouts, batch = TorchRolloutEngine(folder, max_batch=32, device="cpu"), list[TrainingTrajectory]()
    prompts = {str(number): (6 + number, 7) for number in range(32)}
    rollouts.submit(
        [
            SequenceRequest(
                sequence_id=name,
                prompt_ids=prompt,
                sampling=SamplingParams(max_new_tokens=20, temperature=temperature, seed=int(name)),
            )
            for name, prompt in prompts.items()
        ]
    )
    while len(batch) < len(prompts):
        batch += [
            TrainingTrajectory(
                group=0,
                prompt_ids=prompts[each.sequence_id],
                response_ids=each.token_ids,
                behaviour_logprobs=each.logprobs,
                reward=float(5 in each.token_ids),
            )
            for each in rollouts.step()
        ]
    return batch


def is_within(folder: Path, batch: list[TrainingTrajectory], products: str = "float32") -> bool:
    given = settings(trainer=TrainerSpec.model_validate({"compute_dtype": products}))
    metrics = build_trainer(folder, given, device="cpu").train_step(batch).metrics
    return metrics[GAP] <= metrics[BOUND]


@pytest.mark.parametrize("products", ["float32", "bfloat16"])
def test_trained_model_in_bfloat16_is_within_bound(demo: Path, products: str) -> None:
    assert is_within(demo, answers(demo), products)


def test_trained_model_in_float32_is_within_bound() -> None:
    assert is_within(DEMO_FOLDER, answers(DEMO_FOLDER))


@pytest.mark.parametrize("temperature", [0.6, 0.8])
def test_trained_model_at_another_temperature_exceeds_bound(demo: Path, temperature: float) -> None:
    assert not is_within(demo, answers(demo, temperature), "bfloat16")


def test_trained_model_with_a_wrong_layer_exceeds_bound(demo: Path, tmp_path: Path) -> None:
    weights = weights_of(demo)
    wrong = {name: weights[name.replace("layers.1.", "layers.2.")].clone() for name in weights}
    assert not is_within(demo, answers(copied(demo, tmp_path, wrong)), "bfloat16")
