"""Warm sandboxes: a process that is asked many times, and a few of them that take calls in turn.

    pool = WorkerPool(files={"main.py": code}, limits=limits)
    pool.call("respond", prompt, turns, deadline_s=60)

Invariants:
- a call ends within its deadline, waiting for a free worker included, with a value or with `CallFailed`; only where a
  process has to be started first may that take `START_S` more;
- a worker that failed in any way is never asked again: the next call gets a fresh one;
- what main.py prints cannot be taken for an answer: those have a pipe of their own and repeat the request's nonce.
"""

import json
import queue
import secrets
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from engine.environments.sandbox.child import Child
from engine.environments.sandbox.inside.frames import HEADER, MAX_BYTES, packed
from engine.environments.sandbox.outcome import Finished, Limits, Outcome, Refused, SandboxUnavailable, TimedOut

START_S: Final = 60.0
"""For bubblewrap (milliseconds) and the imports of what runs inside (seconds, for the large mathematical packages)."""
HASTE_S: Final = 1.0
"""Longer than a burst of answers that are computed in milliseconds waits for one another."""
LIFELONG_CPU_S: Final = 10_000_000
"""A warm process has no bound on its processor time over its life; each call has its deadline."""

Ask = Callable[[object], object]


class CallFailed(Exception):
    """A sandboxed call has no value."""

    def __init__(self, reason: str, *, outcome: Outcome | None = None, has_raised: bool = False) -> None:
        super().__init__(reason)
        self.outcome, self.has_raised = outcome, has_raised
        """The end of the process; none where the code itself raised, and the process lives on."""


class Worker:
    """One sandboxed process that serves calls. Not for several threads at once."""

    def __init__(
        self,
        *,
        files: Mapping[str, str],
        limits: Limits,
        packages: Sequence[str] = (),
        forks: bool = False,
        cpu_s: int = LIFELONG_CPU_S,
    ) -> None:
        try:
            self._child: Child | None = Child(
                files=files, limits=replace(limits, cpu_s=cpu_s), serves=True, forks=forks, packages=packages
            )
        except SandboxUnavailable as error:
            raise CallFailed(str(error), outcome=Refused(reason=str(error))) from error
        self.call("is_ready", deadline=time.monotonic() + START_S)

    @property
    def is_alive(self) -> bool:
        return self._child is not None

    def call(self, function: str, *arguments: object, deadline: float, ask: Ask | None = None) -> object:
        """`deadline` is a time of the monotonic clock; `ask` answers what the function asks while it runs."""
        child = self._require_child()
        nonce = secrets.token_hex(16)
        child.forget_output()
        child.send(packed({"nonce": nonce, "call": function, "arguments": arguments}))
        while True:
            message = self._next_message(child, deadline)
            if message.get("nonce") != nonce:
                continue  # left over from an earlier call, or forged by something that does not know this one's nonce
            if "ask" in message and ask is not None:
                child.send(packed({"told": self._told(ask, message["ask"])}))
            elif "value" in message:
                return message["value"]
            else:
                raise CallFailed(str(message.get("raised", "an answer of no known shape")), has_raised=True)

    def close(self) -> None:
        if self._child is not None:
            child, self._child = self._child, None
            child.end()

    def _told(self, ask: Ask, question: object) -> object:
        try:
            return ask(question)
        except BaseException:
            self.close()  # it waits for what will never come
            raise

    def _require_child(self) -> Child:
        if self._child is None:
            raise CallFailed("the sandboxed process has ended")
        return self._child

    def _next_message(self, child: Child, deadline: float) -> dict[str, object]:
        while True:
            # A stream of nonsense never lacks a header, so the clock is looked at, too.
            if not self._has(child, HEADER.size, deadline) or time.monotonic() > deadline:
                raise self._failed(child, deadline)
            (length,) = HEADER.unpack_from(child.answers)
            if length > MAX_BYTES:
                raise self._failed(child, deadline, "it announced a message that is too long")
            whole = HEADER.size + length
            if not self._has(child, whole, deadline):
                raise self._failed(child, deadline)
            body = bytes(child.answers[HEADER.size : whole])
            del child.answers[:whole]
            try:
                message = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise self._failed(child, deadline, "it sent something that is no message") from error
            if isinstance(message, dict):
                return message

    def _has(self, child: Child, num_bytes: int, deadline: float) -> bool:
        return child.pump(lambda: len(child.answers) >= num_bytes, deadline)

    def _failed(self, child: Child, deadline: float, reason: str = "") -> CallFailed:
        self._child = None
        outcome = child.end(until=0.0 if reason else deadline)
        if isinstance(outcome, TimedOut) and outcome.clock == "wall" and not reason:
            reason = "it did not answer in time"
        said = outcome.output.stderr.strip()[-500:] if isinstance(outcome, Finished) else ""
        return CallFailed(" ".join(part for part in (reason or str(outcome), said) if part), outcome=outcome)


class WorkerPool:
    """Up to `size` workers, made when they are first needed and ended with the pool; more, up to `most`, once a call
    has waited for `HASTE_S`: whoever sleeps leaves the core to others."""

    def __init__(
        self,
        *,
        files: Mapping[str, str],
        limits: Limits,
        packages: Sequence[str] = (),
        forks: bool = False,
        size: int = 1,
        most: int = 0,
    ) -> None:
        """`forks`: every call in a copy of the warm process, so that none can change what the next one meets."""
        self._start = partial(Worker, files=files, limits=limits, packages=packages, forks=forks)
        self._free: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)
        self._further = queue.SimpleQueue[None]()
        """Permits for more than `size`: each is taken once, since who needed many at once will again."""
        for _ in range(most - size):
            self._further.put(None)
        weakref.finalize(self, _close_all, self._free)

    def call(
        self,
        function: str,
        *arguments: object,
        deadline_s: float,
        call_s: float | None = None,
        ask: Ask | None = None,
    ) -> object:
        """`deadline_s` bounds all of it, `call_s` what the function itself may take."""
        deadline = time.monotonic() + deadline_s
        worker = self._free_within(deadline_s)
        try:
            if worker is None:
                began = time.monotonic()
                worker = self._start()
                deadline += time.monotonic() - began
            if call_s is not None:
                deadline = min(deadline, time.monotonic() + call_s)
            return worker.call(function, *arguments, deadline=deadline, ask=ask)
        finally:
            self._free.put(worker if worker is not None and worker.is_alive else None)

    def _free_within(self, deadline_s: float) -> Worker | None:
        """None: one has to be made."""
        haste_s = min(HASTE_S, deadline_s)
        try:
            return self._free.get(timeout=haste_s)
        except queue.Empty:
            pass
        try:
            return self._further.get_nowait()
        except queue.Empty:
            pass
        try:
            return self._free.get(timeout=deadline_s - haste_s)
        except queue.Empty:
            raise CallFailed(f"no sandboxed process was free within {deadline_s:g} s") from None


def _close_all(free: "queue.LifoQueue[Worker | None]") -> None:
    while True:
        try:
            worker = free.get_nowait()
        except queue.Empty:
            return
        if worker is not None:
            worker.close()
