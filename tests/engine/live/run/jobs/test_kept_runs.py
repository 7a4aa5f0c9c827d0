"""Two recorded real runs, and one of them next to its simulation on the same trace."""

import argparse
from pathlib import Path

import pytest

from engine.pipeline.records import Trajectory
from engine.scorecard.kept import About, KeptRun, keep_about, kept_runs
from engine.scorecard.recording import ended, environment_of, trace_of, wait_s
from engine.scorecard.scores import calibrated, document, scores
from tests.bench.engine.report import machine
from tests.bench.engine.runs import run_job
from tests.bench.engine.schedules import add_arguments, spec_of

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("own_ray")]

WARM_UP = 1
NUM_TURNS = 3


@pytest.fixture(scope="module")
def folder(own_ray: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of `bench schedules --keep`, on the tests' Ray."""
    kept: Path = tmp_path_factory.mktemp("kept") / "runs"
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    sizes = f"--replicas 1 --prompts 4 --windows 2 --steps 2 --warm-up {WARM_UP} --wait-s 0.05 --turns {NUM_TURNS}"
    arguments = parser.parse_args(sizes.split())
    keep_about(kept, About(warm_up=WARM_UP, machine=machine()))
    for waits in ("constant", "tailed"):
        run_job(spec_of("laminar", waits, arguments), keep_in=kept / f"{waits}-laminar-1")
    return kept


@pytest.fixture
def run(folder: Path) -> KeptRun:
    [tailed] = [run for run in kept_runs(folder) if "tailed" in run.folder.name]
    return tailed


def parts_of(trajectory: Trajectory, *, is_own: bool) -> list[tuple[int, float | None]]:
    assert trajectory.content is not None
    return [(each.num_tokens, each.seconds) for each in trajectory.content.utterances if each.is_own == is_own]


@pytest.mark.long
def test_trace_has_tokens_and_waits_of_every_sample(run: KeptRun) -> None:
    trace, environment, num = trace_of(run, overhead_s=0.0), environment_of(run.spec), 0
    for each in ended(run.recordings):
        work = trace.work(run.spec.training.seed, each.key)
        assert [num for num, _ in parts_of(each, is_own=True)] == list(work.turns) and len(work.turns) == NUM_TURNS
        assert [tokens for tokens, _ in parts_of(each, is_own=False)] == [call.tokens for call in work.calls]
        assert work.num_tokens - work.prompt == each.num_tokens
        for turn, (_, seconds) in enumerate(parts_of(each, is_own=False)):
            # A sleeping thread never wakes early: the reported wait is longer than the drawn one.
            assert seconds is not None and seconds >= wait_s(environment, each.key, turn) > 0
            assert work.calls[turn].takes_s == wait_s(environment, each.key, turn)
        num += 1
    assert num >= run.spec.training.steps * run.trajectories_per_step


@pytest.mark.long
def test_scorecard_compares_a_run_with_its_simulation(folder: Path, run: KeptRun) -> None:
    using = calibrated(folder / "constant-laminar-1")
    card = scores(folder, using)
    assert {score.name for score in card} == {run.spec.name}
    assert all(score.measured.num == 1 for score in card)
    by_figure = {score.figure: score for score in card}
    assert by_figure["trajectories_per_s"].measured.median > 0 and by_figure["trajectories_per_s"].predicted.median > 0
    text = document(folder, using, card, command="a test")
    assert run.spec.name in text and "4 are needed" in text, "so short a run has too few stretches"
    assert using.num_turns >= run.spec.training.steps * run.trajectories_per_step * (NUM_TURNS - 1)
    [handover] = [each for each in using.fit.constants if each.constant.name == "handover_rate"]
    assert not handover.why_not and handover.num_observations == run.spec.training.steps
