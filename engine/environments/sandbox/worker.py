"""Warm sandboxes: a process that serves many calls, and a pool of such processes.

    pool = WorkerPool(files={"main.py": code}, limits=limits)
    pool.call("respond", prompt, turns, deadline_s=60)

Invariants:
- a call ends with a value, or with `CallFailed` when its own time is over (`own_time.py`): waits for a core, for a free
  worker, for the start of a new one and for answers to its questions do not count;
- a call waits for a free worker as long as the calls before it take, which all end at their own time; only a host
  without a core for any of them ends the wait;
- a worker that failed in any way serves no further call: the next call gets a fresh one;
- output of main.py is never taken for an answer: answers have a pipe of their own and repeat the request's nonce.
"""

import json
import queue
import secrets
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Final

from engine.environments.sandbox.child import Child
from engine.environments.sandbox.excuses import excused
from engine.environments.sandbox.inside.frames import HEADER, MAX_BYTES, packed
from engine.environments.sandbox.outcome import (
    Finished,
    Limits,
    Outcome,
    Refused,
    SandboxUnavailable,
    Starved,
    TimedOut,
)
from engine.environments.sandbox.own_time import OwnTime, patience_s
from engine.environments.sandbox.watch import Watch

START_S: Final = 60.0
"""Own time of a start: bubblewrap (milliseconds) and the imports of the code inside (seconds, for mathematics)."""
HASTE_S: Final = 1.0
"""Longer than the calls of a burst wait for one another, if each takes milliseconds."""
LIFELONG_CPU_S: Final = 10_000_000
"""A warm process has no limit on its lifetime's processor time; each call has its own time."""

Ask = Callable[[object], object]


class CallFailed(Exception):
    """A sandboxed call has no value."""

    def __init__(self, reason: str, *, outcome: Outcome | None = None, has_raised: bool = False) -> None:
        super().__init__(reason)
        self.outcome, self.has_raised = outcome, has_raised
        """How the process ended; None if the code raised and the process lives on."""

    @property
    def last_line(self) -> str:
        return (str(self).splitlines() or [""])[-1]


class Worker:
    """One sandboxed process that serves calls. Not for several threads at once."""

    def __init__(
        self,
        *,
        files: Mapping[str, str],
        limits: Limits,
        packages: Sequence[str] | None = (),
        forks: bool = False,
        cpu_s: int = LIFELONG_CPU_S,
    ) -> None:
        limits = replace(limits, cpu_s=cpu_s)
        try:
            self._child: Child | None = Child(files=files, limits=limits, serves=True, forks=forks, packages=packages)
        except SandboxUnavailable as error:
            raise CallFailed(str(error), outcome=Refused(reason=str(error))) from error
        self._secret, self._num_calls = secrets.token_bytes(32), 0
        with excused():
            self.call("is_ready", own=OwnTime.scaled(START_S))

    @property
    def is_alive(self) -> bool:
        return self._child is not None

    def call(self, function: str, *arguments: object, own: OwnTime, ask: Ask | None = None) -> object:
        """`own`: the time of this call and of all others with this object. `ask` answers the function's questions."""
        child = self._require_child()
        nonce = self._next_nonce()
        child.forget_output()
        child.send(_packed_call({"nonce": nonce, "call": function, "arguments": arguments}))
        while True:
            message = self._await_message(nonce, child, own)
            if "ask" in message and ask is not None:
                child.send(packed({"answer": self._answer(ask, message["ask"])}))
            elif "value" in message:
                return message["value"]
            else:
                raise CallFailed(str(message.get("raised", "the answer has an unknown shape")), has_raised=True)

    def _next_nonce(self) -> str:
        """Only the secret gives it. Random bytes from the kernel took a third of the time of a short call."""
        self._num_calls += 1
        return blake2b(self._num_calls.to_bytes(8), key=self._secret, digest_size=16).hexdigest()

    def close(self) -> None:
        if self._child is not None:
            child, self._child = self._child, None
            child.end()

    def _answer(self, ask: Ask, question: object) -> object:
        try:
            return ask(question)
        except BaseException:
            self.close()  # the process waits for an answer that will never come
            raise

    def _require_child(self) -> Child:
        if self._child is None:
            raise CallFailed("the sandboxed process has ended")
        return self._child

    def _await_message(self, nonce: str, child: Child, own: OwnTime) -> dict[str, object]:
        watch = child.watch(own)
        try:
            while True:
                message = self._next_message(child, watch)
                if isinstance(message, dict) and message.get("nonce") == nonce:
                    return message
                # Left over from an earlier call, or forged without this call's nonce. In an endless stream of such
                # messages pump never waits, so the time is checked here too.
                if watch.is_over():
                    raise self._end_failed(child, watch)
        finally:
            watch.finish()

    def _next_message(self, child: Child, watch: Watch) -> object:
        self._await(HEADER.size, child, watch)
        (length,) = HEADER.unpack_from(child.answers)
        if length > MAX_BYTES:
            raise self._end_failed(child, watch, "the process announced a message that is too long")
        self._await(HEADER.size + length, child, watch)
        body = bytes(child.answers[HEADER.size : HEADER.size + length])
        del child.answers[: HEADER.size + length]
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._end_failed(child, watch, "the process sent an invalid message") from error

    def _await(self, num_bytes: int, child: Child, watch: Watch) -> None:
        if not child.pump(lambda: len(child.answers) >= num_bytes, watch):
            raise self._end_failed(child, watch)

    def _end_failed(self, child: Child, watch: Watch, reason: str = "") -> CallFailed:
        self._child = None
        outcome = child.end(None if reason else watch)
        if isinstance(outcome, TimedOut) and outcome.clock == "wall" and not reason:
            reason = "the process did not answer in time"
        stderr = outcome.output.stderr.strip()[-500:] if isinstance(outcome, Finished) else ""
        return CallFailed(" ".join(part for part in (reason or str(outcome), stderr) if part), outcome=outcome)


