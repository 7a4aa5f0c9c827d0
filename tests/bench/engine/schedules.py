"""Every schedule on the same trace: several turns a trajectory, with waits that are heavy-tailed, or all alike.

The environment draws each wait from the job's seed, the prompt, the sample and the turn, so every schedule meets the
same ones. The bound is what the waits themselves allow: with every slot always taken and nothing else to do, slots
divided by the mean time that a trajectory is with its environment.
"""

import argparse
from pathlib import Path
from typing import Final

from engine.scorecard.kept import About, keep_about
from engine.scorecard.tables import Row, Spread, rounded
from engine.spec.job import JobSpec
from engine.spec.schedules import SCHEDULES
from tests.bench.engine.report import Report, machine
from tests.bench.engine.runs import Run, own_ray, run_job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trace_arguments(parser)
    parser.add_argument("--runs", type=int, default=1, help="of each, in turns")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="a new folder for the facts, messages and decisions of every run"
    )


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=list(SCHEDULES))
    parser.add_argument("--waits", nargs="+", default=["tailed", "constant"], choices=["tailed", "constant"])
    parser.add_argument("--wait-s", type=float, default=1.0, help="mean seconds of one wait")
    parser.add_argument("--turns", type=int, default=3, help="turns a trajectory, with a wait between two of them")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--weight-slots", type=int, default=2, help="laminar: versions that a replica holds")
    parser.add_argument("--prompts", type=int, default=16, help="prompts a step; each has a group of 4")
    parser.add_argument("--windows", type=int, default=6, help="figures of each run")
    parser.add_argument("--steps", type=int, default=4, help="steps a figure")
    parser.add_argument("--warm-up", type=int, default=4, help="steps before the first figure")


def measure(arguments: argparse.Namespace) -> Report:
    rows: list[Row] = []
    if arguments.keep is not None:
        keep_about(arguments.keep, About(warm_up=arguments.warm_up, machine=machine()))
    with own_ray():
        for repeat in range(1, arguments.runs + 1):
            for waits in arguments.waits:
                for schedule in arguments.schedules:
                    folder = None if arguments.keep is None else arguments.keep / f"{waits}-{schedule}-{repeat}"
                    run = run_job(spec_of(schedule, waits, arguments), keep_in=folder)
                    rows.append(row(schedule, waits, run, arguments))
    with_ratio = [{**row, "times_sync": _times_sync(row, rows)} for row in rows]
    remark = (
        f"{arguments.replicas} replicas, {arguments.prompts} prompts x {GROUP} a step, as many slots; "
        f"{arguments.turns} turns, waits of {arguments.wait_s} s; laminar: {arguments.weight_slots} versions a replica"
    )
    return Report(bench="schedules", rows=with_ratio, remarks=[remark])


GROUP: Final = 4


def spec_of(schedule: str, waits: str, arguments: argparse.Namespace, **schedule_fields: object) -> JobSpec:
    steps = arguments.warm_up + arguments.windows * arguments.steps + 2
    per_step = arguments.prompts * GROUP
    return JobSpec.model_validate(
        {
            "name": f"{schedule}, {waits} waits",
            "schedule": {"name": schedule, **schedule_fields},
            "environment": {
                "name": "tool_sums",
                "params": {"waits": waits, "wait_mean_s": arguments.wait_s, "turns": arguments.turns},
            },
            "training": {"steps": steps, "prompts_per_step": arguments.prompts, "checkpoint_every": steps},
            "algorithm": {"group_size": GROUP},
            "rollout": {
                "replicas": arguments.replicas,
                "max_batch": per_step // arguments.replicas,
                "max_new_tokens": 64,
                **({"weight_slots": arguments.weight_slots} if schedule == "laminar" else {}),
            },
            "evaluation": {"prompts": 1},
        }
    )


def row(schedule: str, waits: str, run: Run, arguments: argparse.Namespace) -> Row:
    per_step = arguments.prompts * GROUP
    windows = run.windows(warm_up=arguments.warm_up, steps=arguments.steps)[: arguments.windows]
    spread = Spread.of([len(steps) * per_step / seconds for seconds, steps in windows])
    counted = [step.metrics for _, steps in windows for step in steps]
    bound = per_step / _mean([metrics["environment/seconds_mean"] for metrics in counted])
    return {
        "schedule": schedule,
        "waits": waits,
        **spread.columns("trajectories_per_s"),
        "bound_per_s": rounded(bound),
        "of_bound": rounded(spread.median / bound),
        "staleness_mean": rounded(_mean([metrics["staleness/mean"] for metrics in counted])),
        "staleness_max": max(metrics["staleness/max"] for metrics in counted),
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _times_sync(row: Row, rows: list[Row]) -> float | None:
    for other in rows:
        if other["schedule"] == "sync" and other["waits"] == row["waits"]:
            own, baseline = row["trajectories_per_s"], other["trajectories_per_s"]
            assert isinstance(own, float) and isinstance(baseline, float)
            return round(own / baseline, 2)
    return None
