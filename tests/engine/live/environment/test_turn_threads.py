"""A slow, hanging or raising environment delays no other request and never becomes a reward of 0."""

import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue

import pytest

from engine.environments.port import GraderError, Observation, Prompt, Turn, Verdict
from engine.environments.sandbox.excuses import excused
from engine.live.environment import turn_threads
from engine.live.environment.turn_threads import MAX_LEFT_BEHIND, TRIES, TurnThreads
from engine.live.environment.turns import Answer, Ask
from engine.pipeline.messages.addresses import Address, rollout_address
from engine.pipeline.records import Failure, GroupKey, SampleKey

PROMPT = Prompt(split="train", ordinal=0, text="2+2=", facts={})
REPLICA = rollout_address(0)
RIGHT = Verdict(reward=1.0, parts={}, trusted=True, remark="right")


def ask(sample: int, *turns: str, by: Address = REPLICA) -> Ask:
    key = SampleKey(group=GroupKey(ordinal=0), sample=sample)
    return Ask(by=by, key=key, prompt=PROMPT, turns=tuple(Turn(text=turn) for turn in turns))


class Scripted:
    """Obeys the text of the last turn; calls that wait do so until `gate` is set."""

    name = "scripted"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.num_calls = 0

    def prompt(self, split: str, ordinal: int) -> Prompt:
        return Prompt(split="train", ordinal=ordinal, text=f"{split} {ordinal}", facts={})

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> Observation | Verdict:
        self.num_calls += 1
        self.begun.release()
        match turns[-1].text:
            case "wait":
                self.gate.wait(60)
            case "queue":
                with excused():
                    self.gate.wait(60)
            case "raise":
                raise ZeroDivisionError("of course")
            case "flaky":
                raise GraderError("busy", retryable=True)
            case "late":
                raise GraderError("case 1 took longer than 1 s", retryable=False, kind="timeout")
        return RIGHT


class Asking:
    def __init__(self, *, timeout_s: float = 60.0) -> None:
        self.environment = Scripted()
        self.answers: SimpleQueue[tuple[Address, Answer]] = SimpleQueue()
        self.threads = TurnThreads(
            self.environment, timeout_s=timeout_s, answer=lambda to, answer: self.answers.put((to, answer))
        )

    def next(self) -> tuple[Address, Answer]:
        return self.answers.get(timeout=30)


def test_slow_answer_delays_no_other() -> None:
    asking = Asking()
    for sample in range(40):
        asking.threads.ask(ask(sample, "wait"))
    asking.threads.ask(ask(99, "quick"))
    assert asking.next()[1].id[0].sample == 99
    asking.environment.gate.set()
    assert {asking.next()[1].id[0].sample for _ in range(40)} == set(range(40))


def test_prompt_is_requested_like_a_turn() -> None:
    asking = Asking()
    key = SampleKey(group=GroupKey(ordinal=7), sample=0)
    asking.threads.ask(Ask(by=REPLICA, key=key, prompt=None, turns=()))
    prompt = asking.next()[1].result
    assert isinstance(prompt, Prompt) and prompt.text == "train 7"


@pytest.mark.parametrize(("turn", "num_calls"), [("raise", 1), ("flaky", TRIES)])
def test_error_of_a_grader_is_a_failure_not_a_verdict(turn: str, num_calls: int) -> None:
    asking = Asking()
    asking.threads.ask(ask(0, turn))
    _, answer = asking.next()
    shown = f"(prompt train/{ask(0, turn).key.group.ordinal}, {ask(0, turn).prompt.text!r}, answered {turn!r})"  # type: ignore[union-attr]
    assert answer.result in (
        Failure(kind="error", reason=f"ZeroDivisionError: of course {shown}"),
        Failure(kind="error", reason=f"GraderError: busy {shown}"),
    )
    assert asking.environment.num_calls == num_calls


def test_grader_that_reports_a_timeout_fails_as_timeout() -> None:
    asking = Asking()
    asking.threads.ask(ask(0, "late"))
    failure = asking.next()[1].result
    assert isinstance(failure, Failure) and failure.kind == "timeout"


def test_hung_grader_times_out_and_its_late_answer_is_dropped() -> None:
    asking = Asking(timeout_s=0.05)
    asking.threads.ask(ask(0, "wait"))
    _, answer = asking.next()
    failure = answer.result
    assert isinstance(failure, Failure) and failure.kind == "timeout"
    assert failure.reason.startswith("no answer within 0.05 s to ")
    asking.environment.gate.set()
    asking.threads.ask(ask(1, "quick"))
    assert asking.next()[1].id[0].sample == 1


