"""The cost of versions in learning: reward against samples and simulated time, by schedule, correction and bound.

A run on 64 H800 is simulated for each schedule and bound; a small model then learns the sums from answers that are
written, part by part, by the versions that the run would have had write them. At equal samples a schedule loses what
staleness costs; its time is that of the simulated run's steps.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Final

import torch

from engine.scorecard.tables import Row, Spread, rounded
from engine.spec.job import JobSpec
from engine.spec.recipes import CorrectionName
from tests.bench.engine.report import Report
from tests.bench.engine.versions.learner import Learned, Learner
from tests.bench.engine.versions.trace import CONTESTANT_NAMES, Trace, traced

CORRECTIONS: Final[tuple[CorrectionName, ...]] = ("none", "truncated", "decoupled", "a3po")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schedules", nargs="+", default=["sync_split", "one_step", "partial", "paper", "laminar"],
                        choices=CONTESTANT_NAMES)  # fmt: skip
    parser.add_argument("--corrections", nargs="+", default=["none", "truncated"], choices=CORRECTIONS)
    parser.add_argument("--bounds", type=int, nargs="*", default=[], help="of staleness; none: the schedule's own")
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[3e-4, 1e-3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--median-terms", type=float, default=8.0, help="digits of a sum; more are harder")
    parser.add_argument("--prompts", type=int, default=16, help="a step; each has a group of 8")
    parser.add_argument("--held-out", type=int, default=256, help="prompts")
    parser.add_argument("--model", default="7B", help="of the simulated run")
    parser.add_argument("--groups", type=int, default=512, help="a step of the simulated run; each of 16")
    parser.add_argument("--simulated-steps", type=int, default=8, help="steps to simulate; they repeat")
    parser.add_argument("--processes", type=int, default=2)


GROUP: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    schedule: str
    bound: int | None
    correction: str
    learning_rate: float


def measure(arguments: argparse.Namespace) -> Report:
    bounds: Sequence[int | None] = arguments.bounds or [None]
    traces = {
        (schedule, bound): traced(
            schedule,
            model=arguments.model,
            bound=bound,
            groups=arguments.groups,
            steps=arguments.simulated_steps,
            seed=1,
        )
        for schedule, bound in product(arguments.schedules, bounds)
    }
    cases = [
        Case(schedule=schedule, bound=bound, correction=correction, learning_rate=rate)
        for rate, correction, (schedule, bound) in product(arguments.learning_rates, arguments.corrections, traces)
    ]
    learned = _all(cases, traces, arguments)
    rows = [_row(case, traces[case.schedule, case.bound], learned[case], arguments) for case in cases]
    return Report(
        bench="versions",
        rows=rows,
        remarks=[
            f"sums of {arguments.median_terms:g} digits in the median, {arguments.prompts} prompts x {GROUP}, "
            f"{arguments.steps} steps, seeds {arguments.seeds}; ages of {arguments.model} on 64 H800, single-turn "
            f"mathematics, {arguments.groups} x 16 a step",
        ],
    )


def _all(
    cases: Sequence[Case], traces: dict[tuple[str, int | None], Trace], arguments: argparse.Namespace
) -> dict[Case, list[Learned]]:
    """Seeds in turns, so that a slow minute slows all."""
    runs = [(case, seed) for seed in arguments.seeds for case in cases]
    words = [(_spec(case, seed, arguments), traces[case.schedule, case.bound]) for case, seed in runs]
    results: dict[Case, list[Learned]] = defaultdict(list)
    with ProcessPoolExecutor(max(1, arguments.processes)) as pool:
        for (case, _), learned in zip(runs, pool.map(_learned, words), strict=True):
            results[case].append(learned)
    return results


def _learned(run: tuple[JobSpec, Trace]) -> Learned:
    torch.set_num_threads(1)
    spec, trace = run
    return Learner(spec, trace).learn(evaluate_every=max(1, spec.training.steps // 10))


def _spec(case: Case, seed: int, arguments: argparse.Namespace) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "versions",
            "environment": {"name": "running_sums", "params": {"median_terms": arguments.median_terms}},
            "training": {"steps": arguments.steps, "prompts_per_step": arguments.prompts, "seed": seed},
            "algorithm": {"group_size": GROUP, "correction": {"name": case.correction}},
            "optimizer": {"learning_rate": case.learning_rate},
            "rollout": {"max_batch": arguments.prompts * GROUP, "max_new_tokens": 120},
            "evaluation": {"prompts": arguments.held_out},
        }
    )


def _row(case: Case, trace: Trace, learned: Sequence[Learned], arguments: argparse.Namespace) -> Row:
    after = Spread.of([each.held_out[-1][1] for each in learned])
    middle = Spread.of([_between(each, 4, 6) for each in learned])
    return {
        "schedule": case.schedule,
        "bound": case.bound,
        "correction": case.correction,
        "learning_rate": case.learning_rate,
        "staleness_simulated": rounded(trace.staleness),
        "age_of_tokens": rounded(sum(each.staleness for each in learned) / len(learned)),
        "mixed": rounded(
            sum(each.num_mixed for each in learned) / (len(learned) * arguments.steps * arguments.prompts * GROUP)
        ),
        "held_out_before": rounded(Spread.of([each.held_out[0][1] for each in learned]).median),
        **after.columns("held_out_after"),
        "reward_at_half_the_samples": rounded(middle.median),
        "simulated_step_s": rounded(trace.step_s),
        "reward_per_simulated_hour": rounded(_slope(learned, trace)),
    }


def _between(learned: Learned, first: int, last: int) -> float:
    """Tenths of the steps."""
    num = len(learned.reward)
    rewards = learned.reward[num * first // 10 : num * last // 10]
    return sum(rewards) / max(1, len(rewards))


def _slope(learned: Sequence[Learned], trace: Trace) -> float:
    """Held-out reward gained, over the time in which the simulated run makes as many steps."""
    gained = Spread.of([each.held_out[-1][1] - each.held_out[0][1] for each in learned]).median
    return gained / (len(learned[0].reward) * trace.step_s / 3_600)
