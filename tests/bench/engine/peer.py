"""Trained samples per second of this engine and of TRL's GRPOTrainer: same model, task, groups and number of samples,
the same cores, one after the other, in turns; and where a step of each spends its time.

A sample counts when an optimizer step has consumed it. Loading and the first steps are not counted. This engine's
processes use one thread each; TRL runs with one and with one per core, and the better result counts. With tools TRL
runs twice: with its own loop, which calls the tools of a batch one after the other, and with a loop written here, in
which all samples of a batch wait at once.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from functools import partial

from engine.scorecard.tables import Row, Spread
from tests.bench.engine.peers.ours import run_ours
from tests.bench.engine.peers.split import Measured, columns, waits_by_part
from tests.bench.engine.peers.tasks import GROUP, PROMPTS, TASKS
from tests.bench.engine.peers.trl import run_trl
from tests.bench.engine.report import Report
from tests.bench.engine.runs import own_ray

OURS = "this engine"
TRL = "TRL GRPOTrainer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--steps", type=int, default=60, help=f"counted steps of {PROMPTS * GROUP} samples a run")
    parser.add_argument("--tool-steps", type=int, default=2, help="of TRL where its tools wait one after the other")
    parser.add_argument("--waiting-steps", type=int, default=12, help="of TRL where they wait at once")
    parser.add_argument("--warm-up", type=int, default=4, help="steps before, not counted")
    parser.add_argument("--repeats", type=int, default=5)


def measure(arguments: argparse.Namespace) -> Report:
    rows: list[Row] = []
    remarks = [f"demo model, {PROMPTS} prompts x {GROUP}, {arguments.steps} counted steps a run; ms of a step"]
    with own_ray():
        for name in arguments.tasks:
            runs = _in_turns(_systems(name, arguments), repeats=arguments.repeats)
            rows += _rows(name, runs)
            remarks.append(f"{TASKS[name].title}, {OURS}: CPU ms of a step by process: {waits_by_part(runs[OURS])}")
    return Report(bench="peer", rows=rows, remarks=remarks)


def _systems(name: str, arguments: argparse.Namespace) -> Mapping[str, Callable[[], Measured]]:
    steps, warm_up = arguments.steps, arguments.warm_up
    ours = partial(run_ours, TASKS[name], steps=steps, warm_up=warm_up)
    if TASKS[name].num_turns == 1:
        cores = sorted({1, len(os.sched_getaffinity(0))})
        run = partial(run_trl, name, steps=steps, warm_up=warm_up)
        return {OURS: ours, **{f"{TRL}, threads: {threads}": partial(run, threads=threads) for threads in cores}}
    return {  # which wait: one thread is enough
        OURS: ours,
        f"{TRL}, its own loop": partial(run_trl, name, steps=arguments.tool_steps, warm_up=1, threads=1),
        f"{TRL}, waits at once": partial(
            run_trl, name, steps=arguments.waiting_steps, warm_up=2, threads=1, at_once=True
        ),
    }


def _in_turns(systems: Mapping[str, Callable[[], Measured]], *, repeats: int) -> dict[str, list[Measured]]:
    runs: dict[str, list[Measured]] = {name: [] for name in systems}
    for _ in range(repeats):
        for name, run in systems.items():
            runs[name].append(run())
    return runs


def _rows(task: str, runs: Mapping[str, list[Measured]]) -> list[Row]:
    medians = {name: Spread.of([run.samples_per_s for run in its]).median for name, its in runs.items()}
    return [
        {
            "task": TASKS[task].title,
            "system": name,
            **columns(its),
            "ours_over_it": round(medians[OURS] / medians[name], 2),
        }
        for name, its in runs.items()
    ]
