"""The optional parts of a trainer (critic, reference, adapter), and steps of several ranks."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from engine.models.loading import load_decoder
from engine.policy.lineage import WeightsId
from engine.spec.job import AlgorithmSpec, CorrectionSpec, KlSpec, TeacherSpec, TrainerSpec
from engine.spec.recipes import AlgorithmName
from engine.training.parts.lora import LowRankUpdate
from engine.training.port import TrainingTrajectory
from engine.training.step.loss import StepFactory
from engine.training.step.metrics import UpdateOutcome
from engine.training.step.micro_batch import batch_step
from engine.training.step.mini_batch import MicroLoss
from engine.training.step.models import StepModels, needs_critic, needs_reference
from engine.training.step.rounding import Rounding
from engine.training.step.scoring import Critic, score_tokens
from engine.weights.snapshot import map_weights
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import hash_of, settings, trainer_of, trajectories_of
from tests.engine.training.trainer_parts_conformance import LORA, WITH_KL

pytestmark = pytest.mark.usefixtures("one_thread")

TEACHER = TeacherSpec(source="demo", coefficient=0.3)

OF_THE_LAYOUT = ("train/padding_fraction", "train/shared_fraction")


# Reference ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["k1", "k2"])
def test_every_estimator_limits_the_kl_to_the_reference(make_llama: MakeLlama, estimator: str) -> None:
    def distances(coefficient: float) -> list[float]:
        kl = KlSpec.model_validate({"coefficient": coefficient, "estimator": estimator})
        spec = AlgorithmSpec(name="reinforce_pp", kl=kl, correction=CorrectionSpec(name="none"))
        learner = trainer_of(make_llama(), algorithm=spec)
        return [learner.train_step(trajectories_of(0)).metrics["train/kl"] for _ in range(12)]

    free, held = distances(1e-9), distances(3.0)
    assert free[0] == pytest.approx(0.0, abs=1e-6)
    assert abs(held[-1]) < 0.8 * abs(free[-1])


def test_no_reference_is_loaded_without_a_kl_coefficient(make_llama: MakeLlama) -> None:
    trainer = trainer_of(make_llama())
    assert trainer._modules.keys() == {"policy"}
    assert "train/kl" not in trainer.train_step(trajectories_of(0)).metrics


def test_entropy_that_is_rewarded_falls_less(make_llama: MakeLlama) -> None:
    def entropy_after(coefficient: float) -> float:
        learner = trainer_of(make_llama(), algorithm=AlgorithmSpec(entropy_coefficient=coefficient))
        return [learner.train_step(trajectories_of(0)).metrics["train/entropy"] for _ in range(6)][-1]

    assert entropy_after(1.0) > entropy_after(0.0) + 0.05


def test_overlong_penalty_lowers_advantages(make_llama: MakeLlama) -> None:
    batch = [replace(each, reward=1.0, cut=number == 0) for number, each in enumerate(trajectories_of(0))]
    plain = trainer_of(make_llama()).train_step(batch)
    shaped = trainer_of(make_llama(), algorithm=AlgorithmSpec(overlong_tokens=20)).train_step(batch)
    assert set(plain.advantages) == {0.0}
    assert not [name for name in shaped.metrics if name.startswith("reward/")], "of the environment's rewards alone"
    assert shaped.metrics["train/overlong_penalty"] < 0.0
    assert min(shaped.advantages[:4]) == shaped.advantages[0] < 0.0


# Adapter --------------------------------------------------------------------------------------------------------------


def keep_gradients(part: Any, gradients: dict[str, Tensor]) -> float:
    part.take_gradients()
    gradients |= {name: own.grad for name, own in part._own.items() if own.grad is not None}
    return 0.0


def test_a_step_of_an_adapter_is_the_projected_step_of_the_whole(make_llama: MakeLlama) -> None:
    """B is zero at first, so its gradient is the whole matrix's times Aᵀ, and A has none."""
    whole, low = trainer_of(make_llama()), trainer_of(make_llama(), trainer=LORA)
    gradients: dict[str, Tensor] = {}
    for trainer in (whole, low):
        part: Any = trainer._sharding.parts[0]
        part.clip, part.step = partial(keep_gradients, part, gradients), lambda rate_share: None
        trainer.train_step(trajectories_of(0))
    assert low._adapter is not None
    name = "base_model.model.model.layers.1.self_attn.k_proj"
    a = low._adapter.parameters[f"{name}.lora_A.weight"]
    of_k = gradients["layers.1.qkv_QD"][32:48]
    torch.testing.assert_close(gradients[f"{name}.lora_B.weight"], 4.0 * of_k @ a.T, rtol=1e-4, atol=1e-6)
    assert gradients[f"{name}.lora_A.weight"].abs().max() == 0.0


