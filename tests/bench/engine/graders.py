"""A worker's calls to a customer's grader that waits: how many fail, and how busy its processes are.

Every open sample makes one call, all at the same time, as after a long step of all replicas. The bound is the host's
number of processes, divided by the seconds of a call.
"""

import argparse
import time
from queue import SimpleQueue
from typing import Final

from engine.environments.port import Prompt, Turn
from engine.environments.registry import make_environment
from engine.environments.sandbox.capacity import host_capacity
from engine.live.environment.turn_threads import TurnThreads
from engine.live.environment.turns import Answer, Ask
from engine.pipeline.messages.addresses import rollout_address
from engine.pipeline.records import Failure, GroupKey, SampleKey
from engine.scorecard.tables import Row, rounded
from engine.spec.job import EnvironmentSpec
from tests.bench.engine.report import Report

CODE: Final = """
import time


def prompt(split, ordinal, seed, params):
    return {"text": f"{split} {ordinal}", "facts": {}}


def respond(prompt, turns):
    time.sleep(SECONDS)
    return {"reward": 1.0}
"""
TIMEOUT: Final = 2.0
"""In calls."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--open", type=int, nargs="+", default=[512, 4_096], help="open samples (512 4096)")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a call (3)")


def measure(arguments: argparse.Namespace) -> Report:
    rows = [_row(num_open, arguments.seconds) for num_open in arguments.open]
    return Report(bench="graders", rows=rows, remarks=[f"a call takes {arguments.seconds:g} s, all of it asleep"])


def _row(num_open: int, seconds: float) -> Row:
    code = CODE.replace("SECONDS", repr(seconds))
    spec = EnvironmentSpec(name="custom", code=code, turn_timeout_s=TIMEOUT * seconds)
    answers: SimpleQueue[Answer] = SimpleQueue()
    environment = make_environment(spec, seed=0, data_folder=None)
    threads = TurnThreads(environment, timeout_s=spec.turn_timeout_s, answer=lambda _, answer: answers.put(answer))
    prompt = Prompt(split="train", ordinal=0, text="train 0", facts={})
    began = time.monotonic()
    for sample in range(num_open):
        key = SampleKey(group=GroupKey(ordinal=0), sample=sample)
        threads.ask(Ask(by=rollout_address(0), key=key, prompt=prompt, turns=(Turn(text="x"),)))
    replies = [answers.get() for _ in range(num_open)]
    lasted_s = time.monotonic() - began
    bound_per_s = host_capacity().most / seconds
    return {
        "open": num_open,
        "failed": sum(isinstance(answer.result, Failure) for answer in replies),
        "processes": host_capacity().most,
        "seconds": rounded(lasted_s),
        "calls_per_s": rounded(num_open / lasted_s),
        "bound_per_s": rounded(bound_per_s),
        "of_the_bound": rounded(num_open / lasted_s / bound_per_s),
        "longest_wait_s": rounded(max(answer.waited_s for answer in replies)),
    }