def test_excused_waits_extend_the_deadline_of_an_answer() -> None:
    asking = Asking(timeout_s=0.05)
    asking.threads.ask(ask(0, "queue"))
    asking.environment.begun.acquire(timeout=30)
    asking.threads.ask(ask(1, "wait"))
    assert asking.next()[1].id[0].sample == 1, "the later request timed out first"
    asking.environment.gate.set()
    _, answer = asking.next()
    assert (answer.id[0].sample, answer.result) == (0, RIGHT)


def test_time_in_the_queue_does_not_count_as_call_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_threads, "MAX_THREADS", 2)
    asking, other = Asking(timeout_s=1.0), Asking(timeout_s=1.0)
    for sample in range(4):
        asking.threads.ask(ask(sample, "queue"))
    other.threads.ask(ask(0, "wait"))
    assert isinstance(other.next()[1].result, Failure), "a timeout has passed"
    asking.environment.gate.set()
    answers = sorted((asking.next()[1] for _ in range(4)), key=lambda answer: answer.id[0].sample)
    assert [answer.result for answer in answers] == [RIGHT] * 4
    assert [answer.num_before for answer in answers] == [0, 1, 2, 3]
    assert all(1.0 < answer.waited_s <= answer.seconds for answer in answers)
    other.environment.gate.set()


def test_queued_calls_fail_once_too_many_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_threads, "MAX_THREADS", 2)
    monkeypatch.setattr(turn_threads, "MAX_LEFT_BEHIND", 2)
    asking = Asking(timeout_s=0.05)
    for sample in range(6):
        asking.threads.ask(ask(sample, "wait"))
    reasons = [str(asking.next()[1].result) for _ in range(6)]
    assert sum("calls of the environment hang" in reason for reason in reasons) >= 3, reasons
    asking.environment.gate.set()


def test_process_freeze_is_not_charged_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    asking, slept_s = Asking(timeout_s=30.0), [0.0]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return time.monotonic() + slept_s[0]

    monkeypatch.setattr(turn_threads, "time", Clock)
    asking.threads.ask(ask(0, "wait"))
    asking.environment.begun.acquire(timeout=30)
    slept_s[0] = 450.0
    asking.threads.ask(ask(1, "quick"))
    assert asking.next()[1].id[0].sample == 1, "no request timed out on waking"
    asking.environment.gate.set()
    assert asking.next()[1].result == RIGHT


@pytest.mark.long
def test_environment_that_always_hangs_is_refused_at_last() -> None:
    asking = Asking(timeout_s=0.01)
    sample = 0
    while asking.threads.num_left_behind < MAX_LEFT_BEHIND:  # a thread that starts too late is not abandoned
        asking.threads.ask(ask(sample, "wait"))
        asking.next()
        sample += 1
    asking.threads.ask(ask(-1, "quick"))
    failure = asking.next()[1].result
    assert isinstance(failure, Failure) and "calls of the environment hang" in failure.reason
    asking.environment.gate.set()


def test_repeated_ask_joins_and_last_caller_gets_the_answer() -> None:
    asking = Asking()
    asking.threads.ask(ask(0, "wait", by=REPLICA))
    asking.environment.begun.acquire(timeout=30)
    asking.threads.ask(ask(0, "wait", by=rollout_address(1)))
    asking.environment.gate.set()
    to, _ = asking.next()
    assert to == rollout_address(1)
    asking.threads.ask(ask(0, "wait", by=rollout_address(2)))
    to, answer = asking.next()
    assert (to, answer.result) == (rollout_address(2), RIGHT)
    assert asking.environment.num_calls == 1


def test_another_text_of_the_same_sample_is_a_new_request() -> None:
    asking = Asking()
    asking.threads.ask(ask(0, "one"))
    asking.threads.ask(ask(0, "two"))
    asking.next()
    asking.next()
    assert asking.environment.num_calls == 2


class NoMoreThreads(threading.Thread):
    """Like a host whose process limit is reached."""

    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def test_existing_threads_answer_all_when_no_more_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = Asking()
    asking.threads.ask(ask(0, "wait"))
    asking.environment.begun.acquire(timeout=30)
    monkeypatch.setattr(threading, "Thread", NoMoreThreads)
    for sample in range(1, 4):
        asking.threads.ask(ask(sample, "quick"))
    asking.environment.gate.set()
    assert {asking.next()[1].id[0].sample for _ in range(4)} == set(range(4))


def test_thread_that_failed_to_start_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_threads, "MAX_THREADS", 1)
    asking = Asking()
    with monkeypatch.context() as limited:
        limited.setattr(threading, "Thread", NoMoreThreads)
        with pytest.raises(RuntimeError, match="new thread"):
            asking.threads.ask(ask(0, "quick"))
    asking.threads.ask(ask(1, "quick"))
    assert {asking.next()[1].id[0].sample for _ in range(2)} == {0, 1}
