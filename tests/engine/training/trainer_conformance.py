"""What every trainer does, by any sharding: steps, versions, checkpoints. Part of `ShardingConformance`."""

import random
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.inference.port import SamplingParams, SequenceOutput, SequenceRequest
from engine.inference.torch_engine import TorchRolloutEngine
from engine.policy.lineage import BASE_WEIGHTS, WeightsId
from engine.spec.job import AlgorithmSpec, OptimizerSpec, TrainerSpec
from engine.spec.series import find_series
from engine.training.checkpoint.folder import MANIFEST_FILE, CheckpointUnverified, verify_checkpoint
from engine.training.factory import build_trainer
from engine.training.held_weights import HeldWeights
from engine.training.port import TrainingTrajectory, WeightHolder
from engine.training.settings import TrainerSettings
from engine.training.trainer import Trainer
from engine.weights.low_rank import Base
from engine.weights.probe import OtherWeights, compare
from engine.weights.snapshot import map_weights
from tests.engine.conftest import MakeLlama
from tests.engine.training.optimizer.adamw_by_hand import first_step_by_hand, steps_by_hand

MakeTrainer = Callable[..., Trainer]
"""(folder, *, algorithm, optimizer, trainer, num_steps, mini_batches, passes, temperature); all except the folder have
the defaults of `settings`."""

MAX_NEW_TOKENS = 30

# Bounds of float32 rounding on any processor, from the sizes of these models. A step's metric results from about 1,000
# additions (widths of 32 and 48, 40 words, 39 positions, two layers, forward and backward) in any order; their errors
# add up as a random walk, √1,000 · 2⁻²⁴. Log-probs of up to 16 are exponentiated, and three steps build on one another.
# A difference of log-probs has at least their own rounding.
LARGEST_LOGPROB = 16.0
ROUNDING = 3 * LARGEST_LOGPROB * 1_000**0.5 * 2.0**-24
ROUNDING_OF_A_DIFFERENCE = LARGEST_LOGPROB * 2.0**-24

# Adam divides by a gradient's own size: where that is nearly zero, rounding decides the whole step, and later steps
# build on it. With an ε of a thousandth of the largest gradient, rounding changes a weight by at most a thousandth of
# the learning rate, since a gradient's rounding is about a millionth.
SMOOTH_EPS = 1e-3


def settings(
    *,
    algorithm: AlgorithmSpec | None = None,
    optimizer: OptimizerSpec | None = None,
    trainer: TrainerSpec | None = None,
    mini_batches: int = 1,
    passes: int = 1,
    num_steps: int = 100,
    temperature: float = 1.0,
) -> TrainerSettings:
    """Trainer settings for tests: large steps, no warm-up."""
    return TrainerSettings(
        algorithm=algorithm or AlgorithmSpec(),
        optimizer=optimizer or OptimizerSpec(learning_rate=1e-2, warmup_steps=0),
        trainer=trainer or TrainerSpec(),
        num_steps=num_steps,
        temperature=temperature,
        max_new_tokens=MAX_NEW_TOKENS,
        seed=0,
        mini_batches=mini_batches,
        passes=passes,
    )


def trajectories_of(
    seed: int, *, logprob: float = -3.6, num: int = 12, staleness: int = 0, tools: bool = False
) -> list[TrainingTrajectory]:
    """Three groups of four. With `tools`, about a third of the tokens after the first are a tool's."""
    rng = random.Random(seed)
    trajectories = []
    for index in range(num):
        length = rng.randint(1, MAX_NEW_TOKENS)
        response = tuple(rng.randrange(4, 40) for _ in range(length))
        written = tuple(not tools or place == 0 or rng.random() < 0.7 for place in range(length))
        trajectories.append(
            TrainingTrajectory(
                group=index // 4,
                prompt_ids=tuple(rng.randrange(4, 40) for _ in range(rng.randint(1, 9))),
                response_ids=response,
                behaviour_logprobs=tuple(logprob if mine else 0.0 for mine in written),
                reward=float(rng.random() < 0.5),
                written=written if tools else (),
                staleness=(staleness,) * length,
            )
        )
    return trajectories


def trainer_of(folder: Path, **given: Any) -> Trainer:
    """A trainer in one process, alone."""
    return build_trainer(folder, settings(**given), device="cpu")


