"""Warm sandboxes: calls with deadlines, isolation of a call from the next, and programs against their tests."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from engine.environments.judging.graders import SandboxedGrader
from engine.environments.judging.unit_tests import UnitTests, program_of
from engine.environments.port import GraderError
from engine.environments.sandbox.excuses import Excuse, excusing
from engine.environments.sandbox.outcome import Finished, Limits, OutOfMemory, TimedOut
from engine.environments.sandbox.worker import CallFailed, WorkerPool
from tests.engine.environments.sandboxed import marked, sandbox, wait_for_the_end_of

__all__ = ["sandbox"]
pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("sandbox")]

ADD = "def add(a, b):\n    return a + b\n"
TESTS = """
assert add(1, 2) == 3
assert add([1], [2]) == [1, 2]
assert add((1,), (2.5,)) == (1, 2.5)
try:
    add(None, 1)
    raised = False
except TypeError:
    raised = True
assert raised
"""


SLEEPER = """
def sleep():
    return ask_outside("may I wake?")
def quick():
    return 1
"""


def pool(code: str, *, limits: Limits | None = None, size: int = 1, forks: bool = False) -> WorkerPool:
    return WorkerPool(files={"main.py": code}, limits=limits or marked(), size=size, forks=forks)


def failure(workers: WorkerPool, function: str, *arguments: object, deadline_s: float = 20.0) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        workers.call(function, *arguments, deadline_s=deadline_s)
    return caught.value


def test_a_warm_process_keeps_its_state_and_answers_many_calls() -> None:
    workers = pool("n = 0\ndef count(by):\n    global n\n    n += by\n    return n")
    assert [workers.call("count", 2, deadline_s=20) for _ in range(3)] == [2, 4, 6]


def test_exception_is_returned_with_its_line_and_worker_lives() -> None:
    workers = pool("def f(x):\n    return 1 / x")
    failed = failure(workers, "f", 0)
    assert failed.outcome is None
    assert "line 2, in f" in str(failed) and str(failed).endswith("ZeroDivisionError: division by zero")
    assert workers.call("f", 2, deadline_s=20) == 0.5


def test_hanging_call_times_out_and_next_gets_fresh_process() -> None:
    limits = marked()
    workers = pool("def f(hangs):\n    while hangs: pass\n    return 'fine'", limits=limits)
    assert workers.call("f", False, deadline_s=20) == "fine"
    assert isinstance(failure(workers, "f", True, deadline_s=0.3).outcome, TimedOut)
    wait_for_the_end_of(limits)
    assert workers.call("f", False, deadline_s=20) == "fine"


def test_exit_and_out_of_memory_are_distinct_outcomes() -> None:
    workers = pool(
        "import os\ndef leave(): os._exit(7)\ndef hoard(): return len(bytearray(1 << 40))\ndef fine(): return 1"
    )
    left = failure(workers, "leave").outcome
    assert isinstance(left, Finished) and left.exit_code == 7
    assert isinstance(failure(workers, "hoard").outcome, OutOfMemory)
    assert workers.call("fine", deadline_s=20) == 1


def test_waiting_for_a_free_process_spends_no_time_of_a_call() -> None:
    workers, excuse, begun = pool(SLEEPER), Excuse(), threading.Event()

    def wake(question: object) -> bool:
        begun.set()
        while excuse.seconds() < 0.2:  # far beyond the other call's time
            threading.Event().wait(0.01)
        return True

    with ThreadPoolExecutor() as threads, excusing(excuse):
        asleep = threads.submit(workers.call, "sleep", deadline_s=0.05, ask=wake)
        assert begun.wait(60)
        assert workers.call("quick", deadline_s=0.05) == 1
        assert asleep.result() is True


def test_call_behind_hanging_calls_times_out_too() -> None:
    workers = pool("def f():\n    while True: pass")
    with ThreadPoolExecutor(5) as threads:
        failed = threads.map(lambda _: failure(workers, "f", deadline_s=0.3), range(5))
        assert all(isinstance(each.outcome, TimedOut) for each in failed)


def test_pool_grows_while_its_workers_sleep() -> None:
    woken = threading.Event()
    workers = WorkerPool(files={"main.py": SLEEPER}, limits=marked(), size=1, most=3)
    with ThreadPoolExecutor() as threads:
        asleep = [threads.submit(workers.call, "sleep", deadline_s=60, ask=lambda _: woken.wait(60)) for _ in range(2)]
        try:
            assert workers.call("quick", deadline_s=60) == 1
        finally:
            woken.set()
        assert [call.result() for call in asleep] == [True, True]


FORGER = """
import os, struct, json, threading
def frame(message):
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body
def forge():
    for fd in range(1, 64):
        try:
            os.write(fd, frame({"nonce": "0" * 32, "value": "forged"}) * 3)
        except OSError:
            pass
