"""Steps of several updates: the cut of a batch, the passes before it, and the effect of clips and corrections."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from engine.spec.job import AlgorithmSpec, CorrectionSpec, CriticSpec, OptimizerSpec
from engine.spec.recipes import CorrectionName
from engine.training.port import TrainingTrajectory
from engine.training.step.mini_batch import cut
from tests.engine.conftest import MakeLlama
from tests.engine.process.test_progress import noted
from tests.engine.training.step.mini_batch_conformance import (
    PARTS,
    four_groups,
    written_by,
)
from tests.engine.training.trainer_conformance import SMOOTH_EPS, save, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")


# Cutting --------------------------------------------------------------------------------------------------------------


def answer(group: int, num_tokens: int, *, written: bool = True) -> TrainingTrajectory:
    return TrainingTrajectory(
        group=group,
        prompt_ids=(5,),
        response_ids=(6,) * num_tokens,
        behaviour_logprobs=(-1.0,) * num_tokens,
        reward=0.0,
        written=(written,) * num_tokens,
    )


groups_of_answers = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=12)


@given(groups_of_answers, st.integers(1, 16), st.randoms(use_true_random=False))
def test_parts_have_equal_numbers_of_groups_and_balanced_tokens(
    groups: list[list[int]], num_parts: int, chance: Any
) -> None:
    batch = [answer(group, length) for group, lengths in enumerate(groups) for length in lengths]
    chance.shuffle(batch)
    parts = cut(batch, num_parts)
    assert len(parts) == min(num_parts, len(groups)) and all(part == sorted(part) for part in parts)
    assert sorted(index for part in parts for index in part) == list(range(len(batch)))
    members = [{batch[index].group for index in part} for part in parts]
    assert sum(map(len, members)) == len(groups), "no group is divided"
    assert max(map(len, members)) - min(map(len, members)) <= 1
    loads = [sum(1 + length for group in each for length in groups[group]) for each in members]
    assert max(loads) - min(loads) <= max(sum(1 + length for length in lengths) for lengths in groups)
    assert cut(batch, num_parts) == parts


@given(groups_of_answers, st.lists(st.booleans(), min_size=12, max_size=12), st.integers(1, 16))
def test_every_part_has_a_written_token(groups: list[list[int]], mute: list[bool], num_parts: int) -> None:
    batch = [
        answer(group, length, written=not mute[group] or group == 0)
        for group, lengths in enumerate(groups)
        for length in lengths
    ]
    parts = cut(batch, num_parts)
    assert all(any(any(batch[index].written) for index in part) for part in parts)
    assert sum(map(len, parts)) == len(batch)


def test_four_groups_are_cut_into_the_expected_parts() -> None:
    assert cut(four_groups(), 2) == [list(part) for part in PARTS]


# Before the first update ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("correction", "mini_batches", "passes", "num_before"),
    [
        ("truncated", 1, 1, 0),  # the step's only update computes the log-probs itself
        ("truncated", 1, 2, 0),  # the first pass computes them
        ("truncated", 2, 1, 8),  # those of the second mini-batch
        ("decoupled", 2, 3, 8),  # once, for any number of passes
        ("aipo", 2, 2, 0),
        ("none", 2, 2, 0),
        ("a3po", 2, 2, 0),
    ],
)
def test_only_logprobs_that_no_update_computes_are_scored_before(
    make_llama: MakeLlama, correction: CorrectionName, mini_batches: int, passes: int, num_before: int
) -> None:
    """Each micro-batch holds one answer."""
    batch = four_groups()
    algorithm = AlgorithmSpec(correction=CorrectionSpec(name=correction))
    trainer = trainer_of(make_llama(), algorithm=algorithm, mini_batches=mini_batches, passes=passes)
    trainer._steps._micro_batch_tokens = 1
    with noted() as progress:
        trainer.train_step(batch)
    assert progress.counts["scoring"] == num_before
    assert progress.counts["micro-batch"] == len(batch) * passes


def test_gap_to_rollouts_is_measured_before_the_policy_moves(make_llama: MakeLlama) -> None:
    folder = make_llama()
    batch = [replace(each, staleness=()) for each in written_by(folder, four_groups())]
    for correction in ("truncated", "none"):
        algorithm = AlgorithmSpec(correction=CorrectionSpec.model_validate({"name": correction}))
        metrics = trainer_of(folder, algorithm=algorithm, mini_batches=2, passes=2).train_step(batch).metrics
        assert metrics["train/logprob_gap_max"] < 1e-4 < 1e-2 < metrics["train/behaviour_kl"]


# Algorithms that differ only with several updates ---------------------------------------------------------------------


def corrected(name: CorrectionName, **given: Any) -> AlgorithmSpec:
    return AlgorithmSpec(name="dapo", correction=CorrectionSpec(name=name), **given)


def ppo(value_clip: float) -> AlgorithmSpec:
    return AlgorithmSpec(name="ppo", critic=CriticSpec(value_clip=value_clip, learning_rate=3e-2))


ALIKE_IN_ONE_UPDATE = {
    "grpo, unclipped": (0.0, AlgorithmSpec(), AlgorithmSpec(clip_low=1.0, clip_high=10.0)),
    "grpo, gspo": (0.0, AlgorithmSpec(), AlgorithmSpec(name="gspo")),
    "dapo, cispo": (0.0, AlgorithmSpec(name="dapo"), AlgorithmSpec(name="cispo")),
    "dapo, with grpo's clip": (0.0, AlgorithmSpec(name="dapo"), AlgorithmSpec(name="dapo", clip_high=0.2)),
    "rloo, unclipped": (0.0, AlgorithmSpec(name="rloo"), AlgorithmSpec(name="rloo", clip_low=1.0, clip_high=10.0)),
    "ppo, other value clip": (0.0, ppo(1e-3), ppo(1e3)),
    "truncated, aipo": (0.1, corrected("truncated"), corrected("aipo")),
    "masked, aipo": (0.1, corrected("masked"), corrected("aipo")),
    "icepop, aipo": (0.1, corrected("icepop"), corrected("aipo")),
    "decoupled, aipo": (0.1, corrected("decoupled"), corrected("aipo")),
    "none, truncated": (0.1, corrected("none"), corrected("truncated")),
    "none, decoupled": (0.1, corrected("none"), corrected("decoupled")),
    "none, aipo": (0.1, corrected("none"), corrected("aipo")),
    "a3po, decoupled": (0.1, corrected("a3po"), corrected("decoupled")),
}
"""How far the writer's log-probs are below the model's, and two algorithms: with tokens that far off, all inside every
band, a step of one update is the same for both."""


@pytest.mark.long_except("grpo, unclipped", "grpo, gspo", "decoupled, aipo", "a3po, decoupled")
@pytest.mark.parametrize("pair", ALIKE_IN_ONE_UPDATE)
def test_algorithms_equal_in_one_update_differ_in_two(make_llama: MakeLlama, tmp_path: Path, pair: str) -> None:
    folder = make_llama()
    behind, *algorithms = ALIKE_IN_ONE_UPDATE[pair]
    batch = written_by(folder, four_groups(), aside=lambda index: -behind)

    def after(algorithm: AlgorithmSpec, passes: int) -> dict[str, Tensor]:
        optimizer = OptimizerSpec(learning_rate=3e-2, warmup_steps=0, eps=SMOOTH_EPS)
        trainer = trainer_of(folder, algorithm=algorithm, optimizer=optimizer, passes=passes)
        trainer.train_step(batch)
        saved = save(trainer, tmp_path / f"{algorithms.index(algorithm)}-{passes}")
        return {
            **load_file(saved / "model.safetensors"),
            **{name: t for name, t in load_file(saved / "optimizer.safetensors").items() if "master/" in name},
        }

    def apart(passes: int) -> float:
        one, other = (after(algorithm, passes) for algorithm in algorithms)
        return max((one[name] - other[name]).abs().max().item() for name in one)

    assert apart(1) < 1e-4 < 1e-3 < apart(2)


def test_a_critic_learns_in_every_update(make_llama: MakeLlama) -> None:
    def loss_after(passes: int) -> float:
        trainer = trainer_of(make_llama(), algorithm=ppo(1e3), optimizer=OptimizerSpec(warmup_steps=0), passes=passes)
        trainer.train_step(four_groups())
        return trainer.train_step(four_groups()).metrics["train/value_loss"]

    assert loss_after(4) < loss_after(1)
