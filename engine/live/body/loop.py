"""The loop of a body: one inbox, one thread, one brain, whose effects the body carries out.

    deliver ──▶ bounded inbox ──▶ loop thread: brain.handle ──▶ effects ──▶ peers, outbox, the body's own work
       call ──▶ ───── " ─────┘                (a call is for the body: results of an environment or a disk)

Invariants:
- only the loop thread touches brain and body; senders only enqueue;
- every turn of the loop counts as progress, and so does each piece of long work; another thread reports both in its
  heartbeat (`actor`) and waits for neither;
- an exception ends the loop and is reported to the driver with its class (out of memory has its own): nothing waits
  for a stopped body;
- a message that cannot be sent is dropped: the brains' protocol repeats unanswered messages.
"""

import logging
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any, Final, Protocol

from engine.live.body.recording import Recording
from engine.live.process.core_waits import thread_waited_s
from engine.live.process.fitting import HostTooSmall
from engine.live.process.memory import describe_error, is_out_of_memory, out_of_memory
from engine.pipeline.effects import Effect, Send
from engine.pipeline.messages.addresses import DRIVER, MANAGER, Address
from engine.pipeline.messages.message import Message, Tick
from engine.process.progress import LoopProgress, working
from engine.spec.causes import PlatformCause, check_cause
from engine.spec.facts import FailureClass
from engine.training.checkpoint.folder import CheckpointUnverified

log = logging.getLogger(__name__)

# Far more than credits allow in flight; a full inbox blocks senders instead of using more memory.
INBOX_SIZE: Final = 10_000
OUTBOX_SIZE: Final = 10_000


class Brain(Protocol):
    def handle(self, message: Message, now: float) -> list[Effect]: ...


class Body(Protocol):
    @property
    def brain(self) -> Brain: ...

    @property
    def tick_s(self) -> float: ...

    @property
    def is_busy(self) -> bool:
        """True if there is work in addition to the inbox."""

    def start(self) -> list[Message]:
        """Returns messages for its own brain, as do the methods below."""

    def perform(self, effect: Effect) -> list[Message]: ...

    def work(self) -> list[Message]:
        """One slice of work."""

    def measure(self, now: float) -> list[Message]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyFailed:
    """Report to the driver: this body has stopped."""

    failure_class: FailureClass
    """`platform`: the part is replaced. Any other class: its successor would fail the same way, so the run ends."""
    message: str
    cause: PlatformCause | None = None

    def __post_init__(self) -> None:
        check_cause(self.failure_class, self.cause)


Upward = Message | BodyFailed


class Outbox:
    """Messages to the driver and to the manager in its process, which the driver polls."""

    def __init__(self) -> None:
        self._queue: Queue[tuple[Address, Upward]] = Queue(maxsize=OUTBOX_SIZE)

    def put(self, to: Address, message: Upward) -> None:
        try:
            self._queue.put_nowait((to, message))
        except Full:
            log.error("outbox full, dropped message=%s", type(message).__name__)

    def collect(self, timeout_s: float) -> list[tuple[Address, Upward]]:
        collected: list[tuple[Address, Upward]] = []
        try:
            collected.append(self._queue.get(timeout=timeout_s))
            while True:
                collected.append(self._queue.get_nowait())
        except Empty:
            return collected


BodyCall = Callable[[Any], list[Message]]
"""Called with the body on the loop's thread; returns messages for the brain."""


class Loop:
    def __init__(
        self,
        *,
        name: str,
        build: Callable[[], Body],
        send: Callable[[Address, Message], None],
        recording: Recording | None = None,
        memory_needed: Callable[[], str] = str,
    ) -> None:
        """`memory_needed`: the arithmetic for an out-of-memory report."""
        self._memory_needed = memory_needed
        self._name, self._build, self._send_to_peer, self._recording = name, build, send, recording
        self._inbox: Queue[Message | BodyCall] = Queue(maxsize=INBOX_SIZE)
        self._stopping = Event()
        self.outbox = Outbox()
        self.progress = LoopProgress()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waited_s(self) -> float:
        """How long its thread has waited for a core."""
        return thread_waited_s(self._thread.native_id or 0)

    def deliver(self, message: Message) -> None:
        self._inbox.put(message)

    def call(self, what: BodyCall) -> None:
        """Called on any thread but the loop's own."""
        self._inbox.put(what)

    def stop(self) -> None:
        """Stops after the current work; for processes that outlive the loop."""
        self._stopping.set()
        self._inbox.put(lambda body: [])  # else the loop waits for its next tick

    def _run(self) -> None:
        with self.progress.attached():
            self._build_and_serve()

    def _build_and_serve(self) -> None:
        try:
            with working("start", is_opaque=True):  # imports, and starting processes
                body = self._build()
        except ValueError as error:  # the spec requires something that this machine lacks
            self._fail("config", error)
            return
        except HostTooSmall as error:
            self._fail("memory", error)
            return
        except CheckpointUnverified as error:  # the attempt's starting point
            self._fail("data", error)
            return
        except BaseException as error:  # noqa: BLE001 - a panic of a Rust library too; the driver decides what follows
            self._fail("platform", error)
            return
        try:
            self._serve(body)
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail("platform", error)

    def _fail(self, failure_class: FailureClass, error: BaseException) -> None:
        log.error("body=%s stopped\n%s", self._name, traceback.format_exc())
        message = str(error) if failure_class == "config" else f"{self._name}: {type(error).__name__}: {error}"
        if is_out_of_memory(error):
            failure_class, message = "memory", out_of_memory(self._name, describe_error(error), self._memory_needed())
        self.outbox.put(DRIVER, BodyFailed(failure_class=failure_class, message=message))

    def _serve(self, body: Body) -> None:
        self._handle(body, body.start())
        tick_at = time.monotonic()
        while not self._stopping.is_set():
            self.progress.advance()
            wait_s = 0.0 if body.is_busy else max(0.0, tick_at - time.monotonic())
            for item in self._receive(wait_s):
                self._handle(body, item(body) if callable(item) else [item])
            if body.is_busy:
                self._handle(body, body.work())
            now = time.monotonic()
            if now >= tick_at:
                self._handle(body, [*body.measure(now), Tick()])
                tick_at = now + body.tick_s

    def _receive(self, wait_s: float) -> list[Message | BodyCall]:
        received: list[Message | BodyCall] = []
        try:
            received.append(self._inbox.get(timeout=wait_s) if wait_s > 0 else self._inbox.get_nowait())
            while True:
                received.append(self._inbox.get_nowait())
        except Empty:
            return received

    def _handle(self, body: Body, messages: list[Message]) -> None:
        waiting = deque(messages)
        while waiting:
            self.progress.advance()
            message, now = waiting.popleft(), time.monotonic()
            effects = body.brain.handle(message, now)
            if self._recording is not None:
                self._recording.note(now, message, effects)
            for effect in effects:
                if isinstance(effect, Send):
                    self._send(effect.to, effect.message)
                else:
                    waiting.extend(body.perform(effect))

    def _send(self, to: Address, message: Message) -> None:
        if to in (DRIVER, MANAGER):
            self.outbox.put(to, message)
        else:
            self._send_to_peer(to, message)
