"""The loop of a body, which carries out its brain's effects: one inbox, one thread, one brain.

    deliver ──▶ bounded inbox ──▶ loop thread: brain.handle ──▶ effects ──▶ peers, outbox, the body's own work
       call ──▶ ───── " ─────┘                (a call is for the body: what an environment or a disk has to say)

Invariants:
- only the loop thread touches brain and body; whoever delivers only enqueues;
- every turn of the loop is a sign of life, so is each piece of what takes long; the heartbeat that tells of them is
  another thread's (`actor`), and waits for neither;
- an exception ends the loop and is told to the driver with its class (memory that ran out has its own): nothing
  waits for a body that has stopped;
- a message that cannot be sent is dropped: the brains' protocol sends again whatever was not answered.
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
from engine.live.process.memory import is_out_of_memory, out_of_memory, told
from engine.pipeline.effects import Effect, Send
from engine.pipeline.messages.addresses import DRIVER, MANAGER, Address
from engine.pipeline.messages.message import Message, Tick
from engine.signs import Signs, at_work
from engine.spec.facts import FailureClass
from engine.training.checkpoint.folder import CheckpointUnverified

log = logging.getLogger(__name__)

# Far more than credits allow to be under way; a full inbox holds the senders back instead of eating memory.
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
        """There is work to do besides the inbox."""

    def start(self) -> list[Message]:
        """Messages for the own brain, here and below."""

    def perform(self, effect: Effect) -> list[Message]: ...

    def work(self) -> list[Message]:
        """One slice of work."""

    def measure(self, now: float) -> list[Message]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyFailed:
    """News to the driver: this body has stopped."""

    failure_class: FailureClass
    message: str


Upward = Message | BodyFailed


class Outbox:
    """Messages to the driver and to the manager, which lives there: fetched by the driver, call by call."""

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
"""Given the body, on the loop's thread; what it returns is for the brain."""


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
        """`memory_needed`: the arithmetic, for the case that it runs out."""
        self._memory_needed = memory_needed
        self._name, self._build, self._send_to_peer, self._recording = name, build, send, recording
        self._inbox: Queue[Message | BodyCall] = Queue(maxsize=INBOX_SIZE)
        self._stopping = Event()
        self.outbox = Outbox()
        self.signs = Signs()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waited_s(self) -> float:
        """The time in which its thread could run and had no core."""
        return thread_waited_s(self._thread.native_id or 0)

    def deliver(self, message: Message) -> None:
        self._inbox.put(message)

    def call(self, what: BodyCall) -> None:
        """From any thread but the loop's own."""
        self._inbox.put(what)

    def stop(self) -> None:
        """After what it is at; where its process lives on without it."""
        self._stopping.set()
        self._inbox.put(lambda body: [])  # or it would wait for its next tick

    def _run(self) -> None:
        with self.signs.heard_here():
            self._build_and_serve()

    def _build_and_serve(self) -> None:
        try:
            with at_work("start", is_opaque=True):  # imports, and processes that come up
                body = self._build()
        except ValueError as error:  # the spec asks for what this machine does not have
            self._fail("config", error)
            return
        except HostTooSmall as error:  # the operator's to change
            self._fail("infrastructure", error)
            return
        except CheckpointUnverified as error:  # what the attempt began with
            self._fail("data", error)
            return
        except Exception as error:  # noqa: BLE001 - the driver decides what becomes of the run
            self._fail("platform", error)
            return
        try:
            self._serve(body)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail("platform", error)

    def _fail(self, failure_class: FailureClass, error: Exception) -> None:
        log.error("body=%s stopped\n%s", self._name, traceback.format_exc())
        message = str(error) if failure_class == "config" else f"{self._name}: {type(error).__name__}: {error}"
        if is_out_of_memory(error):
            failure_class, message = "memory", out_of_memory(self._name, told(error), self._memory_needed())
        self.outbox.put(DRIVER, BodyFailed(failure_class=failure_class, message=message))

    def _serve(self, body: Body) -> None:
        self._handle(body, body.start())
        tick_at = time.monotonic()
        while not self._stopping.is_set():
            self.signs.sign()
            wait_s = 0.0 if body.is_busy else max(0.0, tick_at - time.monotonic())
            for received in self._received(wait_s):
                self._handle(body, received(body) if callable(received) else [received])
            if body.is_busy:
                self._handle(body, body.work())
            now = time.monotonic()
            if now >= tick_at:
                self._handle(body, [*body.measure(now), Tick()])
                tick_at = now + body.tick_s

    def _received(self, wait_s: float) -> list[Message | BodyCall]:
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
            self.signs.sign()
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
