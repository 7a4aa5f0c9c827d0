"""Mixtures of experts: the trainer conformance suite, on one device and sharded, and replay of rollouts' experts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from engine.models.attention import PackedAttention
from engine.models.loading import load_decoder, read_config
from engine.models.mixture import Choose, Mixture, Router, freely
from engine.models.packing import lay_out, pack
from engine.models.routes import RouteFormat
from engine.spec.job import AlgorithmSpec, KlSpec, TrainerSpec
from engine.training.factory import ALONE, build_trainer
from engine.training.port import TrainingTrajectory
from engine.training.step.micro_batch import batch_step
from engine.training.step.scoring import ComputeDtype, computing_in
from tests.engine.conftest import MakeLlama
from tests.engine.training.routed import routed
from tests.engine.training.trainer_conformance import (
    MakeTrainer,
    TrainerConformance,
    hash_of,
    save,
    settings,
    trajectories_of,
    whole_weights,
)
from tests.engine.training.trainer_parts_conformance import LORA, WITH_KL, save_qwen

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def make_llama(tmp_path_factory: pytest.TempPathFactory) -> MakeLlama:
    """Replaces the suite's usual model by a mixture."""
    folders: dict[tuple[object, ...], Path] = {}

    def make(*, tied: bool = True, dtype: str = "float32") -> Path:
        if (tied, dtype) not in folders:
            folder = tmp_path_factory.mktemp("mixture")
            folders[tied, dtype] = save_qwen(folder, "qwen3_moe", tie_word_embeddings=tied, dtype=dtype)
        return folders[tied, dtype]

    return make


@pytest.fixture(params=[pytest.param(None, marks=pytest.mark.long), ALONE], ids=["whole", "fsdp"])
def build(request: pytest.FixtureRequest) -> MakeTrainer:
    return lambda folder, **given: build_trainer(folder, settings(**given), device="cpu", world=request.param)


class TestMixture(TrainerConformance):
    pass


