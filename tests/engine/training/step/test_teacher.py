"""On-policy distillation: a frozen teacher gives the log-prob of every token that the policy wrote."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.inference.port import SamplingParams, SequenceOutput, SequenceRequest
from engine.inference.torch_engine import TorchRolloutEngine
from engine.policy.lineage import WeightsId
from engine.spec.job import AlgorithmSpec, CorrectionSpec, OptimizerSpec, TeacherSpec
from engine.training.factory import build_trainer
from engine.training.port import TrainingTrajectory
from engine.training.trainer import Trainer
from tests.engine.conftest import MakeLlama
from tests.engine.training.trainer_conformance import hash_of, settings, trajectories_of

pytestmark = pytest.mark.usefixtures("one_thread")


def taught_by(folder: Path, *, coefficient: float = 1.0, reward_weight: float = 0.0) -> TeacherSpec:
    return TeacherSpec(source=str(folder), coefficient=coefficient, reward_weight=reward_weight)


def logprobs(folder: Path, each: TrainingTrajectory) -> tuple[Tensor, dict[str, Tensor]]:
    """The answer's log-probs by transformers' own model, and the model's parameters."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder)
    ids = torch.tensor([[*each.prompt_ids, *each.response_ids]])
    all_TV = model(ids).logits[0, len(each.prompt_ids) - 1 : -1].log_softmax(-1)
    own_T: Tensor = all_TV.gather(1, torch.tensor(each.response_ids).unsqueeze(1)).squeeze(1)
    return own_T, dict(model.named_parameters())


def gradients_of(trainer: Trainer, batch: list[TrainingTrajectory]) -> dict[str, Tensor]:
    """Gradients by Hugging Face names, before clipping."""
    gradients: dict[str, Tensor] = {}

    part: Any = trainer._sharding.parts[0]

    def keep() -> float:
        part.take_gradients()
        own = {name: each.grad for name, each in part._own.items() if each.grad is not None}
        gradients.update({name: view.clone() for name, view in part._part.views(own).items()})
        return 0.0

    part.clip = keep
    trainer.train_step(batch)
    return gradients


@pytest.mark.parametrize("reward_weight", [0.0, 0.5])
def test_gradient_equals_the_hand_written_one(make_llama: MakeLlama, reward_weight: float) -> None:
    """Σ (c·(log π - log π_T) - w·A)·∇log π over on-policy tokens, divided by their number."""
    folder, teacher = make_llama(), make_llama(tied=True, kv_heads=1)
    (one,) = trajectories_of(5, num=1)
    answers = [replace(one, reward=1.0), replace(one, response_ids=one.response_ids[::-1], reward=0.0)]
    own = [tuple(logprobs(folder, each)[0].tolist()) for each in answers]
    batch = [replace(each, behaviour_logprobs=its) for each, its in zip(answers, own, strict=True)]
    expected: dict[str, Tensor] = {}
    num_tokens = 2 * len(one.response_ids)
    for each, advantage in zip(batch, (0.5, -0.5), strict=True):  # less the mean of the two
        policy_T, parameters = logprobs(folder, each)
        gaps_T = (policy_T - logprobs(teacher, each)[0]).detach()
        loss = ((0.3 * gaps_T - reward_weight * advantage) * policy_T).sum() / num_tokens
        loss.backward()  # type: ignore[no-untyped-call]
        for name, parameter in parameters.items():
            assert parameter.grad is not None
            expected[name] = expected.get(name, torch.zeros(())) + parameter.grad
    algorithm = AlgorithmSpec(
        name="dr_grpo",
        correction=CorrectionSpec(name="none"),
        teacher=taught_by(teacher, coefficient=0.3, reward_weight=reward_weight),
    )
    given = replace(settings(algorithm=algorithm), max_new_tokens=len(one.response_ids))  # Dr. GRPO divides by it
    gradients = gradients_of(build_trainer(folder, given, device="cpu"), batch)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-3, atol=1e-5)


def answers_of(trainer: Trainer, rollouts: TorchRolloutEngine, step: int) -> list[TrainingTrajectory]:
    """On-policy answers to three prompts."""
    num = 24
    rollouts.install(trainer.snapshot(WeightsId(0, step)))
    requests = [
        SequenceRequest(
            sequence_id=str(number),
            prompt_ids=(6 + number % 3,),
            sampling=SamplingParams(max_new_tokens=8, temperature=1.0, seed=num * step + number),
        )
        for number in range(num)
    ]
    rollouts.submit(requests)
    outputs: list[SequenceOutput] = []
    while len(outputs) < num:
        outputs += rollouts.step()
    return [
        TrainingTrajectory(
            group=int(each.sequence_id),
            prompt_ids=(6 + int(each.sequence_id) % 3,),
            response_ids=each.token_ids,
            behaviour_logprobs=each.logprobs,
            reward=0.0,
        )
        for each in outputs
    ]


def distances(make_llama: MakeLlama) -> list[float]:
    folder, teacher = make_llama(), make_llama(tied=True, kv_heads=1)
    algorithm = AlgorithmSpec(group_size=1, teacher=taught_by(teacher))
    given = settings(algorithm=algorithm, optimizer=OptimizerSpec(learning_rate=1e-2, warmup_steps=0))
    trainer = build_trainer(folder, given, device="cpu")
    rollouts = TorchRolloutEngine(folder, max_batch=24, device="cpu")
    return [trainer.train_step(answers_of(trainer, rollouts, step)).metrics["train/teacher_kl"] for step in range(40)]


def test_policy_without_rewards_approaches_its_teacher(make_llama: MakeLlama) -> None:
    """A group of one needs no baseline. The metric is the KL itself, since answers are on-policy."""
    kls = distances(make_llama)
    assert 0.0 < max(kls[-5:]) < min(kls[:5])


def test_teacher_is_frozen_and_not_part_of_checkpoints(make_llama: MakeLlama, tmp_path: Path) -> None:
    algorithm = AlgorithmSpec(teacher=taught_by(make_llama(tied=True, kv_heads=1), reward_weight=1.0))
    trainer, plain = (build_trainer(make_llama(), settings(algorithm=each), device="cpu") for each in (algorithm, None))
    teacher = trainer._modules["teacher"]
    before = {name: each.clone() for name, each in teacher.named_parameters()}
    for learner in (trainer, plain):
        learner.train_step(trajectories_of(0))
    assert hash_of(trainer) != hash_of(plain)
    assert all(torch.equal(before[name], each) for name, each in teacher.named_parameters())
    trainer.prepare_save(tmp_path)()
    plain.load(tmp_path)  # resumes without a teacher
    assert hash_of(plain) == hash_of(trainer)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_rewards_have_the_weight_of_the_spec(make_llama: MakeLlama, weight: float) -> None:
    algorithm = AlgorithmSpec(teacher=taught_by(make_llama(), reward_weight=weight))
    result = build_trainer(make_llama(), settings(algorithm=algorithm), device="cpu").train_step(trajectories_of(0))
    without = build_trainer(make_llama(), settings(), device="cpu").train_step(trajectories_of(0))
    assert result.advantages == tuple(weight * each for each in without.advantages)
