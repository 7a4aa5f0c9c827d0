"""Conformance of two ranks that train together, for every way to shard weights.

A test module starts the ranks and subclasses `TwoRanksConformance`, named Test…. It has the fixtures `two_ranks`, the
folder of their results (`results_of`), and `variant`, the subfolder of one of the trainers: KIND/NAME (`one_of_these`).
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from engine.policy.lineage import WeightsId
from engine.spec.job import AlgorithmSpec, CriticSpec, KlSpec, OptimizerSpec, TeacherSpec, TrainerSpec
from engine.training.checkpoint.folder import MANIFEST_FILE, verify_checkpoint
from engine.training.factory import build_trainer
from engine.training.port import TrainingTrajectory
from engine.training.ranks.world import World
from engine.training.settings import TrainerSettings
from engine.training.trainer import Trainer
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
    # A λ below 1, so that the returns of one trajectory, which are standardised, differ by much more than rounding.
    "critic": (
        AlgorithmSpec(name="ppo", kl=KlSpec(coefficient=0.1, estimator="k1"), critic=CriticSpec(gae_lambda=0.9)),
        {},
        {},
    ),
    "adapter": (AlgorithmSpec(kl=KlSpec(coefficient=0.1)), {"lora_rank": 3, "lora_alpha": 12.0}, {}),
    # The demo model has a larger vocabulary and another shape than these models, so its rows are sharded differently.
    "updates": (
        AlgorithmSpec(teacher=TeacherSpec(source="demo", coefficient=0.3)),
        {},
        {"mini_batches": 2, "passes": 2},
    ),
}


def settings_for(kind: str, **trainer: Any) -> TrainerSettings:
    """Settings with rectangles so small that ranks need several micro-batches, and a sharded reference or teacher."""
    algorithm, parts, updates = KINDS[kind]
    return settings(
        algorithm=algorithm,
        optimizer=OptimizerSpec(learning_rate=1e-3, warmup_steps=3, weight_decay=0.1, eps=SMOOTH_EPS),
        trainer=TrainerSpec(micro_batch_tokens=40, **parts, **trainer),
        **updates,
    )


def batches() -> list[list[TrainingTrajectory]]:
    """The second batch has fewer trajectories than ranks, and a reward that is large against rounding."""
    (one,) = trajectories_of(1, num=1)
    return [trajectories_of(0), [replace(one, reward=1.0)], trajectories_of(2, num=7)]


def poisoned() -> list[TrainingTrajectory]:
    """Trajectories of which only one, and so only one rank, has NaN log-probs."""
    first, *others = trajectories_of(3)
    return [replace(first, behaviour_logprobs=(float("nan"),) * len(first.response_ids)), *others]


def train(trainer: Trainer) -> list[dict[str, float]]:
    return [trainer.train_step(batch).metrics for batch in batches()]


def story(trainer: Trainer, results: Path) -> dict[str, Any]:
    steps = train(trainer)
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
    return {"steps": steps, "skipped": skipped, "kept": kept, "loaded": loaded, "on": on, "again": again, **published}


def train_variant(world: World, folder: Path, settings: TrainerSettings, results: Path) -> None:
    results.mkdir(exist_ok=True)
    trainer = build_trainer(folder, settings, device="cpu", world=world)
    write_facts(story(trainer, results), results, world)
    trainer.close()


def write_facts(facts: dict[str, Any], results: Path, world: World) -> None:
    (results / f"rank-{world.index}.json").write_text(json.dumps(facts))


def facts_of(results: Path, variant: str, rank: int = 0) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((results / variant / f"rank-{rank}.json").read_text())
    return facts


BeARank = Callable[[World, Path, Path], None]
"""(world, the model's folder, the folder for results)"""


def two_processes(
    be_a_rank: BeARank,
    folder: Path,
    results: Path,
    *,
    are_fresh: bool = False,
    num_ranks: int = 2,
    kinds: Iterable[str] = KINDS,
) -> Path:
    """Runs the ranks, and before them the whole trainer on the same batches. Returns `results`, which they fill."""
    for kind in kinds:
        whole_trainer = build_trainer(folder, settings_for(kind), device="cpu")
        (results / kind).mkdir()
        (results / kind / "torch.json").write_text(json.dumps(train(whole_trainer)))
        save(whole_trainer, results / kind / "torch")
        (results / kind / "probe.json").write_text(json.dumps(asdict(whole_trainer.probe())))
        version = whole_trainer.snapshot(WeightsId(0, 0))
        (results / kind / "version").write_bytes(version.buffer)
        (results / kind / "sums.json").write_text(json.dumps(version.manifest.sums))
    assert run_ranks(num_ranks, be_a_rank, folder, results, are_fresh=are_fresh) == [0] * num_ranks
    return results


def results_of(be_a_rank: BeARank, **processes: Any) -> Any:
    """The fixture `two_ranks` of ranks that train a small model. `processes`: as `two_processes` takes."""

    @pytest.fixture(scope="module")
    def two_ranks(make_llama: MakeLlama, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder, results = make_llama(dtype="bfloat16"), tmp_path_factory.mktemp("ranks")
        return two_processes(be_a_rank, folder, results, **processes)

    return two_ranks


def one_of_these(variants: Sequence[str]) -> Any:
    """The fixture `variant`."""

    @pytest.fixture(params=variants)
    def variant(request: pytest.FixtureRequest) -> str:
        name: str = request.param
        return name

    return variant


def sums_written_by(trainer: Trainer) -> tuple[int, ...]:
    whole = Spans.joined([(0, bytes_of(trainer.published.entries))])
    return trainer.published.write(memoryview(bytearray(whole.num_bytes)), whole)


def version_of(trainer: Trainer) -> str:
    """The version as hex for JSON; a rank's has its own values, and zeros for the others'."""
    return trainer.snapshot(WeightsId(0, 0)).buffer.hex()


def together(*versions: str) -> bytes:
    """The ranks' versions merged into one."""
    return bytes(reduce(or_, values) for values in zip(*map(bytes.fromhex, versions), strict=True))


class TwoRanksConformance:
    NUM_RANKS: ClassVar = 2

    def test_two_ranks_make_the_steps_of_the_whole_trainer(self, two_ranks: Path, variant: str) -> None:
        of_torch = two_ranks / variant.partition("/")[0]
        assert_same_steps(
            facts_of(two_ranks, variant)["steps"],
            two_ranks / variant / "trained",
            expected=json.loads((of_torch / "torch.json").read_text()),
            expected_checkpoint=of_torch / "torch",
        )

    def test_ranks_report_equal_metrics_and_skip_together(self, two_ranks: Path, variant: str) -> None:
        first, *others = (facts_of(two_ranks, variant, rank) for rank in range(self.NUM_RANKS))
        assert all(first["steps"] == other["steps"] for other in others)
        assert [metrics["train/skipped"] for metrics in first["steps"]] == [0.0, 0.0, 0.0]
        assert all(first["skipped"] == other["skipped"] for other in others)
        if variant.startswith("updates/"):  # the NaN's mini-batch is skipped in both passes, the other one is not
            assert (first["skipped"]["train/skipped"], first["skipped"]["train/updates"]) == (2.0, 2.0)
            assert [metrics["train/updates"] for metrics in first["steps"]] == [4.0, 2.0, 4.0]
            return
        assert first["skipped"]["train/skipped"] == 1.0
        assert first["kept"] == first["loaded"]  # the weights saved before the skipped step

    def test_two_ranks_resume_bit_for_bit(self, two_ranks: Path, variant: str) -> None:
        facts = facts_of(two_ranks, variant)
        assert facts["again"] == facts["on"]
        ends = [two_ranks / variant / name for name in ("straight", "resumed")]
        assert (ends[0] / MANIFEST_FILE).read_bytes() == (ends[1] / MANIFEST_FILE).read_bytes()

    def test_checkpoint_of_the_whole_trainer_is_loaded_whole(self, two_ranks: Path, variant: str) -> None:
        taken, of_torch = two_ranks / variant / "from-torch", two_ranks / variant.partition("/")[0] / "torch"
        verify_checkpoint(taken)
        assert_same_content(taken, of_torch)

    def test_shares_of_the_ranks_form_the_whole_trainers_version(self, two_ranks: Path, variant: str) -> None:
        ranks = [facts_of(two_ranks, variant, rank) for rank in range(self.NUM_RANKS)]
        expected = (two_ranks / variant.partition("/")[0] / "version").read_bytes()
        every = Spans.joined((start, end) for rank in ranks for start, end in rank["share"])  # refuses overlaps
        assert every.is_all_of(len(expected))
        assert together(*(rank["version"] for rank in ranks)) == expected
        sums = json.loads((two_ranks / variant.partition("/")[0] / "sums.json").read_text())
        assert any(sums) and list(added(rank["sums"] for rank in ranks)) == sums

    def test_every_rank_has_the_probe_of_the_whole_trainer(self, two_ranks: Path, variant: str) -> None:
        first, *others = (facts_of(two_ranks, variant, rank)["probe"] for rank in range(self.NUM_RANKS))
        expected = json.loads((two_ranks / variant.partition("/")[0] / "probe.json").read_text())
        assert all(first == other for other in others) and first["token_ids"] == expected["token_ids"]
        assert first["logprobs"] == pytest.approx(expected["logprobs"], abs=1e-4)

    def test_checkpoint_of_two_ranks_resumes_in_one_process(
        self, two_ranks: Path, variant: str, make_llama: MakeLlama, tmp_path: Path
    ) -> None:
        trained = two_ranks / variant / "trained"
        trainer = build_trainer(make_llama(dtype="bfloat16"), settings_for(variant.partition("/")[0]), device="cpu")
        trainer.load(trained)
        assert_same_content(save(trainer, tmp_path), trained)
