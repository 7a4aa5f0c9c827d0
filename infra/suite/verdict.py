"""The verdict on a run of the suite.

Invariants:
- a test that fails in the run and once more alone is red; one that passes alone is unsteady, and more than
  `MOST_UNSTEADY` of those are red;
- an unmarked test of the gate that takes over `SLOW_AFTER_S` in the run and alone is printed, one that uses the
  processor for over `TOO_SLOW_CPU_S` both times is red (alone it runs twice, and the first time fills the caches);
  one that fails when it runs twice is unsteady;
- a run that exceeds its time budget, or whose pytest breaks off, is red.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from infra.suite import results
from infra.suite.commands import OVER_BUDGET, run_pytest
from infra.suite.plugin import RECORD, WARM
from infra.suite.results import Result

CHOICE: Final = {"gate": "not long and not soak", "long": "long and not soak"}
BUDGET_S: Final = {"gate": 40 * 60.0, "long": 75 * 60.0}
"""Times SCALE, up to `MOST_S`: a busy host is no reason for a red run."""
MOST_S: Final = {"gate": 75 * 60.0, "long": 150 * 60.0}
"""CI allows 90 minutes, set-up and lint included."""
LAST_RESORT_S: Final = {"gate": 300.0, "long": 1_000.0}
"""Times SCALE: where a test's timeout is not obeyed, as inside C code, its process prints its stacks and ends."""
LEAST_S: Final = 60.0
"""For what is run again when the budget is nearly used up."""
MOST_RETRIED: Final = 20
MOST_UNSTEADY: Final = 3
MOST_TIMED_AGAIN: Final = 12
FAILED, NO_TESTS = 1, 5
"""Exit codes of pytest that add nothing to the recorded results."""


@dataclass(slots=True, kw_only=True)
class Run:
    suite: str
    words: Sequence[str]
    """For pytest: files, folders, options. Empty for the whole suite."""
    scale: float
    folder: Path
    """Takes the records."""
    environment: dict[str, str]
    started_at: float
    options: Sequence[str] = ("--reuse-db",)
    """Of every call of pytest: the databases are there already (`databases.py`)."""
    num_workers: int = field(default_factory=lambda: os.cpu_count() or 1)

    @property
    def budget_s(self) -> float:
        return min(BUDGET_S[self.suite] * self.scale, MOST_S[self.suite])

    def pytest(self, name: str, arguments: Sequence[str], **more: str) -> tuple[int, list[Result]]:
        record = self.folder / f"{name}.jsonl"
        left_s = self.budget_s - (time.monotonic() - self.started_at)
        code = run_pytest(
            ["-m", CHOICE[self.suite], *self.options, *arguments],
            environment={**self.environment, RECORD: str(record), **more},
            record=record,
            last_resort_s=LAST_RESORT_S[self.suite] * self.scale,
            budget_s=max(left_s, LEAST_S),
        )
        return code, results.read_results(record)


@dataclass(slots=True, kw_only=True)
class Verdict:
    tests: list[Result]
    red: list[str] = field(default_factory=list)
    """Names of tests, or a sentence."""
    unsteady: list[Result] = field(default_factory=list)
    slow: list[Result] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """Of what is red though every run of it passed."""

    def add_exit_code(self, code: int) -> None:
        if code == OVER_BUDGET:
            self.red.append("the run exceeded its time budget")
        elif code not in (0, FAILED, NO_TESTS):
            self.red.append(f"pytest broke off with exit code {code}")


def judge(run: Run) -> Verdict:
    code, tests = run.pytest("all", ["-n", str(run.num_workers), *run.words])
    verdict = Verdict(tests=tests)
    verdict.add_exit_code(code)
    failed = results.failures(tests)
    if code == OVER_BUDGET or len(failed) > MOST_RETRIED:
        verdict.red += [result.nodeid for result in failed]
        return verdict
    if failed:
        _retry(run, failed, verdict)
    slow = results.slow_tests(tests, scale=run.scale)
    if slow and run.suite == "gate":
        _time_again(run, slow, verdict)
    if len(verdict.unsteady) > MOST_UNSTEADY:
        verdict.red.append(f"{len(verdict.unsteady)} unsteady tests, {MOST_UNSTEADY} are bearable")
    return verdict


def _retry(run: Run, failed: Sequence[Result], verdict: Verdict) -> None:
    """Runs after the rest: a test that fails only in parallel with others is unsteady, and not broken by the change."""
    print(f"\nThe failed tests again, alone ({len(failed)}):", flush=True)
    code, again = run.pytest("again", [result.nodeid for result in failed])
    verdict.add_exit_code(code)
    passed = {result.nodeid for result in again if result.outcome == "passed"}
    verdict.unsteady = [result for result in failed if result.nodeid in passed]
    verdict.red += [result.nodeid for result in failed if result.nodeid not in passed]


def _time_again(run: Run, slow: Sequence[Result], verdict: Verdict) -> None:
    chosen = sorted(slow, key=lambda result: -result.seconds)[:MOST_TIMED_AGAIN]
    print(f"\nUnmarked tests over {results.SLOW_AFTER_S:.0f} s again, alone ({len(chosen)}):", flush=True)
    code, again = run.pytest("slow", [result.nodeid for result in chosen], **{WARM: "1"})
    if code == OVER_BUDGET:  # timing is dropped: the test in progress was ended, and did not fail
        return
    verdict.unsteady += results.failures(again)
    beside = {result.nodeid: result for result in chosen}
    best = [_better(result, beside[result.nodeid]) for result in again if result.outcome == "passed"]
    verdict.slow = [result for result in best if result.seconds > results.SLOW_AFTER_S * run.scale]
    for result in verdict.slow:
        if result.cpu_s > results.TOO_SLOW_CPU_S * run.scale:
            verdict.red.append(result.nodeid)
            verdict.reasons[result.nodeid] = f"takes {result.cpu_s:.1f} s alone: mark it long or make it faster"


def _better(alone: Result, beside: Result) -> Result:
    return replace(alone, seconds=min(alone.seconds, beside.seconds), cpu_s=min(alone.cpu_s, beside.cpu_s))
