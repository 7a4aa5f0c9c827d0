"""Reward against samples, and against time: every schedule on the demo task, several seeds.

At equal samples a schedule can only lose by staleness; in time it gains by waiting less. The held-out reward is that of
fresh prompts, answered before and after.
"""

import argparse
from typing import Final

from engine.scorecard.tables import Row, Spread, rounded
from engine.spec.job import JobSpec
from engine.spec.schedules import SCHEDULES
from tests.bench.engine.report import Report
from tests.bench.engine.runs import Run, own_ray, run_job

PROMPTS: Final = 16
GROUP: Final = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=list(SCHEDULES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--prompts", type=int, default=512, help="held-out prompts")


def measure(arguments: argparse.Namespace) -> Report:
    runs: dict[str, list[Run]] = {schedule: [] for schedule in arguments.schedules}
    with own_ray():
        for seed in arguments.seeds:  # in turns, so that a slow minute slows all
            for schedule in arguments.schedules:
                runs[schedule].append(run_job(_spec(schedule, seed, arguments)))
    rows = [_row(schedule, its, arguments.steps) for schedule, its in runs.items()]
    remark = f"running sums, {PROMPTS} prompts x {GROUP}, {arguments.steps} steps, seeds {arguments.seeds}"
    return Report(bench="learn", rows=rows, remarks=[remark])


def _spec(schedule: str, seed: int, arguments: argparse.Namespace) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": f"{schedule}, seed {seed}",
            "schedule": {"name": schedule},
            "training": {
                "steps": arguments.steps,
                "prompts_per_step": PROMPTS,
                "seed": seed,
                "checkpoint_every": arguments.steps,
            },
            "algorithm": {"group_size": GROUP},
            "rollout": {"replicas": 2, "max_batch": 64, "max_new_tokens": 80},
            "evaluation": {"prompts": arguments.prompts},
        }
    )


def _row(schedule: str, runs: list[Run], steps: int) -> Row:
    before = Spread.of([_held_out(run, 0) for run in runs])
    after = Spread.of([_held_out(run, steps) for run in runs])
    seconds = Spread.of([run.steps[-1][0] - run.ready_at for run in runs])
    half = Spread.of([_reward_between(run, steps * 4 // 10, steps * 6 // 10) for run in runs])
    staleness = [step.metrics["staleness/mean"] for run in runs for _, step in run.steps]
    return {
        "schedule": schedule,
        "held_out_before": rounded(before.median),
        **after.columns("held_out_after"),
        "reward_at_half_the_samples": rounded(half.median),
        "training_s": rounded(seconds.median),
        "staleness_mean": rounded(sum(staleness) / len(staleness)),
    }


def _held_out(run: Run, version: int) -> float:
    return next(result.reward_mean for _, result in run.evaluations if result.version == version)


def _reward_between(run: Run, first: int, last: int) -> float:
    rewards = [step.metrics["reward/mean"] for _, step in run.steps if first <= step.step <= last]
    return sum(rewards) / len(rewards)
