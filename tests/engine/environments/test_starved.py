"""Verdicts on a host with almost no free core: right answers are paid, wrong ones are not, and all get a verdict."""

import pytest

from engine.environments.custom import Custom
from engine.environments.judging.unit_tests import UnitTests
from engine.environments.judging.verifiers import make_verifier
from engine.environments.params import ParamReader
from engine.environments.port import GraderError
from engine.environments.sandbox import child, own_time
from engine.environments.sandbox.outcome import Finished, Limits, Starved, TimedOut
from engine.environments.sandbox.run import run_python
from tests.engine.environments import forgeries
from tests.engine.environments.sandboxed import Bound, sandbox
from tests.engine.environments.starved import starved
from tests.engine.environments.test_forgeries import Gym, judged

__all__ = ["sandbox"]
pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("sandbox")]

WORKS = """
import time
def work(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until: pass
"""
TENTH = 0.1


@pytest.mark.parametrize("bound", ["group", "alone"])
def test_script_within_its_limit_finishes_on_a_starved_host(bound: Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    if bound == "alone":
        monkeypatch.setattr(child, "parent_of_groups", lambda: None)
    with starved(TENTH):
        outcome = run_python(f"{WORKS}work(0.05)", limits=Limits(wall_s=0.4, cpu_s=1))
    assert isinstance(outcome, Finished), outcome


@pytest.mark.long
def test_child_process_of_a_script_is_starved_as_the_script_is() -> None:
    code = f"{WORKS}import os\nif os.fork() == 0:\n    work(0.1)\n    os._exit(0)\nos.wait()"
    with starved(TENTH):
        outcome = run_python(code, limits=Limits(wall_s=0.8, cpu_s=1))
    assert isinstance(outcome, Finished), outcome


@pytest.mark.parametrize("ends_by", ["while True: pass", "import time\ntime.sleep(600)"], ids=["computes", "sleeps"])
def test_script_that_never_ends_is_ended_on_a_starved_host(ends_by: str) -> None:
    with starved(TENTH):
        assert isinstance(run_python(ends_by, limits=Limits(wall_s=0.2, cpu_s=1)), TimedOut)


def test_script_without_a_core_is_starved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_time, "patience_s", lambda limit_s: 0.2)
    with starved(TENTH):
        assert isinstance(run_python("while True: pass", limits=Limits(wall_s=30, cpu_s=30)), Starved)


def test_program_without_a_core_is_of_unknown_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_time, "patience_s", lambda limit_s: 0.2)
    with starved(TENTH), pytest.raises(GraderError) as caught:
        UnitTests(timeout_s=30).verdict('[{"input": "", "output": ""}]', "while True: pass")
    assert (caught.value.blame, caught.value.retryable) == ("platform", True)


@pytest.mark.long
@pytest.mark.parametrize("due", ["assert f() == 1\nassert f() == 1", '[{"input": "", "output": "1"}]'])
def test_right_program_is_paid_on_a_starved_host(due: str) -> None:
    program = f"{WORKS}def f():\n    work(0.2)\n    return 1\n" + ("print(f())" if due.startswith("[") else "")
    with starved(TENTH):
        verdict = UnitTests(timeout_s=1.0).verdict(due, program)
    assert verdict.reward == 1.0, verdict


@pytest.mark.long
def test_text_hanging_its_judge_gets_zero_on_a_starved_host() -> None:
    verify = make_verifier(ParamReader("jsonl", {"verifier": "regex"}), timeout_s=2.0)
    with starved(0.05):
        assert verify("(a+)+$", "a" * 40 + "b").reward == 0.0


@pytest.mark.long
def test_prompt_of_a_customer_is_asked_on_a_starved_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.environments.custom.PROMPT_TIMEOUT_S", 0.5)
    code = f"{WORKS}def prompt(split, ordinal, *_):\n    work(0.1)\n    return {{'text': f'{{split}} {{ordinal}}'}}"
    with starved(TENTH):
        environment = Custom(seed=0, code=code, params={}, timeout_s=60)
        assert environment.prompt("train", 3).text == "train 3"


def test_code_in_the_sandbox_cannot_lower_its_own_priority() -> None:
    """Code with the lowest priority could wait for a core on any host, and so avoid a verdict."""
    code = """
import os
for lower in (lambda: os.nice(19), lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))):
    try:
        lower()
    except PermissionError:
        print("refused")
"""
    outcome = run_python(code)
    assert isinstance(outcome, Finished) and outcome.output.stdout.split() == ["refused", "refused"]


# ── the forgeries, with little of a core ──────────────────────────────────────────────────────────────────────────────


TASKS = ("countdown", "polynomial_multiplication", "string_insertion")
SHARES = pytest.mark.parametrize("share", [1.0, 0.3, 0.1], ids=["whole", "third", "tenth"])


@pytest.mark.long
@SHARES
def test_no_verifier_pays_or_abstains_however_starved(share: float) -> None:
    with starved(share):
        for name, due, texts, right in (
            ("math_verify", "42", forgeries.MATHEMATICS, "so it is $42$"),
            ("regex", "(a+)+$", ("a" * 40 + "b",), "aaa"),
        ):
            verify = make_verifier(ParamReader("jsonl", {"verifier": name}), timeout_s=6.0)
            assert {text[:50]: verify(due, text).reward for text in texts} == {text[:50]: 0.0 for text in texts}
            assert verify(due, right).reward == 1.0


@pytest.mark.long
@SHARES
def test_no_program_is_paid_or_abstains_however_starved(share: float) -> None:
    with starved(share):
        assert judged(forgeries.PROGRAMS, timeout_s=1.0) == dict.fromkeys(forgeries.PROGRAMS, 0.0)
        honest = f"{WORKS}def add(a, b):\n    work(0.05)\n    return a + b"
        assert judged([honest], timeout_s=1.0) == {honest: 1.0}


@pytest.mark.long
@SHARES
def test_gym_forgeries_get_zero_on_a_starved_host(share: float) -> None:
    entries = Gym(TASKS, timeout_s=4.0)
    with starved(share):
        starving = Gym(TASKS, timeout_s=4.0)
        for number, task in enumerate(TASKS):
            entry = entries.entry(task, 5)
            assert starving.paid(task, 5, forgeries.forged(task, entry)[number :: len(TASKS)]) == {}, task
            assert starving.score(task, 5, str(entry["answer"])) == 1.0, task