def test_step_with_equal_routes_equals_step_with_free_choice(make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
    """Other routes give another step; the metric counts tokens without routes."""
    folder, batch, metrics, ends = make_llama(), trajectories_of(0), [], []
    for given in (batch, with_free_choice(batch, folder), routed(batch, read_config(folder), seed=0)):
        trainer = make_trainer(folder)
        metrics.append(trainer.train_step(given).metrics)
        ends.append(hash_of(trainer))
    assert ends[0] == ends[1] != ends[2]
    free, same, other = (each.pop("train/unrouted_fraction") for each in metrics)
    assert (free, same) == (1.0, 0.0) and 0.0 < other < 1.0
    assert metrics[0] == metrics[1] != metrics[2]


def with_free_choice(batch: Sequence[TrainingTrajectory], folder: Path) -> list[TrainingTrajectory]:
    """Adds the routes that the folder's weights choose in float32, for each trajectory alone."""
    model, trajectories = load_decoder(folder, device="cpu"), []
    layout = RouteFormat.of(model.config.mixture)
    for each in batch:
        choose, noted = noting(freely)
        ids = [*each.prompt_ids, *each.response_ids]
        tokens = pack([ids], lay_out([len(ids)], max_tokens=999), "cpu")
        with torch.no_grad():
            model(tokens.ids_T, tokens.positions_T, PackedAttention(tokens), choose)
        trajectories.append(replace(each, routes=layout.packed(torch.stack(noted, dim=1))))
    return trajectories


def noting(choose: Choose) -> tuple[Choose, list[Tensor]]:
    noted: list[Tensor] = []

    def note(mixture: int, logits_TX: Tensor, k: int) -> Tensor:
        noted.append(choose(mixture, logits_TX, k))
        return noted[-1]

    return note, noted


def test_bfloat16_uses_float32_experts_only_with_routes(tmp_path: Path) -> None:
    """With 64 experts and about 1,300 tokens in two layers, some scores differ by less than bfloat16 resolves."""
    folder = save_qwen(tmp_path, "qwen3_moe", num_experts=64, num_experts_per_tok=8, moe_intermediate_size=8)
    batch = trajectories_of(0, num=60)
    model = load_decoder(folder, device="cpu")
    layout = RouteFormat.of(model.config.mixture)

    def chosen(trajectories: Sequence[TrainingTrajectory], compute_dtype: ComputeDtype) -> list[Tensor]:
        experts: list[Tensor] = []
        for each in batch_step(trajectories, max_tokens=500, device="cpu", route_format=layout).micro_batches:
            choose, noted = noting(each.choose)
            with torch.no_grad(), computing_in(compute_dtype, torch.device("cpu")):
                model(each.ids, each.positions, each.attention(model.config.windows), choose)
            experts += [chosen_Tk.sort(dim=-1).values for chosen_Tk in noted]
        return experts

    def same(one: list[Tensor], other: list[Tensor]) -> bool:
        return all(map(torch.equal, one, other))

    routed_batch = with_free_choice(batch, folder)
    assert not same(chosen(batch, "bfloat16"), chosen(batch, "float32"))
    assert same(chosen(routed_batch, "bfloat16"), chosen(routed_batch, "float32"))


@pytest.mark.parametrize("routes", [True, False])
def test_reference_uses_the_policys_experts_so_kl_begins_at_zero(
    make_trainer: MakeTrainer, make_llama: MakeLlama, routes: bool
) -> None:
    batch = trajectories_of(0)
    given = routed(batch, read_config(make_llama()), seed=0) if routes else batch
    trainer = make_trainer(make_llama(), algorithm=AlgorithmSpec(kl=KlSpec(coefficient=0.1)))
    assert trainer.train_step(given).metrics["train/kl"] == pytest.approx(0.0, abs=1e-6)


def test_fsdp_gathers_router_in_float32_and_experts_in_bfloat16(make_llama: MakeLlama) -> None:
    """Both are recomputed in the backward pass, and gathered again for it."""
    given = settings(trainer=TrainerSpec(compute_dtype="bfloat16", activations="recomputed"))
    trainer = build_trainer(make_llama(), given, device="cpu", world=ALONE)
    seen: list[tuple[torch.dtype, torch.dtype]] = []

    def look_at_router(router: nn.Module, given: tuple[Tensor], logits_TX: Tensor) -> None:
        assert isinstance(router, Router)
        seen.append((router.weight_XD.dtype, mixtures[router].gate_up_YD.dtype))

    mixtures = {each.router: each for each in trainer._model.modules() if isinstance(each, Mixture)}
    for router in mixtures:
        router.register_forward_hook(look_at_router, prepend=True)  # before FSDP frees the gathered weights
    metrics = trainer.train_step(trajectories_of(0)).metrics
    trainer.close()
    assert metrics["train/skipped"] == 0.0
    assert len(seen) >= 2 * len(mixtures) and set(seen) == {(torch.float32, torch.bfloat16)}


def test_mixture_trains_with_critic_and_reference(make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
    trainer = make_trainer(make_llama(), algorithm=AlgorithmSpec(name="ppo", kl=WITH_KL))
    for step in range(2):
        metrics = trainer.train_step(routed(trajectories_of(step), read_config(make_llama()), seed=step)).metrics
        assert metrics["train/skipped"] == 0.0 and metrics["train/critic_grad_norm"] > 0.0


def test_adapter_updates_only_attention_and_loads_in_peft(
    make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = make_llama()
    trainer = make_trainer(folder, trainer=LORA)
    before = whole_weights(trainer, folder)
    for step in range(3):
        trainer.train_step(trajectories_of(step))
    after = whole_weights(trainer, folder)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if name.endswith("_proj.weight") and "self_attn" in name}
    save(trainer, tmp_path)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits
        adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), str(tmp_path / "adapter"))
        torch.testing.assert_close(adapted(ids).logits, merged, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        (b"123", r"trajectory 1: routes: at most \d+ tokens of 2 bytes, got 3 bytes"),
        (b"\x05\x00", "trajectory 1: routes: experts must be from 0 to 4, got 5"),
    ],
)
def test_routes_of_another_model_are_refused(make_llama: MakeLlama, routes: bytes, message: str) -> None:
    batch = trajectories_of(0)
    batch[1] = replace(batch[1], routes=routes)
    with pytest.raises(ValueError, match=message):
        build_trainer(make_llama(), settings(), device="cpu").train_step(batch)


def test_deepspeed_refuses_a_mixture_by_name(make_llama: MakeLlama) -> None:
    with pytest.raises(ValueError, match=r"trainer\.backend: deepspeed trains dense models, got a mixture of 5"):
        build_trainer(make_llama(), settings(trainer=TrainerSpec(backend="deepspeed")), device="cpu")
