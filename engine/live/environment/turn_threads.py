"""Threads for an environment's `prompt` and `respond`, so that a slow or broken grader delays nobody else.

    ask ──▶ line ──▶ thread ──▶ environment ──▶ answer
                       ├─ others wait too long in the line ──▶ more threads
                       └─ too long ──▶ failure; the thread is left behind and replaced

Invariants:
- one thread answers a burst of quick ones: to wake one for each would cost more than the answers; an ask that nobody
  took up within HASTE_S gets a thread of its own;
- every ask is answered once, within `timeout_s` of its call: a prompt, an observation, a verdict, or the reason why
  there is none. Its wait in the line does not count, nor do waits for a core or a free process (`excuses.py`);
- the line holds at most one ask of each open sample, since its replica starts no other in that place: a full line slows
  prompts down and fails nothing;
- a reason is never a reward of 0, says whose fault it is, and shows what was asked;
- what is answered has passed the border (border.py): no word of an environment is more than the engine can take;
- a time for which the whole process stood still (frozen, suspended) is not held against the environment;
- threads left behind are bounded: when there are too many, the environment is at fault and every ask says so;
- where the system gives no more threads, those that are there answer one after the other; without any, it says so.
"""

import logging
import threading
import time
from collections import OrderedDict, deque
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
from engine.live.environment.turns import Answer, Ask, AskId, Said
from engine.pipeline.messages.addresses import Address
from engine.pipeline.records import Failure
from engine.policy.awake import AwakeTime
from engine.spec.environment_workers import CALLS_OF_A_WORKER

log = logging.getLogger(__name__)

TRIES: Final = 3
MAX_THREADS: Final = CALLS_OF_A_WORKER  # waiting for a tool costs a stack of a few kB, no core
MAX_LEFT_BEHIND: Final = 256
HASTE_S: Final = 0.002  # nobody notices so much, and most graders have answered many by then
FULL_S: Final = 0.1  # until it is looked again for a thread where there was none
IDLE_S: Final = 30.0
LOOK_EVERY_S: Final = 1.0  # at the clock, which otherwise would not know a pause from a sleep
REMEMBERED: Final = 4_096  # answers that may be asked for again after a move or a lost message


@dataclass(slots=True, kw_only=True)
class Pending:
    id: AskId
    ask: Ask
    asked_at: float
    num_before: int
    """Unanswered asks when it came."""
    begun_at: float | None = None
    """None: it waits in the line."""
    excuse: Excuse = field(default_factory=Excuse)
    is_over: bool = False


class TurnThreads:
    def __init__(
        self, environment: Environment, *, timeout_s: float, answer: Callable[[Address, Answer], None]
    ) -> None:
        """`answer` is called from any thread, with the address of who asked last."""
        self._environment, self._timeout_s, self._answer = environment, timeout_s, answer
        self._lock = threading.Lock()
        self._pending: dict[AskId, Pending] = {}
        self._remembered: OrderedDict[AskId, Answer] = OrderedDict()
        self._line: deque[Pending] = deque()
        self._has_work = threading.Condition(self._lock)
        self._is_called = False  # a thread that will look at the line
        self._unanswered: list[tuple[float, int, Pending]] = []
        """A heap by their deadlines, with a number where they are equal; some have been answered since."""
        self._numbers = count()
        self._has_asks = threading.Condition(self._lock)
        self._looks_at = float("inf")
        self._awake = AwakeTime()
        self._num_threads = 0
        self._num_idle = 0
        self.num_left_behind = 0
        self._has_noted = False
        """That some of its text had to be made valid."""
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
                self._put_in_line(ask, id)
                return
        self._answer(ask.by, known or Answer(id=id, said=hanging(ask, MAX_LEFT_BEHIND)))

    def _put_in_line(self, ask: Ask, id: AskId) -> None:
        pending = Pending(id=id, ask=ask, asked_at=self._now(), num_before=len(self._pending))
        self._pending[id] = pending
        self._line.append(pending)
        if self._num_idle == self._num_threads and not self._is_called:
            self._call(1)
        if pending.asked_at + HASTE_S < self._looks_at:
            self._looks_at = pending.asked_at + HASTE_S
            self._has_asks.notify()

    def _call(self, count: int) -> bool:
        """Threads for so many of the line; False if none is to be had."""
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
            log.warning("no more than %d threads: %s", self._num_threads, error)
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
            with self._lock:  # it was given up meanwhile, and its place was given to another thread
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
        """None when there was nothing to do for long."""
        while True:
            self._is_called = False
            if self._line:
                return self._line.popleft()
            self._num_idle += 1
            has_work = self._has_work.wait(timeout=IDLE_S)
            self._num_idle -= 1
            if not has_work and not self._line:
                return None

    def _respond(self, pending: Pending) -> Said:
        tries_left = TRIES
        while True:
            tries_left -= 1
            try:
                with excusing(pending.excuse):
                    return self._asked(pending.ask)
            except Exception as error:  # noqa: BLE001 - a customer's code; whatever it raises is no reward of 0
                if not tries_left or pending.is_over or not getattr(error, "retryable", False):
                    return failure_of(error, pending.ask)

    def _asked(self, ask: Ask) -> Said:
        said: Prompt | Observation | Verdict
        if ask.prompt is None:
            said = self._environment.prompt(ask.key.group.split, ask.key.group.ordinal)
        elif ask.is_truncated:
            said = conclude(self._environment, ask.prompt, ask.turns)
        else:
            said = self._environment.respond(ask.prompt, ask.turns)
        passed = sound(said)
        if not isinstance(passed, Verdict) and passed.text != getattr(said, "text", "") and not self._has_noted:
            self._has_noted = True
            log.warning("the environment writes what cannot be encoded, now U+FFFD, first of %s", shown_of(ask))
        return passed

    def _finish(self, pending: Pending, said: Said, *, is_given_up: bool = False) -> bool:
        """False if it was given up before."""
        with self._lock:
            if pending.is_over:
                return False
            pending.is_over = True
            if is_given_up:  # its thread is left behind; another may take its place
                self.num_left_behind += 1
                self._num_threads -= 1
            ask = pending.ask
            del self._pending[pending.id]
            answer = self._answered(pending, said)
            self._remembered[pending.id] = answer
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)
        self._answer(ask.by, answer)
        return True

    def _answered(self, pending: Pending, said: Said) -> Answer:
        now = self._now()
        waited_s = (pending.begun_at or now) - pending.asked_at + pending.excuse.seconds()
        return Answer(
            id=pending.id,
            said=said,
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
                    self._looks_at = min(self._next_deadline(), self._help(now), now + LOOK_EVERY_S)
                    self._has_asks.wait(timeout=self._looks_at - now)
            for pending in overdue:
                self._give_up(pending)

    def _now(self) -> float:
        """Under the lock."""
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

    def _help(self, now: float) -> float:
        """Threads for those that have waited in the line for long. When to look again."""
        if not self._line:
            return float("inf")
        in_haste_at = self._line[0].asked_at + HASTE_S
        if in_haste_at > now:
            return in_haste_at
        try:
            return now + (HASTE_S if self._call(len(self._line)) else FULL_S)
        except RuntimeError:  # no thread at all: whoever asks next says so
            return now + FULL_S

    def _give_up(self, pending: Pending) -> None:
        reason = f"no answer within {self._timeout_s:g} s to {shown_of(pending.ask)}"
        overdue = Failure(kind="timeout", reason=reason, blame=blamed(pending.ask))
        self._finish(pending, overdue, is_given_up=True)