def hash_of(holder: WeightHolder) -> str:
    return sha256(holder.snapshot(WeightsId(0, 0)).buffer).hexdigest()


def save(trainer: Trainer, folder: Path) -> Path:
    trainer.prepare_save(folder)()
    return folder


def tensors_of(checkpoint: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, with the shards of several ranks joined."""
    parts: dict[str, list[tuple[int, Tensor]]] = {}
    for file in checkpoint.glob("*.safetensors"):
        for key, tensor in load_file(file).items():
            name, _, span = key.partition("[")
            parts.setdefault(name, []).append((int(span.partition(":")[0] or 0), tensor))
    alone = {name: shards[0][1] for name, shards in parts.items() if len(shards) == 1}
    return alone | {
        name: torch.cat([tensor for _, tensor in sorted(shards, key=itemgetter(0))])
        for name, shards in parts.items()
        if len(shards) > 1
    }


def assert_same_content(checkpoint: Path, expected: Path) -> None:
    """Equal bit for bit; compares flat tensors, as sharded ones are."""
    actual, wanted = tensors_of(checkpoint), tensors_of(expected)
    assert actual.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert actual[name].dtype == tensor.dtype and torch.equal(actual[name].view(-1), tensor.view(-1)), name
    for name in ("trainer.json", "config.json"):
        assert (checkpoint / name).read_bytes() == (expected / name).read_bytes()
    adapters = [folder / "adapter" / "adapter_model.safetensors" for folder in (checkpoint, expected)]
    assert adapters[0].exists() == adapters[1].exists()
    if adapters[0].exists():
        first, second = map(load_file, adapters)
        assert all(torch.equal(first[name], tensor) for name, tensor in second.items())
        assert first.keys() == second.keys()


def assert_same_steps(
    metrics: list[dict[str, float]], checkpoint: Path, *, expected: list[dict[str, float]], expected_checkpoint: Path
) -> None:
    """Equal within rounding: the metrics of each step, and the whole state after them. For trainers whose ε is
    `SMOOTH_EPS`, and batches whose advantages do not consist of rounding errors."""
    layout = "train/padding_fraction"  # differs with the rectangles
    for mine, theirs in zip(metrics, expected, strict=True):
        compared = {name: value for name, value in theirs.items() if name != layout}
        assert {name: value for name, value in mine.items() if name != layout} == pytest.approx(
            compared, rel=ROUNDING, abs=ROUNDING_OF_A_DIFFERENCE
        )
    states = []
    for folder in (checkpoint, expected_checkpoint):
        verify_checkpoint(folder)
        states.append({name: tensor for name, tensor in tensors_of(folder).items() if "/" in name})
    assert states[0].keys() == states[1].keys()
    for name, flat in states[1].items():
        tensor = flat.view_as(states[0][name])
        if "master/" in name:
            torch.testing.assert_close(states[0][name], tensor, rtol=0, atol=1e-5)  # a thousandth of the largest rate
        elif not name.startswith("random/"):
            torch.testing.assert_close(states[0][name], tensor, rtol=1e-3, atol=1e-7)


class TrainerConformance:
    def test_one_step_equals_reference_adamw(self, make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
        folder, batch = make_llama(), trajectories_of(0)
        expected = first_step_by_hand(folder, batch, lr=1e-2, decay=0.1)
        trainer = make_trainer(folder, optimizer=OptimizerSpec(learning_rate=1e-2, warmup_steps=0, weight_decay=0.1))
        trainer.train_step(batch)
        for name, tensor in map_weights(trainer.snapshot(WeightsId(0, 1))).items():
            steep = expected[f"{name}.steep"]
            assert steep.float().mean() > 0.5 or "embed" in name or "mlp." in name  # an expert may have no tokens
            torch.testing.assert_close(tensor[steep], expected[name][steep], rtol=0, atol=2e-5)

    @pytest.mark.parametrize(
        ("course", "shares"),
        [
            ("constant", [0.5, 1.0, 1.0, 1.0, 1.0]),
            ("linear", [0.5, 1.0, 0.775, 0.55, 0.325]),
            # 0.1, plus nine tenths of half of (1 + cos 45°), (1 + cos 90°), (1 + cos 135°).
            ("cosine", [0.5, 1.0, 0.1 + 0.45 * (1 + 0.5**0.5), 0.55, 0.1 + 0.45 * (1 - 0.5**0.5)]),
        ],
    )
    def test_steps_follow_adamw_with_the_specs_betas_and_schedule(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, course: Any, shares: list[float]
    ) -> None:
        folder, batches = make_llama(), [trajectories_of(step) for step in range(5)]
        spec = OptimizerSpec(
            learning_rate=1e-2,
            warmup_steps=2,
            course=course,
            beta1=0.8,
            beta2=0.95,
            eps=SMOOTH_EPS,
            weight_decay=0.1,
        )
        rates = [1e-2 * share for share in shares]
        trainer = make_trainer(folder, optimizer=spec, num_steps=5)
        metrics = [trainer.train_step(batch).metrics["train/learning_rate"] for batch in batches]
        assert metrics == pytest.approx(rates)
        expected = steps_by_hand(folder, batches, rates, spec)
        for name, tensor in map_weights(trainer.snapshot(WeightsId(0, 5))).items():
            # A β₂ of 0.96 would differ by four times as much, other settings by far more.
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=2e-5)

    def test_micro_batches_change_nothing_but_rounding(self, make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
        whole = make_trainer(make_llama()).train_step(trajectories_of(0)).metrics
        parts = (
            make_trainer(make_llama(), trainer=TrainerSpec(micro_batch_tokens=50))
            .train_step(trajectories_of(0))
            .metrics
        )
        for metrics in (whole, parts):
            metrics.pop("train/padding_fraction")  # differs with the rectangles
        assert parts == pytest.approx(whole, rel=ROUNDING, abs=ROUNDING_OF_A_DIFFERENCE)

    @pytest.mark.parametrize("lora_rank", [0, 2])
    @pytest.mark.parametrize("how", ["recomputed", "offloaded"])
    def test_recomputed_and_offloaded_layers_are_bit_for_bit_equal(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, how: str, lora_rank: int
    ) -> None:
        ends = []
        for activations in ("kept", how):
            spec = TrainerSpec.model_validate({"activations": activations, "lora_rank": lora_rank})
            trainer = make_trainer(make_llama(), trainer=spec)
            metrics = [trainer.train_step(trajectories_of(step)).metrics for step in range(2)]
            ends.append((metrics, hash_of(trainer)))
        assert ends[0] == ends[1]

    def test_every_metric_is_finite_and_named(self, make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
        batch = trajectories_of(0)
        result = make_trainer(make_llama()).train_step(batch)
        assert result.metrics.keys() >= {
            *(f"train/{name}" for name in ("loss", "entropy", "grad_norm", "learning_rate", "updates", "skipped")),
            *(f"train/clip_fraction{part}" for part in ("", "_low", "_high")),
            *("train/ratio_mean", "train/ratio_max", "train/behaviour_kl", "train/effective_sample_fraction"),
            *("train/logprob_gap", "train/logprob_gap_max", "train/advantage_mean", "train/advantage_std"),
            *("train/padding_fraction", "train/tokens"),
        }
        assert all(torch.isfinite(torch.tensor(value)) for value in result.metrics.values())
        assert all(map(find_series, result.metrics))
        assert result.metrics["train/tokens"] == sum(len(each.prompt_ids + each.response_ids) for each in batch)
        assert len(result.advantages) == len(batch)

    def test_step_returns_logprobs_by_its_first_weights(self, make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
        """Rollouts with these log-probs have no gap at any token. An untrusted trajectory has no log-probs."""
        batch = trajectories_of(0, tools=True)
        batch[5] = replace(batch[5], trusted=False)
        begun = make_trainer(make_llama()).train_step(batch).begun_logprobs
        assert [len(each) for each in begun] == [0 if each is batch[5] else sum(each.written) for each in batch]
        of_rollouts = []
        for each, logprobs in zip(batch, map(iter, begun), strict=True):
            own = tuple(float(next(logprobs, 0.0)) if mine else 0.0 for mine in each.written)
            of_rollouts.append(replace(each, behaviour_logprobs=own))
        metrics = make_trainer(make_llama()).train_step(of_rollouts).metrics
        assert metrics["train/logprob_gap_max"] <= LARGEST_LOGPROB * ROUNDING

    def test_non_finite_step_is_skipped_whole(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
    ) -> None:
        trainer = make_trainer(make_llama(), optimizer=OptimizerSpec(learning_rate=1e-2, warmup_steps=4))
        trainer.train_step(trajectories_of(0))
        before = save(trainer, tmp_path / "before")
        result = trainer.train_step(trajectories_of(1, logprob=float("nan")))
        assert result.metrics["train/skipped"] == 1.0
        assert all(torch.isfinite(torch.tensor(value)) for value in result.metrics.values())
        after = save(trainer, tmp_path / "after")
        for part in ("model.safetensors", "optimizer.safetensors"):
            assert (before / part).read_bytes() == (after / part).read_bytes()
        healthy = trainer.train_step(trajectories_of(2)).metrics
        assert healthy["train/skipped"] == 0.0
        assert healthy["train/learning_rate"] == pytest.approx(1e-2 * 2 / 4)

    @pytest.mark.parametrize("lora_rank", [0, 3])
    def test_probe_equals_a_rollout_engines_log_probs(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, lora_rank: int
    ) -> None:
        """At temperature 1, whatever the sampling temperature."""
        folder = make_llama(tied=lora_rank == 0)
        trainer = make_trainer(folder, trainer=TrainerSpec(lora_rank=lora_rank), temperature=0.7)
        engine = TorchRolloutEngine(folder, max_batch=2, device="cpu", kv_tokens=256)
        begun = trainer.probe()
        trainer.train_step(trajectories_of(0))
        published, probe = trainer.snapshot(WeightsId(0, 1)), trainer.probe()
        engine.install(published)
        logprobs = engine.probe(probe.token_ids)
        assert logprobs == pytest.approx(probe.logprobs, abs=1e-4)
        compare(replace(published.manifest, probe=probe), logprobs)
        with pytest.raises(OtherWeights):  # a step is more than rounding
            compare(replace(published.manifest, probe=begun), logprobs)

    def test_a_snapshot_is_a_copy(self, make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
        trainer = make_trainer(make_llama())
        snapshot = trainer.snapshot(WeightsId(0, 4))
        kept = bytes(snapshot.buffer)
        trainer.train_step(trajectories_of(0))
        assert snapshot.version == 4
        assert bytes(snapshot.buffer) == kept
        assert hash_of(trainer) != sha256(kept).hexdigest()

    def test_checkpoint_holds_the_prepared_state_and_resumes_exactly(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
    ) -> None:
        """Training continues between preparing and writing; a trainer that loads the checkpoint repeats the steps."""
        folder = make_llama(dtype="bfloat16")
        optimizer = OptimizerSpec(learning_rate=1e-2, warmup_steps=4, course="cosine", weight_decay=0.1)
        straight = make_trainer(folder, optimizer=optimizer, num_steps=7)
        for step in range(3):
            straight.train_step(trajectories_of(step))
        write = straight.prepare_save(tmp_path / "middle")
        published = hash_of(straight)
        metrics = [straight.train_step(trajectories_of(step)).metrics for step in range(3, 6)]
        write()
        resumed = make_trainer(folder, optimizer=optimizer, num_steps=7)
        resumed.train_step(trajectories_of(99))  # the load must discard this, and a version published before it
        resumed.snapshot(BASE_WEIGHTS)
        resumed.probe()
        resumed.load(tmp_path / "middle")
        assert hash_of(resumed) == published
        assert [resumed.train_step(trajectories_of(step)).metrics for step in range(3, 6)] == metrics
        ends = [save(trainer, tmp_path / name) for name, trainer in (("straight", straight), ("resumed", resumed))]
        assert verify_checkpoint(ends[0]) == verify_checkpoint(ends[1])

    def test_tool_tokens_are_read_but_not_trained(self, make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
        """A tool's log-probs have no influence, nor do its tokens after the last written one; its earlier tokens do."""
        batch = trajectories_of(0, tools=True)

        def with_marks(mark: Callable[[TrainingTrajectory], TrainingTrajectory]) -> tuple[str, dict[str, float]]:
            trainer = make_trainer(make_llama())
            metrics = trainer.train_step([mark(each) for each in batch]).metrics
            return hash_of(trainer), {name: value for name, value in metrics.items() if name.startswith("train/")}

        def other_logprobs(each: TrainingTrajectory) -> TrainingTrajectory:
            pairs = zip(each.behaviour_logprobs, each.written, strict=True)
            return replace(each, behaviour_logprobs=tuple(value if mine else -99.0 for value, mine in pairs))

        def other_words(each: TrainingTrajectory) -> TrainingTrajectory:
            pairs = zip(each.response_ids, each.written, strict=True)
            return replace(each, response_ids=tuple(token if mine else 39 for token, mine in pairs))

        def last_words(each: TrainingTrajectory) -> TrainingTrajectory:
            return replace(
                each,
                response_ids=(*each.response_ids, 7),
                behaviour_logprobs=(*each.behaviour_logprobs, 0.0),
                written=(*each.written, False),
                staleness=(*each.staleness, 0),
            )

        unchanged = with_marks(lambda each: each)
        assert unchanged[1]["train/trained_tokens"] == sum(sum(each.written) for each in batch)
        assert with_marks(other_logprobs) == unchanged
        assert with_marks(last_words)[0] == unchanged[0]
        assert with_marks(other_words)[0] != unchanged[0]

    def test_logprobs_equal_the_rollout_engines(self, make_trainer: MakeTrainer, make_llama: MakeLlama) -> None:
        rollouts = TorchRolloutEngine(make_llama(), max_batch=8, device="cpu")
        rollouts.submit(
            [
                SequenceRequest(
                    sequence_id=str(number),
                    prompt_ids=(6 + number // 4, 7, 9)[: 1 + number % 3],
                    sampling=SamplingParams(max_new_tokens=3 + 2 * number, temperature=1.0, seed=number),
                )
                for number in range(8)
            ]
        )
        outputs: list[SequenceOutput] = []
        while len(outputs) < 8:
            outputs += rollouts.step()
        batch = [
            TrainingTrajectory(
                group=int(each.sequence_id) // 4,
                prompt_ids=(6 + int(each.sequence_id) // 4, 7, 9)[: 1 + int(each.sequence_id) % 3],
                response_ids=each.token_ids,
                behaviour_logprobs=each.logprobs,
                reward=float(5 in each.token_ids),
                routes=each.routes,
            )
            for each in outputs
        ]
        metrics = make_trainer(make_llama()).train_step(batch).metrics
        assert 0.0 < metrics["train/logprob_gap_max"] < 1e-4
        assert metrics["train/logprob_gap_p90"] < metrics["train/logprob_gap_bound"]
        assert metrics["train/ratio_mean"] == pytest.approx(1.0, abs=1e-4)
        assert metrics.get("train/unrouted_fraction", 0.0) == 0.0

    def test_checkpoint_is_a_model_folder_and_refused_if_torn(
        self, make_trainer: MakeTrainer, make_llama: MakeLlama, tmp_path: Path
    ) -> None:
        from transformers import AutoModelForCausalLM

        trainer = make_trainer(make_llama(tied=True))
        trainer.train_step(trajectories_of(0))
        folder = save(trainer, tmp_path / "saved")
        stored, published = load_file(folder / "model.safetensors"), map_weights(trainer.snapshot(WeightsId(0, 1)))
        assert stored.keys() == published.keys() and "lm_head.weight" not in stored
        assert all(torch.equal(stored[name], tensor) for name, tensor in published.items())
        assert AutoModelForCausalLM.from_pretrained(folder).num_parameters() == trainer.num_parameters
        before = hash_of(trainer)
        trainer.train_step(trajectories_of(1))
        after = hash_of(trainer)
        (folder / MANIFEST_FILE).rename(folder / "set-aside")
        with pytest.raises(CheckpointUnverified):
            trainer.load(folder)
        assert hash_of(trainer) == after
        (folder / "set-aside").rename(folder / MANIFEST_FILE)
        trainer.load(folder)
        assert hash_of(trainer) == before


def whole_weights(holder: WeightHolder, folder: Path) -> dict[str, Tensor]:
    """The weights as a replica installs them: an adapter is added to the folder's weights."""
    version = holder.snapshot(WeightsId(0, 0))
    if version.manifest.low_rank is None:
        return map_weights(version)
    names = list(map_weights(HeldWeights(folder).snapshot(WeightsId(0, 0))))
    return dict(Base(folder).whole(version, names, device="cpu"))
