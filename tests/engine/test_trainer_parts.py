"""The parts that a job may ask for: critic, reference, adapter; and a step that several ranks make together."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.models.loading import load_decoder
from engine.spec.job import AlgorithmName, AlgorithmSpec, CriticSpec, KlSpec, OptimizerSpec, TrainerSpec
from engine.training.micro_batch import batch_step
from engine.training.port import TrainingTrajectory
from engine.training.scoring import Critic, score_tokens
from engine.training.step_loss import StepLoss, StepModels, needs_critic, needs_reference
from engine.training.torch_trainer import TorchTrainer
from engine.weights.snapshot import map_weights
from tests.engine.conftest import MakeLlama
from tests.engine.trainer_conformance import hash_of, save, settings, trajectories_of

pytestmark = pytest.mark.usefixtures("one_thread")

OF_THE_LAYOUT = ("train/padding_fraction", "train/shared_fraction")
LORA = TrainerSpec(lora_rank=3, lora_alpha=12.0)
WITH_KL = KlSpec(coefficient=0.1)


def trainer_of(folder: Path, **given: object) -> TorchTrainer:
    return TorchTrainer(folder, **settings(**given))  # type: ignore[arg-type]


# A checkpoint holds every part ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "trainer"),
    [
        (AlgorithmSpec(name="ppo", kl=WITH_KL), TrainerSpec()),
        (AlgorithmSpec(name="gspo", kl=KlSpec(coefficient=0.1, estimator="k1")), LORA),
        (AlgorithmSpec(name="ppo", entropy_coefficient=0.01), LORA),
    ],
)
def test_resume_is_exact_with_critic_reference_and_adapter(
    make_llama: MakeLlama, tmp_path: Path, algorithm: AlgorithmSpec, trainer: TrainerSpec, tied: bool
) -> None:
    """Written while training goes on."""
    folder = make_llama(tied=tied)
    straight = trainer_of(folder, algorithm=algorithm, trainer=trainer)
    for step in range(3):
        straight.train_step(trajectories_of(step))
    write = straight.prepare_save(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        told = [straight.train_step(trajectories_of(step)).metrics for step in range(3, 6)]
        written.result()
    resumed = trainer_of(folder, algorithm=algorithm, trainer=trainer)
    resumed.load(tmp_path)
    assert [resumed.train_step(trajectories_of(step)).metrics for step in range(3, 6)] == told
    assert hash_of(resumed) == hash_of(straight)


# Critic ---------------------------------------------------------------------------------------------------------------


def test_a_critic_learns_what_answers_are_worth(make_llama: MakeLlama) -> None:
    """A group's prompt says what its answers are worth."""
    batch = [replace(each, prompt_ids=(10 + each.group,), reward=float(each.group)) for each in trajectories_of(0)]
    trainer = trainer_of(
        make_llama(),
        algorithm=AlgorithmSpec(name="ppo", critic=CriticSpec(learning_rate=1e-2)),
        optimizer=OptimizerSpec(learning_rate=1e-9, warmup_steps=0),
    )
    metrics = [trainer.train_step(batch).metrics for _ in range(30)]
    assert metrics[0]["train/value_mean"] == 0.0
    assert metrics[0]["train/explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert metrics[-1]["train/explained_variance"] > 0.8
    assert metrics[-1]["train/value_loss"] < 0.3 * metrics[0]["train/value_loss"]


def test_the_critics_gradient_does_not_pull_at_the_policy(make_llama: MakeLlama) -> None:
    def policy_after(learning_rate: float) -> str:
        critic = CriticSpec(learning_rate=learning_rate)
        trainer = trainer_of(make_llama(), algorithm=AlgorithmSpec(name="ppo", critic=critic))
        trainer.train_step(trajectories_of(0))
        return hash_of(trainer)

    assert policy_after(1e-5) == policy_after(1.0)


def test_a_critic_that_is_not_finite_stops_the_policys_step_too(make_llama: MakeLlama) -> None:
    trainer = trainer_of(make_llama(), algorithm=AlgorithmSpec(name="ppo"))
    assert trainer._critic is not None
    trainer._critic.value_D.data[0] = float("nan")
    before = hash_of(trainer)
    assert trainer.train_step(trajectories_of(0)).metrics["train/skipped"] == 1.0
    assert hash_of(trainer) == before


@pytest.mark.parametrize("whose", ["policy", "critic"])
def test_a_gradient_that_is_not_finite_stops_both_though_the_losses_are_finite(
    make_llama: MakeLlama, tmp_path: Path, whose: str
) -> None:
    trainer = trainer_of(make_llama(), algorithm=AlgorithmSpec(name="ppo"))
    assert trainer._critic is not None
    spoiled = trainer._critic.value_D if whose == "critic" else trainer._model.final_norm_D
    before = save(trainer, tmp_path / "before")
    with spoiled.register_hook(lambda gradient: gradient * float("nan")):  # type: ignore[no-untyped-call]
        metrics = trainer.train_step(trajectories_of(0)).metrics
    assert metrics["train/skipped"] == 1.0 and "train/loss" in metrics and "train/value_loss" in metrics
    after = save(trainer, tmp_path / "after")
    for part in ("model.safetensors", "optimizer.safetensors"):
        assert (before / part).read_bytes() == (after / part).read_bytes()


# Reference ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", [TrainerSpec(), LORA])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_distance_to_the_reference_begins_at_zero_and_is_held_down(
    make_llama: MakeLlama, trainer: TrainerSpec, estimator: str
) -> None:
    def distances(coefficient: float) -> list[float]:
        kl = KlSpec.model_validate({"coefficient": coefficient, "estimator": estimator})
        learner = trainer_of(make_llama(), algorithm=AlgorithmSpec(name="reinforce_pp", kl=kl), trainer=trainer)
        return [learner.train_step(trajectories_of(0)).metrics["train/kl"] for _ in range(12)]

    free, held = distances(1e-9), distances(3.0)
    assert free[0] == pytest.approx(0.0, abs=1e-6)
    assert abs(held[-1]) < 0.8 * abs(free[-1])


