"""The queue of a judge: heavy texts take no verdict from the honest ones that wait behind them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.environments.custom import Custom
from engine.environments.judging.graders import LEAST_CPU_S, MOST_CPU_S, SpoiltByText, TextJudge, allowance_s
from engine.environments.judging.verifiers import make_verifier
from engine.environments.params import ParamReader
from engine.environments.port import GraderError, Turn, Verdict
from tests.engine.environments.sandboxed import sandbox
from tests.waiting import eventually

__all__ = ["sandbox"]
pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("sandbox")]

JUDGE = """
import time
from judging import Judging

def judge(text, cpu_s):
    Judging(own_texts=(), cpu_s=cpu_s)
    if text.startswith("sleeps"):
        time.sleep(600)
    while text.startswith("heavy"):
        pass
    if text == "raises":
        raise ValueError(text)
    return cpu_s
"""


def text_judge(*, timeout_s: float, size: int = 2) -> TextJudge:
    return TextJudge(main=JUDGE, function="judge", timeout_s=timeout_s, size=size)


def outcome(judge: TextJudge, text: str) -> str:
    try:
        return f"{type(judge.judge(text)).__name__}"
    except (SpoiltByText, GraderError) as error:
        return type(error).__name__


def outcomes(judge: TextJudge, texts: list[str]) -> list[str]:
    with ThreadPoolExecutor(len(texts)) as threads:
        return list(threads.map(lambda text: outcome(judge, text), texts))


@pytest.mark.long
def test_heavy_texts_leave_no_text_without_a_verdict() -> None:
    """28 of 32, as a model would write that wants no verdicts; the judge has two processes."""
    texts = [f"heavy {at}" if at % 8 else f"honest {at}" for at in range(32)]
    expected = ["SpoiltByText" if text.startswith("heavy") else "float" for text in texts]
    assert outcomes(text_judge(timeout_s=0.6), texts) == expected


@pytest.mark.long
def test_heavy_mathematics_leaves_honest_answers_paid() -> None:
    verify = make_verifier(ParamReader("jsonl", {"verifier": "math_verify"}), timeout_s=1.0)
    texts = [f"$10^{{10^{{10^{{10}}}}}}${' ' * at}" if at % 8 else f"{'so ' * at}it is $42$" for at in range(32)]
    with ThreadPoolExecutor(len(texts)) as threads:
        rewards = list(threads.map(lambda text: verify("42", text).reward, texts))
    assert rewards == [float(at % 8 == 0) for at in range(32)]


def test_texts_that_wait_outlast_any_number_of_hanging_calls() -> None:
    """Each of the four calls before uses up all of its own time. No text can sleep; the queue does not rely on it."""
    judge = text_judge(timeout_s=0.3, size=1)
    with ThreadPoolExecutor(5) as threads:
        sleeping = [threads.submit(outcome, judge, f"sleeps {at}") for at in range(4)]
        honest = threads.submit(outcome, judge, "honest")
        assert honest.result() == "float"
        assert [each.result() for each in sleeping] == ["GraderError"] * 4


@pytest.mark.long
def test_customers_judge_answers_behind_hanging_calls() -> None:
    """As many calls hang as the host has processes, and longer than the limit of those that wait."""
    code = """
def prompt(split, ordinal, *_): return {"text": f"{split} {ordinal}"}
def respond(prompt, turns):
    while turns[-1] == "hang": pass
    return {"reward": 1.0}
"""
    environment = Custom(seed=0, code=code, params={}, timeout_s=0.2)
    prompt = environment.prompt("train", 0)
    begun = threading.Barrier(64)

    def rewarded(text: str) -> float | None:
        begun.wait()
        try:
            verdict = environment.respond(prompt, [Turn(text=text)])
        except GraderError:
            return None
        return verdict.reward if isinstance(verdict, Verdict) else None

    texts = ["hang"] * 56 + ["honest"] * 8
    with ThreadPoolExecutor(64) as threads:
        assert list(threads.map(rewarded, texts)) == [None] * 56 + [1.0] * 8


def test_allowance_shrinks_as_the_queue_grows() -> None:
    def given(num_waiting: int) -> float:
        return allowance_s(MOST_CPU_S, num_waiting=num_waiting, size=2)

    allowances = [given(num_waiting) for num_waiting in range(1, 100)]
    assert allowances == sorted(allowances, reverse=True)
    assert (given(1), given(2), given(4), given(99)) == (MOST_CPU_S, MOST_CPU_S, MOST_CPU_S / 2, LEAST_CPU_S)
    assert allowance_s(0.3, num_waiting=99, size=2) == 0.3


def test_judge_gives_less_while_texts_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, given = text_judge(timeout_s=60.0, size=1), list[float]()
    all_wait = threading.Event()
    call = judge._pool.call

    def called(function: str, text: str, cpu_s: float, *, deadline_s: float) -> object:
        given.append(cpu_s)
        all_wait.wait()
        return call(function, text, cpu_s, deadline_s=deadline_s)

    monkeypatch.setattr(judge._pool, "call", called)
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(judge.judge, f"honest {at}") for at in range(4)]
        eventually(lambda: judge._num_waiting, "all four texts wait", until=lambda num: num == 4)
        all_wait.set()
        for each in waiting:
            each.result()
    _, second, third, last = given  # a text counts until its thread has its score
    assert second <= third <= last and second < last


@pytest.mark.parametrize("text", ["heavy", "raises"])
def test_text_that_broke_its_judge_is_not_tried_again(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = text_judge(timeout_s=0.4)
    assert outcome(judge, text) == "SpoiltByText"
    monkeypatch.setattr(judge, "_pool", None)
    assert outcome(judge, text) == "SpoiltByText"


def test_text_of_a_starved_call_is_tried_again() -> None:
    judge = text_judge(timeout_s=0.3)
    assert outcome(judge, "sleeps") == "GraderError"
    assert ("sleeps",) not in judge._spoilt


@pytest.mark.parametrize("text", ["😀" * 800_000, "é" * 1_500_000])
def test_answer_too_long_to_be_sent_gets_zero(text: str) -> None:
    assert outcome(text_judge(timeout_s=5.0), text) == "SpoiltByText"


def test_answer_too_long_for_a_customers_judge_gets_zero() -> None:
    code = """
def prompt(split, ordinal, *_): return {"text": f"{split} {ordinal}", "facts": {"a": "b"}}
def respond(prompt, turns): return {"reward": 1.0}
"""
    environment = Custom(seed=0, code=code, params={}, timeout_s=30)
    prompt = environment.prompt("train", 0)
    for text, reward in (("short", 1.0), ("😀" * 800_000, 0.0)):
        verdict = environment.respond(prompt, [Turn(text=text)])
        assert isinstance(verdict, Verdict) and verdict.reward == reward
    assert environment.conclude(prompt, [Turn(text=text)]).reward == 0.0
