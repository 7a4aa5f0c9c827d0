"""Unit tests: a model's program run against a dataset's tests, each side in a sandbox of its own.

    tests (warm) ── ask: add(1, 2) ──> engine ── call ──> program (a fresh sandbox for every answer)
                 <── value: 3 ────────        <── 3 ─────

An answer of the data set is either Python (each top-level assertion or call is a test), or a list of
`{"input": ..., "output": ...}`: then the program is run on every input, and its output is compared.

Invariants:
- the program never shares a process with the tests, and never sees them or an expected value;
- the reward is 1 if all tests pass, otherwise 0; a program that crashes, exits, does not load, or exhausts its own time
  or memory has failed: without a reward of 0, a model that finds no answer would write an endless loop;
- a program's own time (`own_time.py`) is the time that it computed or slept, without waits for a free sandbox or a
  core, and without its tests' time;
- tests that fail by themselves raise `GraderError` before the program starts; from then on every failure counts
  against the program, since its values may have caused it (a test that prints or stores them, for one);
- a sandbox that did not start, or had no core, is the platform's fault.
"""

import json
import re
import threading
from typing import Final

from engine.environments.judging.digests import Digests
from engine.environments.judging.graders import blame_for, grader_error, inside_file
from engine.environments.judging.program import Program
from engine.environments.port import GraderError, Verdict
from engine.environments.sandbox.capacity import host_capacity
from engine.environments.sandbox.command import require_bubblewrap
from engine.environments.sandbox.excuses import room_in
from engine.environments.sandbox.outcome import Finished, Limits, Refused, Starved
from engine.environments.sandbox.own_time import OwnTime
from engine.environments.sandbox.run import run_python
from engine.environments.sandbox.worker import CallFailed, WorkerPool

_BLOCK: Final = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


class UnitTests:
    def __init__(self, *, timeout_s: float) -> None:
        """`timeout_s`: a program's own time for all of its tests; the tests have the same."""
        require_bubblewrap()
        num_at_once = host_capacity().programs
        self._room = threading.BoundedSemaphore(num_at_once)
        self._timeout_s = timeout_s
        self._limits = Limits(wall_s=timeout_s, cpu_s=max(round(timeout_s), 1))
        files = {"main.py": inside_file("tests.py"), "values.py": inside_file("values.py")}
        self._sound = Digests()
        """Tests that were checked."""
        self._tests = WorkerPool(files=files, limits=self._limits, size=num_at_once)

    def verdict(self, due: str, answer: str) -> Verdict:
        program = program_of(answer)
        cases = _parse_cases(due)
        with room_in(self._room):
            return self._run_tests(due, program) if cases is None else self._run_cases(cases, program)

    def _run_cases(self, cases: list[tuple[str, str]], program: str) -> Verdict:
        passed, failure = 0, ""
        spent_s = 0.0
        for at, (given, expected) in enumerate(cases, start=1):
            own = self._own_time()
            own.own_s = spent_s
            outcome = run_python(program, stdin=given, limits=self._limits, own=own)
            if isinstance(outcome, Refused | Starved):
                raise GraderError(f"unit_tests: case {at} {outcome}", blame=blame_for(outcome))
            right = isinstance(outcome, Finished) and outcome.exit_code == 0
            right = right and not outcome.output.stdout_truncated and _lines(outcome.output.stdout) == _lines(expected)
            passed += right
            failure = failure or ("" if right else f"case {at}: {outcome}")
            spent_s = own.own_s
            if not own.left_s:
                return _verdict(passed, len(cases), failure or f"all cases took longer than {self._timeout_s:g} s")
        return _verdict(passed, len(cases), failure)

    def _run_tests(self, tests: str, program: str) -> Verdict:
        self._check_tests(tests)
        with Program(program, limits=self._limits) as solution:
            names, failure = solution.load()
            if failure:
                return _verdict(0, 1, f"the program did not load: {failure}")

            def ask(question: object) -> object:
                assert isinstance(question, dict)  # the tests' process sends it, which runs no code of the program
                return solution.call(question["call"], question["arguments"], question["keywords"])

            try:
                counts = self._tests.call("run_tests", tests, names, deadline_s=self._timeout_s, ask=ask)
            except CallFailed as error:
                if isinstance(error.outcome, Refused | Starved):
                    raise grader_error("unit_tests", error) from error
                return _verdict(0, 1, f"the tests {error.outcome or f'failed: {error.last_line}'}")
            match counts:
                case {"num": int() as num, "passed": int() as passed, "failure": str() as failure} if num > 0:
                    # Tests that expect an exception may have passed because the program ended.
                    return _verdict(passed, num, failure) if solution.is_alive else _ended(num, failure)
            return _verdict(0, 1, "the tests sent no result")

    def _check_tests(self, tests: str) -> None:
        """Faults of the tests are found before the program starts, so that it can cause none. Raises `GraderError`."""
        if (tests,) in self._sound:
            return
        try:
            self._tests.call("check_tests", tests, deadline_s=self._timeout_s)
        except CallFailed as error:
            raise grader_error("unit_tests", error) from error
        self._sound.add(tests)

    def _own_time(self) -> OwnTime:
        return OwnTime.scaled(self._limits.wall_s, self._limits.cpu_s)


def program_of(answer: str) -> str:
    """The last code block, or the whole answer if it has none."""
    blocks = _BLOCK.findall(answer)
    return str(blocks[-1]) if blocks else answer


def _parse_cases(due: str) -> list[tuple[str, str]] | None:
    if not due.lstrip().startswith("["):
        return None
    try:
        return [(str(case["input"]), str(case["output"])) for case in json.loads(due)]
    except (ValueError, TypeError, KeyError) as error:
        raise GraderError(
            f'unit_tests: cases must be {{"input": ..., "output": ...}}: {error!r}', retryable=False
        ) from error


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _ended(num: int, failure: str) -> Verdict:
    return _verdict(0, num, f"the program ended; {failure}")


def _verdict(passed: int, num: int, failure: str) -> Verdict:
    all_passed = passed == num
    return Verdict(
        reward=float(all_passed),
        parts={"share_of_tests_passed": passed / num},
        trusted=True,
        remark=f"passed all {num} tests" if all_passed else f"passed {passed} of {num}; {failure}"[:500],
    )
