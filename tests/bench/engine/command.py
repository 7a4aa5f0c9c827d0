"""`python -m engine bench NAME [--json]`: the benchmarks by name.

Invariant: a bench is a module of this folder or of a subfolder, with `add_arguments` and `measure`; it is imported only
when it runs.
"""

import argparse
import importlib
import os
from collections.abc import Sequence
from typing import Final

from tests.bench.engine.report import Report, machine, show

TITLES: Final = {
    "schedules": "every schedule on the same trace of waits",
    "deciding": "work of replicas under each schedule at real model widths: counted, measured, priced, simulated",
    "repack": "repack on and off; moving a sample with its KV cache against recomputing it",
    "relay": "weights from trainer to relays: the trainer's stall and the time to the last relay",
    "handover": "publishing weights from one process and from two ranks, against one copy of the same bytes",
    "decode": "tokens per second against transformers, and against vLLM if its environment is set up",
    "rollouts": "vLLM through our engine against vLLM alone, and our overhead per step",
    "versions": "learning lost to old and mixed versions, by the trace of a simulated run on 64 devices",
    "learn": "reward against samples and time, every schedule, several seeds",
    "train": "seconds of a trainer's pass at real model widths, against transformers",
    "agreement": "a device's steps, attention, rollouts and replays against the CPU's, each gap with its bound",
    "gpu": "a GPU's figures of a trainer's work, each with its bound",
    "batch": "seconds from single trajectories to a rank's micro-batches, and the balance of ranks",
    "data": "one data process under the traffic of hundreds of replicas: tokens a second, memory, bytes of its log",
    "decisions": "the time of each brain's decision, from 10 replicas to 100,000",
    "checkpoint": "a checkpoint of several ranks: the stall, the disk, resuming from it",
    "texts": "what rendering, encoding and decoding in a bounded process costs a replica",
    "graders": "hundreds of concurrent calls to a grader that waits: failures, and load of its processes",
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
"""The modules of benches whose module has another name."""


def bench(words: Sequence[str]) -> int:
    """`words`: the arguments after `python -m engine bench`."""
    parser = argparse.ArgumentParser(
        prog="python -m engine bench",
        description="Measures this machine and prints a table, or with --json one object on the last line.",
        epilog="\n".join(f"{name:<10} {title}" for name, title in TITLES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=TITLES, metavar="NAME", help=f"one of {', '.join(TITLES)}; see NAME -h")
    name = parser.parse_args(words[:1]).name
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    module = importlib.import_module(f"tests.bench.engine.{MODULES.get(name, name)}")
    parser = argparse.ArgumentParser(prog=f"python -m engine bench {name}", description=module.__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object on the last line")
    module.add_arguments(parser)
    arguments = parser.parse_args(words[1:])
    found = machine()
    report: Report = module.measure(arguments)
    show(report, found, as_json=arguments.json)
    return 0
