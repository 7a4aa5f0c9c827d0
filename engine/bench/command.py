"""`python -m engine bench NAME [--json]`: the benchmarks by name.

Invariant: a bench is a module of this folder or of one of its rooms, with `add_arguments` and `measure`; nothing of it
is imported before it is asked for.
"""

import argparse
import importlib
import os
from collections.abc import Sequence
from typing import Final

from engine.bench.report import Report, machine, show

TITLES: Final = {
    "schedules": "who waits for whom: every schedule on the same trace of waits",
    "deciding": "what each schedule has replicas do at true widths, counted, measured, priced and simulated",
    "repack": "moving tails together, on and off; a move with its KV cache against computing it again",
    "relay": "weights on their way: the trainer's stall and the time to the last relay",
    "handover": "weights out of the trainer, of one process and of two ranks, against one copy of the same bytes",
    "decode": "tokens per second against transformers, and against vLLM where its environment is",
    "rollouts": "vLLM through us against vLLM alone, and our own time a step",
    "versions": "what old and mixed versions cost in learning, by the trace of a simulated run on 64 devices",
    "learn": "reward against samples and time, every schedule, several seeds",
    "train": "seconds of a trainer's pass at true widths, against transformers",
    "agreement": "a device's steps, attention, rollouts and replays against the CPU's, each gap beside its bound",
    "gpu": "a GPU's figures of a trainer's work, each beside its bound",
    "batch": "seconds of a batch's way from single trajectories to a rank's micro-batches, and how even ranks' work is",
    "data": "one data process under the traffic of hundreds of replicas: tokens a second, memory, bytes of its log",
    "decisions": "the time of each brain's decision, from 10 replicas to 100,000",
    "checkpoint": "a checkpoint of several ranks: the stall, the disk, going on from it",
    "graders": "calls to a grader that waits, hundreds at once: how many fail, and how busy its processes are",
    "peer": "trained samples per second against TRL, with tools and without, and where a step's time goes",
}
MODULES: Final = {
    "deciding": "deciding.counted",
    "versions": "versions.learning",
    "relay": "relays.travel",
    "handover": "relays.handover",
    "decode": "rollouts.decode",
    "rollouts": "rollouts.beside_alone",
    "data": "data.saturation",
    "decisions": "data.decisions",
}
"""Of those whose module is not simply called as they are."""


def bench(words: Sequence[str]) -> int:
    """`words`: what follows `python -m engine bench`."""
    parser = argparse.ArgumentParser(
        prog="python -m engine bench",
        description="Measures this machine: a table, or with --json one object, last on standard output.",
        epilog="\n".join(f"{name:<10} {title}" for name, title in TITLES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=TITLES, metavar="NAME", help=f"one of {', '.join(TITLES)}; NAME -h tells more")
    name = parser.parse_args(words[:1]).name
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    module = importlib.import_module(f"engine.bench.{MODULES.get(name, name)}")
    parser = argparse.ArgumentParser(prog=f"python -m engine bench {name}", description=module.__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object, last on standard output")
    module.add_arguments(parser)
    arguments = parser.parse_args(words[1:])
    found = machine()
    report: Report = module.measure(arguments)
    show(report, found, as_json=arguments.json)
    return 0