def test_no_reference_is_kept_where_its_distance_costs_nothing(make_llama: MakeLlama) -> None:
    trainer = trainer_of(make_llama())
    assert trainer._reference is None
    assert "train/kl" not in trainer.train_step(trajectories_of(0)).metrics


def test_entropy_that_is_rewarded_falls_less(make_llama: MakeLlama) -> None:
    def entropy_after(coefficient: float) -> float:
        learner = trainer_of(make_llama(), algorithm=AlgorithmSpec(entropy_coefficient=coefficient))
        return [learner.train_step(trajectories_of(0)).metrics["train/entropy"] for _ in range(6)][-1]

    assert entropy_after(1.0) > entropy_after(0.0) + 0.05


def test_long_answers_are_paid_less_and_the_charts_keep_the_environments_reward(make_llama: MakeLlama) -> None:
    batch = [replace(each, reward=1.0, cut=number == 0) for number, each in enumerate(trajectories_of(0))]
    plain = trainer_of(make_llama()).train_step(batch)
    shaped = trainer_of(make_llama(), algorithm=AlgorithmSpec(overlong_tokens=20)).train_step(batch)
    assert set(plain.advantages) == {0.0}
    assert shaped.metrics["reward/mean"] == 1.0
    assert shaped.metrics["train/overlong_penalty"] < 0.0
    assert min(shaped.advantages[:4]) == shaped.advantages[0] < 0.0


# Adapter --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def make_layout(make_llama: MakeLlama, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Small random models: Llama's layout, Qwen2's with biases, Qwen3's with norms of queries and keys."""

    def make(layout: str) -> Path:
        from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

        if layout == "llama":
            return make_llama()
        configure, build = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}[layout]
        torch.manual_seed(0)
        config = configure(
            vocab_size=40,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=160,
            tie_word_embeddings=True,
            initializer_range=0.3,
        )
        model = build(config)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
        folder = tmp_path_factory.mktemp(layout)
        model.save_pretrained(folder)
        return folder

    return make


@pytest.mark.parametrize("layout", ["llama", "qwen2", "qwen3"])
def test_peft_loads_the_adapter_and_says_what_the_merged_weights_say(
    make_layout: Callable[[str], Path], tmp_path: Path, layout: str
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = make_layout(layout)
    trainer = trainer_of(folder, trainer=LORA)
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
def test_every_layout_is_trained_in_bfloat16_with_critic_and_adapter(
    make_layout: Callable[[str], Path], layout: str
) -> None:
    folder, algorithm = make_layout(layout), AlgorithmSpec(name="ppo", kl=WITH_KL, entropy_coefficient=0.01)
    exact = trainer_of(folder, algorithm=algorithm, trainer=LORA)
    near = trainer_of(folder, algorithm=algorithm, trainer=LORA.model_copy(update={"compute_dtype": "bfloat16"}))
    for step in range(2):
        expected, metrics = (each.train_step(trajectories_of(step)).metrics for each in (exact, near))
        assert metrics["train/skipped"] == 0.0
        assert metrics["train/loss"] == pytest.approx(expected["train/loss"], abs=0.03)
        assert metrics["train/entropy"] == pytest.approx(expected["train/entropy"], abs=0.03)
        assert metrics["train/value_loss"] == pytest.approx(expected["train/value_loss"], abs=0.03)


def test_an_adapter_begins_at_the_base_and_moves_only_its_matrices(make_llama: MakeLlama) -> None:
    trainer = trainer_of(make_llama(), trainer=LORA)
    first = trainer.snapshot(0)
    assert first.manifest.sha256 == hash_of(trainer_of(make_llama()))
    trainer.train_step(trajectories_of(0))
    before, after = map_weights(first), map_weights(trainer.snapshot(1))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if name.endswith("_proj.weight")}
    for name in moved:
        assert torch.linalg.matrix_rank((after[name] - before[name]).double(), rtol=1e-4) <= 3