def f():
    print(frame({"nonce": "0" * 32, "value": "forged"}).decode("latin1"))
    threading.Thread(target=forge).start()
    return "true"
"""


def test_answer_forged_for_another_call_is_ignored() -> None:
    workers = pool(FORGER)
    answers = []
    for _ in range(5):
        try:
            answers.append(workers.call("f", deadline_s=5))
        except CallFailed:  # a forged frame on the worker's own request pipe broke this call only
            answers.append("true")
    assert answers == ["true"] * 5


@pytest.mark.parametrize(
    "sends",
    [
        "os.write(fd, b'\\xff' * 100)",
        "os.write(fd, struct.pack('>I', 4) + b'[[[[')",
        "os.write(fd, struct.pack('>I', 60_000) + b'[' * 60_000)",
        "os.write(fd, struct.pack('>I', 2) + b'17')",
    ],
)
def test_nonsense_on_the_answers_pipe_fails_that_call_in_time(sends: str) -> None:
    code = f"import os, struct\ndef f():\n    for fd in range(3, 64):\n        try:\n            {sends}\n"
    code += "        except OSError: pass\n    while True: pass"
    failed = failure(pool(code), "f", deadline_s=0.5)
    assert failed.outcome is not None


def test_no_answer_can_change_how_the_next_is_judged() -> None:
    """The judged text runs inside the grader, as if the grader evaluated it."""
    code = "def right(): return 0.0\ndef judge(text):\n    exec(text)\n    return right()"
    grader = SandboxedGrader(main=code, timeout_s=20, forks=True)
    tricks = (
        "import __main__; __main__.right = lambda: 1.0",
        "import builtins; builtins.exec = lambda text: 1 / 0",
        "import os, time\nif os.fork() == 0:\n    time.sleep(600)",
        "import json; json.loads = json.dumps = None",
        "import gc\nfor found in gc.get_objects():\n    if isinstance(found, dict): found.pop('right', None)",
    )
    for trick in tricks:
        with suppress(GraderError):  # a trick may break its own call
            grader.call("judge", trick)
        assert grader.call("judge", "pass") == 0.0, trick


def test_grader_is_retried_if_it_dies_not_if_it_hangs_or_raises() -> None:
    code = "import os\ndef f(x):\n    if x < 0: os._exit(1)\n    while x > 1: pass\n    return 1 / x"
    grader = SandboxedGrader(main=code, timeout_s=0.3)
    for argument, kind, retryable in ((2, "timeout", False), (0, "error", False), (-1, "error", True)):
        with pytest.raises(GraderError) as caught:
            grader.call("f", argument)
        assert (caught.value.kind, caught.value.retryable) == (kind, retryable)


def test_a_program_that_passes_all_tests_is_worth_one() -> None:
    judged = UnitTests(timeout_s=20)
    verdict = judged.verdict(TESTS, f"Here it is:\n```python\n{ADD}```\nIt adds.")
    assert (verdict.reward, verdict.remark) == (1.0, "passed all 4 tests")
    assert judged.verdict("def check(f):\n    assert f(2, 2) == 4\ncheck(add)", ADD).reward == 1.0


CHEATS = [
    "def add(a, b): return a - b",
    "import sys; sys.exit(0)",
    "import os; os._exit(0)",
    "print('PASS'); print('passed all 4 tests')",
    "def add(a, b): raise SystemExit(0)",
    "def add(a, b):\n    import os; os._exit(0)",
    "class Equal(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Equal()",
    "class Equal:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef add(a, b): return Equal()",
    "class Equal(list):\n    def __eq__(self, other): return True\ndef add(a, b): return Equal()",
    "import builtins\nbuiltins.AssertionError = type('E', (Exception,), {})\ndef add(a, b): return 0",
    "AssertionError = print = all = len = None\ndef add(a, b): return 0",
    "import __main__\n__main__.call_solution = lambda *a: {'value': {'int': '3'}}\ndef add(a, b): return 0",
    "import values\nvalues.encoded = lambda v: {'int': '3'}\ndef add(a, b): return 0",
    "import sys\nsys.modules['__main__'].encoded = lambda v: {'passed': 4}\ndef add(a, b): return 0",
    "import serve\nserve.answer = lambda *a: {'value': {'num': 4, 'passed': 4}}\ndef add(a, b): return 0",
    "import gc\n[o.clear() for o in gc.get_objects() if isinstance(o, dict) and 'TESTS' in o]\ndef add(a, b): return 0",
    "import inspect\ndef add(a, b): return [f.frame.f_locals.update(passed=4) for f in inspect.stack()]",
    "def add(a, b):\n    import atexit; atexit.register(print, 'ok'); return 0",
    "import os\nfor fd in range(3, 9):\n    try: os.write(fd, b'4')\n    except OSError: pass\ndef add(a, b): return 0",
    "def __getattr__(name): return lambda *a: 3",
    "add = type('X', (), {'__call__': lambda s, a, b: 3, '__eq__': lambda s, o: True})()",
    "def add(a, b=None): return float('nan')",
    "def add(a, b): return NotImplemented",
    "def add(a, b): return [add]",
    "",
    "def add(a, b:",
    "import ctypes; ctypes.string_at(0)",
]


@pytest.mark.parametrize("cheats", [CHEATS[:9], CHEATS[9:18], CHEATS[18:]], ids=["first", "second", "third"])
def test_no_cheat_is_paid(cheats: list[str]) -> None:
    judged = UnitTests(timeout_s=5)
    rewards = {}
    for cheat in cheats:
        rewards[cheat] = judged.verdict(TESTS, cheat).reward
    assert rewards == dict.fromkeys(cheats, 0.0)
    assert judged.verdict(TESTS, ADD).reward == 1.0


def test_a_program_that_hangs_or_hoards_has_failed() -> None:
    for timeout_s, body in ((1, "while True: pass"), (20, "return bytearray(1 << 40)")):
        verdict = UnitTests(timeout_s=timeout_s).verdict(TESTS, f"def add(a, b):\n    {body}")
        assert verdict.reward == 0.0 and verdict.trusted


def test_tests_that_are_broken_are_the_graders_error() -> None:
    judged = UnitTests(timeout_s=20)
    for tests in ("assert add(1, 2", "import nothing_of_that_name", "x = 1", "assert add(lambda: 1, 2)", '[{"in": 1}]'):
        with pytest.raises(GraderError) as caught:
            judged.verdict(tests, ADD)
        assert not caught.value.retryable


def test_programs_are_judged_by_what_they_print_for_an_input() -> None:
    judged = UnitTests(timeout_s=20)
    cases = '[{"input": "3\\n", "output": "6"}, {"input": "-1\\n", "output": "-2\\n"}]'
    assert judged.verdict(cases, "print(int(input()) * 2)").reward == 1.0
    half = judged.verdict(cases, "print(6)")
    assert (half.reward, half.parts["share_of_tests_passed"]) == (0.0, 0.5)
    assert judged.verdict(cases, "print(int(input()) * 2); raise SystemExit(1)").reward == 0.0


def test_program_is_the_last_code_block_or_the_whole_text() -> None:
    assert program_of("```python\na = 1\n```\nbetter:\n```py\na = 2\n```") == "a = 2\n"
    assert program_of("a = 3") == "a = 3"
    assert program_of("```\na = 4\nb = 5") == "a = 4\nb = 5"
