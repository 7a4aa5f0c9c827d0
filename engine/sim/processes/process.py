"""A process of the simulated cluster: a brain in its body, a loop, and a heartbeat thread.

    messages, timers ──▶ queue ──▶ loop: brain.handle ──▶ effects ──▶ sent, or carried out, some by workers
                                     └── slow work blocks the loop, while heartbeats continue and report it

Invariants:
- events due while the loop is blocked or the process frozen happen afterwards, in order; events due after its death
  never happen;
- a hanging process only sends heartbeats; a frozen or starved one does not even do that.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, get_args

from engine.pipeline.effects import Effect, Send
from engine.pipeline.messages.addresses import MANAGER, Address, Kind
from engine.pipeline.messages.message import Message, Tick
from engine.pipeline.messages.to_manager import PartReported
from engine.policy.progress import Pulse
from engine.policy.recovery import PartKind
from engine.sim.bodies.data_and_trainer import Done, Post
from engine.sim.bodies.relay import CarriedChunk
from engine.sim.kernel import Event, Kernel
from engine.sim.processes.workers import Workers

TICK_S: Final = 0.5
BEAT_S: Final = 0.5
WATCHED: Final = frozenset(get_args(PartKind))
# As live: the trainer's writes checkpoints, a relay's hold and hash weights.
NUM_WORKERS: Final[dict[Kind, int]] = {"trainer": 1, "relay": 4}


class Brain(Protocol):
    def handle(self, message: Message, now: float) -> list[Effect]: ...


@dataclass(slots=True, kw_only=True)
class Process:
    part: Address
    incarnation: int
    brain: Brain
    kernel: Kernel
    post: Post
    note: Callable[[Brain, Effect], None]
    """Called with every effect before it is carried out."""
    on_received: Callable[[Message], None] = lambda message: None
    """Called with every message after the brain has decided on it."""
    perform: Callable[[Effect], None] = lambda effect: None
    measure: Callable[[], Message] | None = None
    on_carried: Callable[[CarriedChunk], None] | None = None
    is_alive: bool = True
    hangs: bool = False
    frozen_until: float = 0.0
    is_starved: bool = False
    """Frozen, while its host reports that it waits for a core."""
    pulse: Pulse = field(init=False)
    workers: Workers = field(init=False)
    _queue: deque[Event] = field(default_factory=deque, init=False)
    _is_working: bool = field(default=False, init=False)
    _after_work: list[Event] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.pulse = Pulse()
        self.workers = Workers(
            NUM_WORKERS.get(self.part.kind, 0),
            kernel=self.kernel,
            is_alive=lambda: self.is_alive,
            frozen_until=lambda: self.frozen_until,
        )

    def start(self, *, tick_in_s: float) -> None:
        self.after(tick_in_s, self.tick)
        if self.part.kind in WATCHED:
            self.beat()

    @property
    def is_working(self) -> bool:
        return self.is_alive and not self.hangs and self.frozen_until <= self.kernel.now

    def freeze(self, lasts_s: float) -> None:
        self.frozen_until = max(self.frozen_until, self.kernel.now + lasts_s)
        self.kernel.at(self.frozen_until, self._run_queue)

    def starve(self, lasts_s: float) -> None:
        self.is_starved = True
        self.kernel.after(lasts_s, self._end_starvation)
        self.freeze(lasts_s)

    def _end_starvation(self) -> None:
        self.is_starved = False

    def do(self, deed: Event) -> None:
        self._queue.append(deed)
        if len(self._queue) == 1:
            self._run_queue()

    def after(self, delay_s: float, deed: Event) -> None:
        self.kernel.after(delay_s, partial(self.do, deed))

    def receive(self, message: Message) -> None:
        self.do(partial(self._decide, message))

    def later(self, delay_s: float, message: Message) -> None:
        self.after(delay_s, partial(self._decide, message))

    def tick(self) -> None:
        if self.measure is not None:
            self._decide(self.measure())
        self._decide(Tick())
        self.after(TICK_S, self.tick)

    def beat(self) -> None:
        if not self.is_alive:
            return
        if not self._is_frozen:
            self.post(MANAGER, self._report())
        self.kernel.after(BEAT_S, self.beat)

    def _report(self) -> PartReported:
        return PartReported(
            part=self.part, incarnation=self.incarnation, piece=self.pulse.piece, worker_pieces=self.workers.pieces
        )

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _is_frozen(self) -> bool:
        return self.frozen_until > self.kernel.now

    @property
    def _is_free(self) -> bool:
        return self.is_alive and not (self.hangs or self._is_frozen or self._is_working)

    def _run_queue(self) -> None:
        while self._queue and self._is_free:
            self.pulse.advance()
            self._queue[0]()  # it stays first until it is done: its consequences come after it
            self._queue.popleft()
            if self._after_work:
                self._queue.extendleft(reversed(self._after_work))
                self._after_work = []

    def _decide(self, message: Message) -> None:
        self._carry_out(deque(self.brain.handle(message, self.kernel.now)))
        self.on_received(message)

    def _carry_out(self, effects: deque[Effect]) -> None:
        while effects and not self._is_working:
            effect = effects.popleft()
            self.note(self.brain, effect)
            if isinstance(effect, Send):
                self.post(effect.to, effect.message)
            else:
                self.perform(effect)
        if effects:
            self._after_work.insert(0, partial(self._carry_out, effects))

    # ── what takes long ───────────────────────────────────────────────────────────────────────────────────────────

    def work(self, what: str, stretches: Sequence[float], then: Done) -> None:
        """Blocks the loop, with a sign of life before and after each stretch."""
        assert not self._is_working, f"{what} starts during other work"
        self._is_working = True
        self._after_work.append(partial(self._finish, then))
        self._begin(what, deque(stretches))

    def _finish(self, then: Done) -> None:
        message = then()
        if message is not None:
            self._decide(message)

    def _begin(self, what: str, left: deque[float]) -> None:
        if not left:
            self._is_working = False
            self._run_queue()
            return
        lasts_s = left.popleft()
        self.pulse.begin(what)
        self.kernel.after(lasts_s, partial(self._end, what, left))

    def _end(self, what: str, left: deque[float]) -> None:
        if not self.is_alive or self.hangs:
            return
        if self._is_frozen:
            self.kernel.at(self.frozen_until, partial(self._end, what, left))
            return
        self.pulse.end()
        self._begin(what, left)
