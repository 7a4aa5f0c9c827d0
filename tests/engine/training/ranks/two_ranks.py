"""The promises of two processes that make one step together, whatever divides weights between them.

A test module starts them by `two_processes` and subclasses `TwoRanksConformance`, named Test…. It gives the fixtures
`two_ranks`, the folder that they left behind, and `variant`, the folder below it of one of the trainers: KIND/NAME.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import pytest

from engine.policy.lineage import WeightsId
from engine.spec.job import AlgorithmSpec, CriticSpec, KlSpec, OptimizerSpec, TeacherSpec, TrainerSpec
from engine.training.checkpoint.folder import MANIFEST_FILE, verify_checkpoint
from engine.training.port import SharedTrainer, Trainer, TrainingTrajectory
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.torch_trainer import TorchTrainer
from engine.weights.snapshot import bytes_of
from engine.weights.spans import Spans
from engine.weights.sums import added
from tests.engine.conftest import MakeLlama
from tests.engine.training.ranks.worlds import run_ranks
from tests.engine.training.trainer_conformance import (
    SMOOTH_EPS,
    assert_same_content,
    assert_same_steps,
    hash_of,
    save,
    settings,
    trajectories_of,
)

KINDS: Final[dict[str, tuple[AlgorithmSpec, dict[str, Any], dict[str, int]]]] = {
    "whole": (AlgorithmSpec(kl=KlSpec(coefficient=0.1), entropy_coefficient=0.01), {}, {}),
    # A λ below 1: of one trajectory, the returns differ by much more than by rounding. They are what is standardised.
    "critic": (
        AlgorithmSpec(name="ppo", kl=KlSpec(coefficient=0.1, estimator="k1"), critic=CriticSpec(gae_lambda=0.9)),
        {},
        {},
    ),
    "adapter": (AlgorithmSpec(kl=KlSpec(coefficient=0.1)), {"lora_rank": 3, "lora_alpha": 12.0}, {}),
    # The demo model knows more words than these models, and has another shape: it is divided by rows of its own.
    "updates": (
        AlgorithmSpec(teacher=TeacherSpec(source="demo", coefficient=0.3)),
        {},
        {"mini_batches": 2, "passes": 2},
    ),
}


def asked(kind: str, **trainer: Any) -> TrainerSettings:
    """Rectangles so small that ranks have different numbers of micro-batches; a reference or a teacher, divided too."""
    algorithm, parts, updates = KINDS[kind]
    return settings(
        algorithm=algorithm,
        optimizer=OptimizerSpec(learning_rate=1e-3, warmup_steps=3, weight_decay=0.1, eps=SMOOTH_EPS),
        trainer=TrainerSpec(micro_batch_tokens=40, **parts, **trainer),
        **updates,
    )


def batches() -> list[list[TrainingTrajectory]]:
    """The second has fewer trajectories than there are ranks; it has a reward, which rounding is nothing beside."""
    (one,) = trajectories_of(1, num=1)
    return [trajectories_of(0), [replace(one, reward=1.0)], trajectories_of(2, num=7)]


def poisoned() -> list[TrainingTrajectory]:
    """Trajectories of which only one, so only one rank, has a number that is none."""
    first, *others = trajectories_of(3)
    return [replace(first, behaviour_logprobs=(float("nan"),) * len(first.response_ids)), *others]


def train(trainer: Trainer) -> list[dict[str, float]]:
    return [trainer.train_step(batch).metrics for batch in batches()]


def story(trainer: SharedTrainer, results: Path) -> dict[str, Any]:
    told = train(trainer)
    save(trainer, results / "trained")
    skipped = trainer.train_step(poisoned()).metrics
    kept = hash_of(trainer)
    trainer.load(results / "trained")
    loaded = hash_of(trainer)
    on = trainer.train_step(trajectories_of(4)).metrics
    save(trainer, results / "straight")
    trainer.load(results / "trained")
    again = trainer.train_step(trajectories_of(4)).metrics
    save(trainer, results / "resumed")
    trainer.load(results.parent / "torch")
    save(trainer, results / "from-torch")
    published = {
        "probe": asdict(trainer.probe()),
        "share": trainer.published.share.of_version,
        "sums": sums_written_by(trainer),
        "version": version_of(trainer),
    }
    return {"told": told, "skipped": skipped, "kept": kept, "loaded": loaded, "on": on, "again": again, **published}


def tell(facts: dict[str, Any], results: Path, world: World) -> None:
    (results / f"rank-{world.index}.json").write_text(json.dumps(facts))


def told_by(results: Path, variant: str, rank: int = 0) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((results / variant / f"rank-{rank}.json").read_text())
    return told


BeARank = Callable[[World, Path, Path], None]
"""(world, the model's folder, where it leaves what it found)"""


def two_processes(be_a_rank: BeARank, folder: Path, results: Path, *, are_fresh: bool = False) -> Path:
    """`results`, with what they left there; before, what the torch trainer makes of the same batches."""
    for kind in KINDS:
        torch_trainer = TorchTrainer(folder, asked(kind), device="cpu")
        (results / kind).mkdir()
        (results / kind / "torch.json").write_text(json.dumps(train(torch_trainer)))
        save(torch_trainer, results / kind / "torch")
        (results / kind / "probe.json").write_text(json.dumps(asdict(torch_trainer.probe())))
        version = torch_trainer.snapshot(WeightsId(0, 0))
        (results / kind / "version").write_bytes(version.buffer)
        (results / kind / "sums.json").write_text(json.dumps(version.manifest.sums))
    assert run_ranks(2, be_a_rank, folder, results, are_fresh=are_fresh) == [0, 0]
    return results


def sums_written_by(trainer: SharedTrainer) -> tuple[int, ...]:
    whole = Spans.joined([(0, bytes_of(trainer.published.entries))])
    return trainer.published.write(memoryview(bytearray(whole.num_bytes)), whole)


def version_of(trainer: Trainer) -> str:
    """As JSON can have it; of a rank, with its own values and zeros for the others'."""
    return trainer.snapshot(WeightsId(0, 0)).buffer.hex()


def together(*versions: str) -> bytes:
    """What the ranks' versions are together."""
    return bytes(one | other for one, other in zip(*map(bytes.fromhex, versions), strict=True))


class TwoRanksConformance:
    def test_two_ranks_make_the_steps_of_the_torch_trainer(self, two_ranks: Path, variant: str) -> None:
        of_torch = two_ranks / variant.partition("/")[0]
        assert_same_steps(
            told_by(two_ranks, variant)["told"],
            two_ranks / variant / "trained",
            expected=json.loads((of_torch / "torch.json").read_text()),
            expected_checkpoint=of_torch / "torch",
        )

    def test_every_rank_tells_the_same_of_a_step_and_skips_the_same(self, two_ranks: Path, variant: str) -> None:
        first, second = told_by(two_ranks, variant, 0), told_by(two_ranks, variant, 1)
        assert first["told"] == second["told"]
        assert [metrics["train/skipped"] for metrics in first["told"]] == [0.0, 0.0, 0.0]
        assert first["skipped"] == second["skipped"]
        if variant.startswith("updates/"):  # its mini-batch in both passes; the other one's updates are made
            assert (first["skipped"]["train/skipped"], first["skipped"]["train/updates"]) == (2.0, 2.0)
            assert [metrics["train/updates"] for metrics in first["told"]] == [4.0, 2.0, 4.0]
            return
        assert first["skipped"]["train/skipped"] == 1.0
        assert first["kept"] == first["loaded"]  # what was saved before the step that was skipped

    def test_two_ranks_resume_bit_for_bit(self, two_ranks: Path, variant: str) -> None:
        told = told_by(two_ranks, variant)
        assert told["again"] == told["on"]
        ends = [two_ranks / variant / name for name in ("straight", "resumed")]
        assert (ends[0] / MANIFEST_FILE).read_bytes() == (ends[1] / MANIFEST_FILE).read_bytes()

    def test_a_checkpoint_of_the_torch_trainer_is_taken_over_whole(self, two_ranks: Path, variant: str) -> None:
        taken, of_torch = two_ranks / variant / "from-torch", two_ranks / variant.partition("/")[0] / "torch"
        verify_checkpoint(taken)
        assert_same_content(taken, of_torch)

    def test_what_the_ranks_write_is_together_a_version_of_the_torch_trainer(
        self, two_ranks: Path, variant: str
    ) -> None:
        told = [told_by(two_ranks, variant, rank) for rank in (0, 1)]
        expected = (two_ranks / variant.partition("/")[0] / "version").read_bytes()
        every = Spans.joined((start, end) for rank in told for start, end in rank["share"])  # refuses what overlaps
        assert every.is_all_of(len(expected))
        assert together(*(rank["version"] for rank in told)) == expected
        sums = json.loads((two_ranks / variant.partition("/")[0] / "sums.json").read_text())
        assert any(sums) and list(added(rank["sums"] for rank in told)) == sums

    def test_every_rank_has_the_probe_of_the_torch_trainer(self, two_ranks: Path, variant: str) -> None:
        first, second = (told_by(two_ranks, variant, rank)["probe"] for rank in (0, 1))
        expected = json.loads((two_ranks / variant.partition("/")[0] / "probe.json").read_text())
        assert first == second and first["token_ids"] == expected["token_ids"]
        assert first["logprobs"] == pytest.approx(expected["logprobs"], abs=1e-4)

    def test_a_checkpoint_of_two_ranks_goes_on_in_one_process(
        self, two_ranks: Path, variant: str, make_llama: MakeLlama, tmp_path: Path
    ) -> None:
        trained = two_ranks / variant / "trained"
        trainer = TorchTrainer(make_llama(dtype="bfloat16"), asked(variant.partition("/")[0]), device="cpu")
        trainer.load(trained)
        assert_same_content(save(trainer, tmp_path), trained)