def test_a_step_of_an_adapter_is_the_projected_step_of_the_whole(make_llama: MakeLlama) -> None:
    """B is zero at first: its gradient is the whole matrix's times Aᵀ, and A has none."""
    whole, low = trainer_of(make_llama()), trainer_of(make_llama(), trainer=LORA)
    gradients: dict[str, Tensor] = {}
    for trainer in (whole, low):
        trainer._update = lambda warmth: None  # type: ignore[method-assign]
        trainer._clip = lambda part: 0.0  # type: ignore[method-assign]
        trainer.train_step(trajectories_of(0))
        gradients |= {
            name: parameter.grad
            for part in trainer._parts
            for name, parameter in part.parameters.items()
            if parameter.grad is not None
        }
    assert low._adapter is not None
    name = "base_model.model.model.layers.1.self_attn.k_proj"
    a = low._adapter.parameters[f"{name}.lora_A.weight"]
    of_k = gradients["layers.1.qkv_QD"][32:48]
    torch.testing.assert_close(gradients[f"{name}.lora_B.weight"], 4.0 * of_k @ a.T, rtol=1e-4, atol=1e-6)
    assert gradients[f"{name}.lora_A.weight"].abs().max() == 0.0


# Ranks ----------------------------------------------------------------------------------------------------------------


class ThreadRanks:
    """Ranks that are threads of this process."""

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
) -> tuple[Tensor, list[Any]]:
    """(the sum over ranks of all gradients, what each rank says of the step)."""
    barrier, board = Barrier(num_ranks), [torch.zeros(0)] * num_ranks

    def one_rank(index: int) -> tuple[Tensor, object]:
        policy, reference = (load_decoder(folder, device="cpu") for _ in range(2))
        critic = Critic(load_decoder(folder, device="cpu"))
        critic.value_D.data.fill_(0.1)
        loss = StepLoss(
            algorithm,
            models=StepModels(
                policy=lambda batch: score_tokens(policy, batch, temperature=1.0),
                reference=(lambda batch: score_tokens(reference, batch, temperature=2.0))
                if needs_reference(algorithm)
                else None,
                critic=critic if needs_critic(algorithm) else None,
            ),
            micro_batch_tokens=micro_batch_tokens,
            max_new_tokens=30,
            device="cpu",
            ranks=ThreadRanks(index, barrier, board),
        )
        step = loss.begin(batch)
        for losses in step.losses():
            losses.policy.backward()  # type: ignore[no-untyped-call]
            if losses.value is not None:
                losses.value.backward()  # type: ignore[no-untyped-call]
        every = [*policy.parameters(), *critic.parameters()]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in every])
        return flat, (step.metrics(), step.advantages, step.num_micro_batches)

    with ThreadPoolExecutor(num_ranks) as pool:
        done = list(pool.map(one_rank, range(num_ranks)))
    return torch.stack([gradient for gradient, _ in done]).sum(0), [said for _, said in done]


@pytest.mark.parametrize(
    ("name", "estimator", "num"), [("ppo", "k1", 12), ("gspo", "k1", 12), ("grpo", "k3", 2), ("dapo", "k2", 1)]
)
def test_gradients_of_ranks_add_up_to_those_of_one(
    make_llama: MakeLlama, name: AlgorithmName, estimator: str, num: int
) -> None:
    """Also where a rank has nothing to do: three ranks, one or two answers."""
    kl = KlSpec.model_validate({"coefficient": 0.1, "estimator": estimator})
    algorithm = AlgorithmSpec(name=name, kl=kl)
    batch = trajectories_of(0, num=num, tools=True)
    alone, (said,) = gradients_of_ranks(make_llama(), algorithm, 1, batch)
    together, each = gradients_of_ranks(make_llama(), algorithm, 3, batch)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)
    assert each[0] == each[1] == each[2]
    for metric, value in said[0].items():
        if metric not in OF_THE_LAYOUT:
            assert each[0][0][metric] == pytest.approx(value, rel=1e-4, abs=1e-5)