def test_adapter_names_do_not_access_parameters(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint is written during the next pass, in which DeepSpeed's stage 3 gathers every accessed parameter."""
    adapter = trainer_of(make_llama(), trainer=LORA)._adapter
    assert adapter is not None
    expected = list(adapter.parameters)
    monkeypatch.setattr(torch.nn.Module, "get_parameter", None)
    assert adapter.names == expected


def test_merged_weights_are_not_kept_for_the_backward_pass(
    make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeping them would cost a second model, with ZeRO 3 a whole one on every rank."""
    merged: list[Any] = []
    apply_to = LowRankUpdate.apply_to

    def watched(update: LowRankUpdate, weight: Tensor) -> Tensor:
        matrix = apply_to(update, weight)
        merged.append(StorageWeakRef(matrix.untyped_storage()))  # type: ignore[no-untyped-call]
        return matrix

    monkeypatch.setattr(LowRankUpdate, "apply_to", watched)
    trainer = trainer_of(make_llama(), trainer=LORA)
    losses = next(next(trainer._steps.begin(trajectories_of(0)).updates()))
    assert len(merged) == 2 * 4 and all(reference.expired() for reference in merged)
    losses.policy.backward()  # type: ignore[no-untyped-call]
    assert len(merged) == 2 * 4 + 7, "merged again in the backward pass, except the first, whose input has no gradient"
    assert all(reference.expired() for reference in merged)


# Ranks ----------------------------------------------------------------------------------------------------------------


class ThreadRanks:
    """A rank in a thread of this process."""

    def __init__(self, index: int, barrier: Barrier, board: list[Tensor]) -> None:
        self.index = index
        self.count = barrier.parties
        self._barrier = barrier
        self._board = board

    def sum(self, tensor: Tensor) -> Tensor:
        return self._gather(tensor).sum(0)

    def max(self, tensor: Tensor) -> Tensor:
        return self._gather(tensor).amax(0)

    def _gather(self, tensor: Tensor) -> Tensor:
        self._board[self.index] = tensor.clone()
        self._barrier.wait(timeout=60)
        gathered = torch.stack(self._board)
        self._barrier.wait(timeout=60)
        return gathered


def gradients_of_ranks(
    folder: Path,
    algorithm: AlgorithmSpec,
    num_ranks: int,
    batch: list[TrainingTrajectory],
    *,
    micro_batch_tokens: int = 60,
    mini_batches: int = 1,
    passes: int = 1,
) -> tuple[Tensor, list[Any]]:
    """(sum of all gradients over ranks and updates, results of each rank). Applies no update."""
    barrier, board = Barrier(num_ranks), [torch.zeros(0)] * num_ranks
    trainer = TrainerSpec().model_copy(update={"micro_batch_tokens": micro_batch_tokens})  # fewer than a spec may set
    given = settings(algorithm=algorithm, trainer=trainer, mini_batches=mini_batches, passes=passes)

    def one_rank(index: int) -> tuple[Tensor, object]:
        policy, reference, teacher = (load_decoder(folder, device="cpu") for _ in range(3))
        critic = Critic(load_decoder(folder, device="cpu"))
        critic.value_D.data.fill_(0.1)
        factory = StepFactory(
            given,
            num_weights=1,
            attention_width=0,
            rounding=Rounding(of_terms=0.0, of_logits=0.0, vocab_size=40),
            models=StepModels(
                policy=lambda batch: score_tokens(policy, batch, temperature=1.0),
                reference=(lambda batch: score_tokens(reference, batch, temperature=2.0))
                if needs_reference(algorithm)
                else None,
                teacher=(lambda batch: score_tokens(teacher, batch, temperature=0.5))
                if algorithm.has_teacher
                else None,
                critic=critic if needs_critic(algorithm) else None,
            ),
            device="cpu",
            ranks=ThreadRanks(index, barrier, board),
        )
        step, num_passes, lasts = factory.begin(batch), 0, 0

        def backward(losses: MicroLoss) -> None:
            nonlocal num_passes, lasts
            num_passes, lasts = num_passes + 1, lasts + losses.is_last
            for each in losses.of_parts:
                each.backward()  # type: ignore[no-untyped-call]

        def update(finite: bool) -> UpdateOutcome:
            return UpdateOutcome(updated=finite, grad_norms={}, learning_rate=0.0)

        metrics = step.train(backward=backward, update=update)
        assert metrics["train/updates"] == lasts
        every = [*policy.parameters(), *critic.parameters()]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in every])
        return flat, (metrics, step.advantages, num_passes)

    with ThreadPoolExecutor(num_ranks) as pool:
        ranks = list(pool.map(one_rank, range(num_ranks)))
    return torch.stack([gradient for gradient, _ in ranks]).sum(0), [results for _, results in ranks]


@pytest.mark.parametrize("updates", [{}, {"mini_batches": 3, "passes": 2}], ids=["one update", "six"])
@pytest.mark.parametrize(
    ("name", "estimator", "num"), [("ppo", "k1", 12), ("gspo", "k1", 12), ("grpo", "k3", 2), ("dapo", "k2", 1)]
)
def test_gradients_of_ranks_add_up_to_those_of_one(
    make_llama: MakeLlama, name: AlgorithmName, estimator: str, num: int, updates: dict[str, int]
) -> None:
    """Also if a rank has no work: three ranks, one or two answers."""
    kl = KlSpec.model_validate({"coefficient": 0.1, "estimator": estimator})
    algorithm = AlgorithmSpec(name=name, kl=kl, teacher=TEACHER)
    batch = trajectories_of(0, num=num, tools=True)
    alone, (expected,) = gradients_of_ranks(make_llama(), algorithm, 1, batch, **updates)
    together, each = gradients_of_ranks(make_llama(), algorithm, 3, batch, **updates)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)
    assert each[0] == each[1] == each[2]
    for metric, value in expected[0].items():
        if metric not in OF_THE_LAYOUT:
            assert each[0][0][metric] == pytest.approx(value, rel=1e-4, abs=1e-5)


def of_one_prompt_each(
    batch: list[TrainingTrajectory], *, flat: frozenset[int] = frozenset()
) -> list[TrainingTrajectory]:
    """Gives all samples of a group the same prompt, and those of a `flat` group the same reward."""
    prompts = {each.group: each.prompt_ids for each in batch}
    return [
        replace(each, prompt_ids=prompts[each.group], reward=1.0 if each.group in flat else float(index % 2))
        for index, each in enumerate(batch)
    ]


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_shared_prompt_gives_the_gradients_of_repeated_prompts(make_llama: MakeLlama, num_ranks: int) -> None:
    algorithm = AlgorithmSpec(name="grpo", kl=WITH_KL)
    batch = of_one_prompt_each(trajectories_of(0, tools=True))
    shared, ((mine, *_), *_) = gradients_of_ranks(make_llama(), algorithm, num_ranks, batch, micro_batch_tokens=10_000)
    apart, ((alone, *_),) = gradients_of_ranks(make_llama(), algorithm, 1, batch, micro_batch_tokens=1)
    torch.testing.assert_close(shared, apart, rtol=1e-4, atol=1e-6)
    assert mine["train/shared_fraction"] > 0.05 and alone["train/shared_fraction"] == 0.0


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_group_without_signal_is_measured_without_gradient(
    make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch, num_ranks: int
) -> None:
    algorithm, batch = AlgorithmSpec(name="grpo"), of_one_prompt_each(trajectories_of(0), flat=frozenset({0, 2}))
    quick, ((metrics, _, num_passes), *_) = gradients_of_ranks(make_llama(), algorithm, num_ranks, batch)
    monkeypatch.setattr(StepFactory, "_silent", lambda *_: frozenset())
    slow, ((before, _, num_before),) = gradients_of_ranks(make_llama(), algorithm, 1, batch)
    torch.testing.assert_close(quick, slow, rtol=1e-4, atol=1e-6)
    assert quick.any() and num_passes < num_before, "two of three groups have no backward pass"
    for metric, value in before.items():
        if metric not in OF_THE_LAYOUT:
            assert metrics[metric] == pytest.approx(value, rel=1e-4, abs=1e-5), metric


@pytest.mark.parametrize(
    "algorithm",
    [AlgorithmSpec(name="grpo", entropy_coefficient=0.1), AlgorithmSpec(kl=WITH_KL), AlgorithmSpec(teacher=TEACHER)],
)
def test_group_without_signal_still_has_entropy_and_kl_gradients(
    make_llama: MakeLlama, algorithm: AlgorithmSpec
) -> None:
    batch = of_one_prompt_each(trajectories_of(0), flat=frozenset({0, 2}))
    everyone, _ = gradients_of_ranks(make_llama(), algorithm, 1, batch)
    fewer, _ = gradients_of_ranks(make_llama(), algorithm, 1, [each for each in batch if each.group == 1])
    assert not torch.allclose(everyone, fewer / 3, rtol=1e-3)


def test_step_without_any_signal_still_moves_the_optimizer(make_llama: MakeLlama) -> None:
    """Its momentum still acts: the gradient is zero, but the update is not skipped."""
    trainer = trainer_of(make_llama())
    trainer.train_step(of_one_prompt_each(trajectories_of(0)))
    before = hash_of(trainer)
    metrics = trainer.train_step(of_one_prompt_each(trajectories_of(1), flat=frozenset({0, 1, 2}))).metrics
    assert metrics["train/grad_norm"] == 0.0 and metrics["train/skipped"] == 0.0 and hash_of(trainer) != before


EVERY_TERM = [
    AlgorithmSpec(name="dapo", teacher=TEACHER),
    AlgorithmSpec(name="grpo", entropy_coefficient=0.1, kl=WITH_KL),
    AlgorithmSpec(name="dr_grpo", overlong_tokens=20),
    AlgorithmSpec(name="reinforce_pp"),
    AlgorithmSpec(name="ppo", kl=KlSpec(coefficient=0.1, estimator="k1")),
]


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("algorithm", EVERY_TERM, ids=lambda spec: spec.name)
def test_untrusted_reward_is_not_part_of_the_step(
    make_llama: MakeLlama, algorithm: AlgorithmSpec, num_ranks: int
) -> None:
    batch = trajectories_of(0, tools=True)
    doubtful = [replace(each, trusted=index not in (1, 6)) for index, each in enumerate(batch)]
    tampered = [each if each.trusted else replace(each, reward=1_000.0) for each in doubtful]
    trusted = [each for each in doubtful if each.trusted]
    masked, ((mine, *_), *_) = gradients_of_ranks(make_llama(), algorithm, num_ranks, tampered)
    without, ((alone, *_),) = gradients_of_ranks(make_llama(), algorithm, 1, trusted)
    torch.testing.assert_close(masked, without, rtol=1e-4, atol=1e-6)
    assert mine["train/trained_tokens"] == alone["train/trained_tokens"]
    assert mine["train/advantage_std"] == pytest.approx(alone["train/advantage_std"], rel=1e-4)


def test_masked_truncated_trajectory_is_not_part_of_the_step(make_llama: MakeLlama) -> None:
    batch = [replace(each, cut=index in (1, 6)) for index, each in enumerate(trajectories_of(0))]
    whole = [each for each in batch if not each.cut]
    masked, ((mine, *_),) = gradients_of_ranks(make_llama(), AlgorithmSpec(mask_truncated=True), 1, batch)
    without, ((alone, *_),) = gradients_of_ranks(make_llama(), AlgorithmSpec(), 1, whole)
    torch.testing.assert_close(masked, without, rtol=1e-4, atol=1e-6)
    assert mine["train/trained_tokens"] == alone["train/trained_tokens"]
    unmasked, _ = gradients_of_ranks(make_llama(), AlgorithmSpec(), 1, batch)
    assert not torch.allclose(unmasked, masked)


def test_untrusted_trajectory_has_no_advantage(make_llama: MakeLlama) -> None:
    batch = trajectories_of(0)
    rewards = [*range(len(batch))]
    graded = [replace(each, reward=float(reward)) for each, reward in zip(batch, rewards, strict=True)]
    doubtful = [replace(each, trusted=index != 5) for index, each in enumerate(graded)]
    advantages = trainer_of(make_llama()).train_step(doubtful).advantages
    assert len(advantages) == len(batch)
    assert [index for index, each in enumerate(advantages) if each == 0.0] == [5]
    assert advantages[6] == pytest.approx(0.3333333 / 1.5275252, abs=1e-5), "of 4, 6 and 7"


@pytest.mark.parametrize("algorithm", EVERY_TERM, ids=lambda spec: spec.name)
def test_step_without_trusted_rewards_learns_nothing(make_llama: MakeLlama, algorithm: AlgorithmSpec) -> None:
    trainer = trainer_of(make_llama(), algorithm=algorithm)
    before = hash_of(trainer)
    result = trainer.train_step([replace(each, trusted=False) for each in trajectories_of(0)])
    assert result.metrics["train/grad_norm"] == 0.0 and set(result.advantages) == {0.0}
    assert hash_of(trainer) == before


def test_written_tokens_have_one_rank_and_passes_are_equal() -> None:
    batch = trajectories_of(3, num=11, tools=True)
    ranks = [batch_step(batch, max_tokens=50, device="cpu", rank=rank, num_ranks=3) for rank in range(3)]
    assert len({len(each.micro_batches) for each in ranks}) == 1
    slots = [slot for each in ranks for one in each.micro_batches if not one.idle for slot in one.slots_N.tolist()]
    assert sorted(slots) == list(range(sum(sum(each.written) for each in batch)))


def test_chunked_logits_give_the_same_loss_and_weights(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    def step() -> tuple[float, dict[str, Tensor]]:
        trainer = trainer_of(make_llama())
        loss = trainer.train_step(trajectories_of(0)).metrics["train/loss"]
        return loss, map_weights(trainer.snapshot(WeightsId(0, 0)))

    whole_loss, whole = step()
    monkeypatch.setattr("engine.training.step.head.LOGITS_ON_A_CPU", 40 * 7)
    chunked_loss, chunked = step()
    assert chunked_loss == pytest.approx(whole_loss, abs=1e-6)
    for name, tensor in whole.items():
        torch.testing.assert_close(chunked[name], tensor, rtol=1e-3, atol=1e-4)