def _packed_call(request: object) -> bytes:
    """Raises `CallFailed` as if the code had raised: its arguments cannot be sent, now or later."""
    try:
        return packed(request)
    except (ValueError, RecursionError) as error:
        raise CallFailed(f"the call cannot be sent: {error}", has_raised=True) from error


class WorkerPool:
    """Up to `size` workers, made on first use and ended with the pool; up to `most` once a call has waited for
    `HASTE_S`: sleeping calls leave the core to others."""

    def __init__(
        self,
        *,
        files: Mapping[str, str],
        limits: Limits,
        packages: Sequence[str] | None = (),
        forks: bool = False,
        size: int = 1,
        most: int = 0,
    ) -> None:
        """`forks`: every call runs in a copy of the warm process, so that no call can affect the next. `packages`:
        None: with the sandbox's limits only (`bare.py`)."""
        self._start = partial(Worker, files=files, limits=limits, packages=packages, forks=forks)
        self._moved_at = float("-inf")
        """When a call last ended for another reason than starvation."""
        self._free: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)
        self._further = queue.SimpleQueue[None]()
        """Permits for workers beyond `size`; never returned, as a pool that needed many will need them again."""
        for _ in range(most - size):
            self._further.put(None)
        weakref.finalize(self, _close_all, self._free)

    def call(self, function: str, *arguments: object, deadline_s: float, ask: Ask | None = None) -> object:
        """`deadline_s`: of the call's own time."""
        own = OwnTime.scaled(deadline_s)
        worker = self._free_worker(own)
        try:
            if worker is None:
                worker = self._start()
            value = worker.call(function, *arguments, own=own, ask=ask)
            self._moved_at = time.monotonic()
            return value
        except CallFailed as error:
            if not isinstance(error.outcome, Starved):
                self._moved_at = time.monotonic()
            raise
        finally:
            self._free.put(worker if worker is not None and worker.is_alive else None)

    @excused()
    def _free_worker(self, own: OwnTime) -> Worker | None:
        """None: the caller has to start one."""
        began = time.monotonic()
        while True:
            with suppress(queue.Empty):
                return self._free.get(timeout=HASTE_S)
            with suppress(queue.Empty):
                return self._further.get_nowait()
            in_vain_s = time.monotonic() - max(began, self._moved_at)
            if in_vain_s > own.limit_s + patience_s(own.limit_s):
                raise CallFailed("no sandboxed process was free", outcome=Starved())


def _close_all(free: "queue.LifoQueue[Worker | None]") -> None:
    while True:
        try:
            worker = free.get_nowait()
        except queue.Empty:
            return
        if worker is not None:
            worker.close()