def of_one_prompt_each(
    batch: list[TrainingTrajectory], *, flat: frozenset[int] = frozenset()
) -> list[TrainingTrajectory]:
    """Groups whose samples answer the same prompt. All of a `flat` group are equally good."""
    prompts = {each.group: each.prompt_ids for each in batch}
    return [
        replace(each, prompt_ids=prompts[each.group], reward=1.0 if each.group in flat else float(index % 2))
        for index, each in enumerate(batch)
    ]


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_prompt_read_in_once_gives_the_gradients_of_one_read_in_for_every_sample(
    make_llama: MakeLlama, num_ranks: int
) -> None:
    algorithm = AlgorithmSpec(name="grpo", kl=WITH_KL)
    batch = of_one_prompt_each(trajectories_of(0, tools=True))
    shared, ((said, *_), *_) = gradients_of_ranks(make_llama(), algorithm, num_ranks, batch, micro_batch_tokens=10_000)
    apart, ((alone, *_),) = gradients_of_ranks(make_llama(), algorithm, 1, batch, micro_batch_tokens=1)
    torch.testing.assert_close(shared, apart, rtol=1e-4, atol=1e-6)
    assert said["train/shared_fraction"] > 0.05 and alone["train/shared_fraction"] == 0.0


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_group_without_signal_is_looked_at_and_gives_no_gradient(
    make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch, num_ranks: int
) -> None:
    algorithm, batch = AlgorithmSpec(name="grpo"), of_one_prompt_each(trajectories_of(0), flat=frozenset({0, 2}))
    quick, ((said, _, num_passes), *_) = gradients_of_ranks(make_llama(), algorithm, num_ranks, batch)
    monkeypatch.setattr(StepLoss, "_silent", lambda *_: frozenset())
    slow, ((before, _, num_before),) = gradients_of_ranks(make_llama(), algorithm, 1, batch)
    torch.testing.assert_close(quick, slow, rtol=1e-4, atol=1e-6)
    assert quick.any() and num_passes < num_before, "of two groups of three nothing goes backward"
    for metric, value in before.items():
        if metric not in OF_THE_LAYOUT:
            assert said[metric] == pytest.approx(value, rel=1e-4, abs=1e-5), metric


@pytest.mark.parametrize("algorithm", [AlgorithmSpec(name="grpo", entropy_coefficient=0.1), AlgorithmSpec(kl=WITH_KL)])
def test_a_group_without_signal_still_counts_for_entropy_and_the_distance_to_the_reference(
    make_llama: MakeLlama, algorithm: AlgorithmSpec
) -> None:
    batch = of_one_prompt_each(trajectories_of(0), flat=frozenset({0, 2}))
    everyone, _ = gradients_of_ranks(make_llama(), algorithm, 1, batch)
    fewer, _ = gradients_of_ranks(make_llama(), algorithm, 1, [each for each in batch if each.group == 1])
    assert not torch.allclose(everyone, fewer / 3, rtol=1e-3)


def test_a_step_in_which_no_group_has_a_signal_still_moves_the_optimizer(make_llama: MakeLlama) -> None:
    """Its momentum goes on, as if the gradient were zero, because it is."""
    trainer = trainer_of(make_llama())
    trainer.train_step(of_one_prompt_each(trajectories_of(0)))
    before = hash_of(trainer)
    metrics = trainer.train_step(of_one_prompt_each(trajectories_of(1), flat=frozenset({0, 1, 2}))).metrics
    assert metrics["train/grad_norm"] == 0.0 and metrics["train/skipped"] == 0.0 and hash_of(trainer) != before


def test_every_written_token_is_one_ranks_and_all_ranks_make_as_many_passes() -> None:
    batch = trajectories_of(3, num=11, tools=True)
    ranks = [batch_step(batch, max_tokens=50, device="cpu", rank=rank, num_ranks=3) for rank in range(3)]
    assert len({len(each.micro_batches) for each in ranks}) == 1
    slots = [slot for each in ranks for one in each.micro_batches if not one.idle for slot in one.slots_N.tolist()]
    assert sorted(slots) == list(range(sum(sum(each.written) for each in batch)))


def test_logits_in_chunks_are_the_same_and_so_are_their_gradients(
    make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step() -> tuple[float, dict[str, Tensor]]:
        trainer = trainer_of(make_llama())
        loss = trainer.train_step(trajectories_of(0)).metrics["train/loss"]
        return loss, map_weights(trainer.snapshot(0))

    whole_loss, whole = step()
    monkeypatch.setattr("engine.training.scoring.LOGITS_PER_CHUNK", 40 * 7)
    chunked_loss, chunked = step()
    assert chunked_loss == pytest.approx(whole_loss, abs=1e-6)
    for name, tensor in whole.items():
        torch.testing.assert_close(chunked[name], tensor, rtol=1e-3, atol=1e-4)
