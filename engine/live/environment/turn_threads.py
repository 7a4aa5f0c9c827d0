"""Threads for an environment's `prompt` and `respond`, so that a slow or broken grader delays nobody else.

    ask ──▶ thread ──▶ environment ──▶ answer
             └─ too long ──▶ failure; the thread is left behind and replaced

Invariants:
- every ask is answered once, within `timeout_s`: a prompt, an observation, a verdict, or the reason why there is none;
- a reason is never a reward of 0;
- threads left behind are bounded: when there are too many, the environment is at fault and every ask says so;
- where the system gives no more threads, those that are there answer one after the other; without any, it says so.
"""

import heapq
import itertools
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from engine.environments.port import Environment, FailureKind, GraderError, Observation, Prompt, Verdict
from engine.live.environment.turns import Answer, Ask, AskId
from engine.pipeline.messages.addresses import Address
from engine.pipeline.records import Failure

log = logging.getLogger(__name__)

TRIES: Final = 3
REASON_CHARACTERS: Final = 500
MAX_THREADS: Final = 512  # waiting for a tool costs a stack of a few kB, no core
MAX_LEFT_BEHIND: Final = 256
IDLE_S: Final = 30.0
REMEMBERED: Final = 4_096  # answers that may be asked for again after a move or a lost message


Said = Prompt | Observation | Verdict | Failure


@dataclass(slots=True, kw_only=True)
class Pending:
    ask: Ask
    asked_at: float
    is_begun: bool = False
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
        self._deadlines: list[tuple[float, int, Pending]] = []
        self._order = itertools.count()
        self._has_deadline = threading.Condition(self._lock)
        self._num_threads = 0
        self._num_idle = 0
        self.num_left_behind = 0
        threading.Thread(target=self._watch, name="environment-deadlines", daemon=True).start()

    def ask(self, ask: Ask) -> None:
        with self._lock:
            known = self._remembered.get(ask.id)
            pending = self._pending.get(ask.id)
            if known is None and pending is not None:
                pending.ask = ask
                return
            if known is None and self.num_left_behind < MAX_LEFT_BEHIND:
                self._begin(ask)
                return
        hang = Failure(kind="error", reason=f"{MAX_LEFT_BEHIND} calls of it hang")
        self._answer(ask.by, known or Answer(id=ask.id, said=hang))

    def _begin(self, ask: Ask) -> None:
        now = time.monotonic()
        pending = Pending(ask=ask, asked_at=now)
        self._pending[ask.id] = pending
        heapq.heappush(self._deadlines, (now + self._timeout_s, next(self._order), pending))
        self._has_deadline.notify()
        self._line.append(pending)
        if self._num_idle >= len(self._line):
            self._has_work.notify()
        elif self._num_threads < MAX_THREADS:
            self._start_another()

    def _start_another(self) -> None:
        try:
            threading.Thread(target=self._serve, name="environment", daemon=True).start()
        except RuntimeError as error:  # a limit on processes, which threads count towards
            if not self._num_threads:
                raise
            log.warning("no more than %d threads: %s", self._num_threads, error)
            return
        self._num_threads += 1

    # ── threads ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        while True:
            with self._lock:
                pending = self._next()
                if pending is None:
                    self._num_threads -= 1
                    return
                pending.is_begun = True
            if self._finish(pending, self._respond(pending)):
                continue
            with self._lock:  # it was given up meanwhile, and its place was given to another thread
                self.num_left_behind -= 1
            return

    def _next(self) -> Pending | None:
        """None when there was nothing to do for long."""
        while True:
            while self._line:
                pending = self._line.popleft()
                if not pending.is_over:
                    return pending
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
                return self._asked(pending.ask)
            except Exception as error:  # noqa: BLE001 - a customer's code; whatever it raises is no reward of 0
                if not tries_left or pending.is_over or not getattr(error, "retryable", False):
                    return _failure(error)

    def _asked(self, ask: Ask) -> Said:
        if ask.prompt is None:
            return self._environment.prompt(ask.key.group.split, ask.key.group.ordinal)
        return self._environment.respond(ask.prompt, ask.turns)

    def _finish(self, pending: Pending, said: Said, *, is_given_up: bool = False) -> bool:
        """False if it was given up before."""
        with self._lock:
            if pending.is_over:
                return False
            pending.is_over = True
            if is_given_up and pending.is_begun:  # its thread is left behind; another may take its place
                self.num_left_behind += 1
                self._num_threads -= 1
            ask = pending.ask
            del self._pending[ask.id]
            seconds = time.monotonic() - pending.asked_at
            answer = Answer(id=ask.id, said=said, seconds=seconds)
            self._remembered[ask.id] = answer
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)
        self._answer(ask.by, answer)
        return True

    # ── deadlines ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _watch(self) -> None:
        while True:
            with self._lock:
                while not self._deadlines:
                    self._has_deadline.wait()
                due_at, _, pending = self._deadlines[0]
                left_s = due_at - time.monotonic()
                if left_s > 0 and not pending.is_over:
                    self._has_deadline.wait(timeout=left_s)
                    continue
                heapq.heappop(self._deadlines)
            self._give_up(pending)

    def _give_up(self, pending: Pending) -> None:
        overdue = Failure(kind="timeout", reason=f"no answer within {self._timeout_s:g} s")
        self._finish(pending, overdue, is_given_up=True)


def _failure(error: Exception) -> Failure:
    kind: FailureKind = error.kind if isinstance(error, GraderError) else "error"
    return Failure(kind=kind, reason=f"{type(error).__name__}: {error}"[:REASON_CHARACTERS])
