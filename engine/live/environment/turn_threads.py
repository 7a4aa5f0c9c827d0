"""Threads that call an environment's `prompt` and `respond`: a slow or broken grader delays no other request.

    ask ──▶ queue ──▶ thread ──▶ environment ──▶ answer
                        ├─ requests wait too long in the queue ──▶ more threads
                        └─ timeout ──▶ failure; the thread is abandoned and replaced

Invariants:
- one thread answers a burst of quick requests: waking a thread for each would cost more than the answers; a request
  that waited HASTE_S in the queue gets a thread of its own;
- every request is answered once, within `timeout_s` of its call: a prompt, an observation, a verdict, or a failure.
  Its wait in the queue does not count, nor do waits for a core or a free process (`excuses.py`);
- the queue holds at most one request of each open sample, since its replica starts no other in that place: a full
  queue slows prompts down and fails nothing;
- a failure is never a reward of 0; it names who is to blame and shows the request;
- every answer is sanitized (border.py): the engine can process any text of an environment;
- time in which the whole process did not run (frozen, suspended) does not count against the environment;
- abandoned threads are bounded: at the limit the environment is to blame, and every request fails with that reason;
- where the system allows no more threads, the existing ones answer in sequence; without any, the request raises.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Final

from engine.environments.border import sound
from engine.environments.port import (
    Environment,
    Observation,
    Prompt,
    Verdict,
    conclude,
)
from engine.environments.sandbox.excuses import Excuse, excusing
from engine.environments.sandbox.host_speed import host_scale
from engine.live.environment.failures import blamed, failure_of, hanging, shown_of
from engine.live.environment.remembered import RememberedAnswers
from engine.live.environment.turns import Answer, Ask, AskId, TurnResult
from engine.pipeline.messages.addresses import Address
from engine.pipeline.records import Failure
from engine.policy.awake import AwakeTime
from engine.spec.environments.workers import CALLS_OF_A_WORKER

log = logging.getLogger(__name__)

TRIES: Final = 3
MAX_THREADS: Final = CALLS_OF_A_WORKER  # a thread that waits for a tool costs a stack of a few kB, no core
MAX_LEFT_BEHIND: Final = 256
HASTE_S: Final = 0.002  # an unnoticeable delay, in which most graders answer many requests
FULL_S: Final = 0.1  # the next try to start a thread where the system allowed none
IDLE_S: Final = 30.0
LOOK_EVERY_S: Final = 1.0  # read the clock this often: else a freeze looks like a long wait


@dataclass(slots=True, kw_only=True)
class Pending:
    id: AskId
    ask: Ask
    asked_at: float
    num_before: int
    """Unanswered requests when it arrived."""
    begun_at: float | None = None
    """None: it waits in the queue."""
    excuse: Excuse = field(default_factory=Excuse)
    is_over: bool = False


class TurnThreads:
    def __init__(
        self, environment: Environment, *, timeout_s: float, answer: Callable[[Address, Answer], None]
    ) -> None:
        """`answer` is called from any thread, with the address of the last requester."""
        self._environment, self._timeout_s, self._answer = environment, timeout_s, answer
        self._lock = threading.Lock()
        self._pending: dict[AskId, Pending] = {}
        self._remembered = RememberedAnswers()
        self._queue: deque[Pending] = deque()
        self._has_work = threading.Condition(self._lock)
        self._is_called = False  # a thread is on its way to the queue
        self._unanswered: list[tuple[float, int, Pending]] = []
        """A heap by deadline, then by a serial number; some of them have been answered since."""
        self._numbers = count()
        self._has_asks = threading.Condition(self._lock)
        self._looks_at = float("inf")
        self._awake = AwakeTime()
        self._num_threads = 0
        self._num_idle = 0
        self.num_left_behind = 0
        self._has_warned = False
        """True once a warning about invalid text was logged."""
        threading.Thread(target=self._watch, name="environment-deadlines", daemon=True).start()

    def ask(self, ask: Ask) -> None:
        id = ask.id
        with self._lock:
            known = self._remembered.get(id)
            pending = self._pending.get(id)
            if known is None and pending is not None:
                pending.ask = ask
                return
            if known is None and not self._hangs:
                self._enqueue(ask, id)
                return
        self._answer(ask.by, known or Answer(id=id, result=hanging(ask, MAX_LEFT_BEHIND)))

    def _enqueue(self, ask: Ask, id: AskId) -> None:
        pending = Pending(id=id, ask=ask, asked_at=self._now(), num_before=len(self._pending))
        self._pending[id] = pending
        self._queue.append(pending)
        if self._num_idle == self._num_threads and not self._is_called:
            self._call_threads(1)
        if pending.asked_at + HASTE_S < self._looks_at:
            self._looks_at = pending.asked_at + HASTE_S
            self._has_asks.notify()

    def _call_threads(self, count: int) -> bool:
        """Wakes or starts threads for so many queued requests; False if none is available."""
        num_woken = min(count, self._num_idle)
        self._has_work.notify(num_woken)
        num_started = 0
        while num_woken + num_started < count and self._num_threads < MAX_THREADS and self._start_another():
            num_started += 1
        self._is_called = self._is_called or num_woken + num_started > 0
        return num_woken + num_started > 0

    def _start_another(self) -> bool:
        try:
            threading.Thread(target=self._serve, name="environment", daemon=True).start()
        except RuntimeError as error:  # a limit on processes, which threads count towards
            if not self._num_threads:
                raise
            log.warning("cannot start more than %d environment threads: %s", self._num_threads, error)
            return False
        self._num_threads += 1
        return True

    # ── threads ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        while True:
            with self._lock:
                pending = self._next()
                if pending is None:
                    self._num_threads -= 1
                    return
                hangs = self._hangs
                self._begin(pending)
            if self._finish(pending, hanging(pending.ask, MAX_LEFT_BEHIND) if hangs else self._respond(pending)):
                continue
            with self._lock:  # the request timed out meanwhile, and another thread has this one's place
                self.num_left_behind -= 1
            return

    @property
    def _hangs(self) -> bool:
        return self.num_left_behind >= MAX_LEFT_BEHIND

    def _begin(self, pending: Pending) -> None:
        pending.begun_at = self._now()
        self._await(pending)
        if self._next_deadline() < self._looks_at:
            self._looks_at = self._next_deadline()
            self._has_asks.notify()

    def _next(self) -> Pending | None:
        """The next request; None after a long time without one."""
        while True:
            self._is_called = False
            if self._queue:
                return self._queue.popleft()
            self._num_idle += 1
            has_work = self._has_work.wait(timeout=IDLE_S)
            self._num_idle -= 1
            if not has_work and not self._queue:
                return None

    def _respond(self, pending: Pending) -> TurnResult:
        tries_left = TRIES
        while True:
            tries_left -= 1
            try:
                with excusing(pending.excuse):
                    return self._call_environment(pending.ask)
            except Exception as error:  # noqa: BLE001 - a customer's code; no error of it is a reward of 0
                if not tries_left or pending.is_over or not getattr(error, "retryable", False):
                    return failure_of(error, pending.ask)

    def _call_environment(self, ask: Ask) -> TurnResult:
        raw: Prompt | Observation | Verdict
        if ask.prompt is None:
            raw = self._environment.prompt(ask.key.group.split, ask.key.group.ordinal)
        elif ask.is_truncated:
            raw = conclude(self._environment, ask.prompt, ask.turns)
        else:
            raw = self._environment.respond(ask.prompt, ask.turns)
        answer = sound(raw)
        if not isinstance(answer, Verdict) and answer.text != getattr(raw, "text", "") and not self._has_warned:
            self._has_warned = True
            log.warning("replaced invalid Unicode of the environment by U+FFFD, first in %s", shown_of(ask))
        return answer

    def _finish(self, pending: Pending, result: TurnResult, *, is_given_up: bool = False) -> bool:
        """False if the request had timed out before."""
        with self._lock:
            if pending.is_over:
                return False
            pending.is_over = True
            if is_given_up:  # its thread is abandoned; another may take its place
                self.num_left_behind += 1
                self._num_threads -= 1
            ask = pending.ask
            del self._pending[pending.id]
            answer = self._make_answer(pending, result)
            self._remembered.add(answer)
        self._answer(ask.by, answer)
        return True

    def _make_answer(self, pending: Pending, result: TurnResult) -> Answer:
        now = self._now()
        waited_s = (pending.begun_at or now) - pending.asked_at + pending.excuse.seconds()
        return Answer(
            id=pending.id,
            result=result,
            seconds=now - pending.asked_at,
            waited_s=min(waited_s, now - pending.asked_at),
            num_before=pending.num_before,
        )

    # ── deadlines ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        while True:
            with self._lock:
                now = self._now()
                overdue = self._overdue(now)
                if not overdue:
                    self._looks_at = min(self._next_deadline(), self._add_threads(now), now + LOOK_EVERY_S)
                    self._has_asks.wait(timeout=self._looks_at - now)
            for pending in overdue:
                self._give_up(pending)

    def _now(self) -> float:
        """Call it under the lock."""
        return self._awake.at(time.monotonic())

    def _overdue(self, now: float) -> list[Pending]:
        overdue: list[Pending] = []
        while self._unanswered and (self._unanswered[0][-1].is_over or self._next_deadline() <= now):
            _, _, pending = heappop(self._unanswered)
            if not pending.is_over and self._deadline_of(pending) <= now:
                overdue.append(pending)
            elif not pending.is_over:
                self._await(pending)
        return overdue

    def _await(self, pending: Pending) -> None:
        heappush(self._unanswered, (self._deadline_of(pending), next(self._numbers), pending))

    def _deadline_of(self, pending: Pending) -> float:
        assert pending.begun_at is not None
        return pending.begun_at + self._timeout_s * host_scale() + pending.excuse.seconds()

    def _next_deadline(self) -> float:
        return self._unanswered[0][0] if self._unanswered else float("inf")

    def _add_threads(self, now: float) -> float:
        """Calls threads for requests that waited HASTE_S in the queue; returns when to check again."""
        if not self._queue:
            return float("inf")
        in_haste_at = self._queue[0].asked_at + HASTE_S
        if in_haste_at > now:
            return in_haste_at
        try:
            return now + (HASTE_S if self._call_threads(len(self._queue)) else FULL_S)
        except RuntimeError:  # no thread at all: the next request raises
            return now + FULL_S

    def _give_up(self, pending: Pending) -> None:
        reason = f"no answer within {self._timeout_s:g} s to {shown_of(pending.ask)}"
        overdue = Failure(kind="timeout", reason=reason, blame=blamed(pending.ask))
        self._finish(pending, overdue, is_given_up=True)
