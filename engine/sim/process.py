"""A process of the simulated cluster: a brain in its body.

Invariant: what is due while it is frozen happens in its order when it thaws, what is due after its death never.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from engine.pipeline.effects import Effect, Send
from engine.pipeline.messages.message import Message, Tick
from engine.sim.bodies import Post
from engine.sim.kernel import Event, Kernel
from engine.sim.relay_bodies import CarriedChunk

TICK_S: Final = 0.5


class Brain(Protocol):
    def handle(self, message: Message, now: float) -> list[Effect]: ...


@dataclass(slots=True, kw_only=True)
class Process:
    incarnation: int
    brain: Brain
    kernel: Kernel
    post: Post
    note: Callable[[Brain, Effect], None]
    """Is told every effect before it is carried out."""
    heard: Callable[[Message], None] = lambda message: None
    """Is told every message after it was decided on."""
    perform: Callable[[Effect], None] = lambda effect: None
    measure: Callable[[], Message] | None = None
    on_carried: Callable[[CarriedChunk], None] | None = None
    is_alive: bool = True
    frozen_until: float = 0.0

    @property
    def is_at_work(self) -> bool:
        return self.is_alive and self.frozen_until <= self.kernel.now

    def freeze(self, lasts_s: float) -> None:
        self.frozen_until = max(self.frozen_until, self.kernel.now + lasts_s)

    def do(self, deed: Event) -> None:
        if not self.is_alive:
            return
        if self.frozen_until > self.kernel.now:
            self.kernel.at(self.frozen_until, partial(self.do, deed))
        else:
            deed()

    def after(self, delay_s: float, deed: Event) -> None:
        self.kernel.after(delay_s, partial(self.do, deed))

    def hear(self, message: Message) -> None:
        self.do(partial(self._decide, message))

    def later(self, delay_s: float, message: Message) -> None:
        self.after(delay_s, partial(self._decide, message))

    def tick(self) -> None:
        if self.measure is not None:
            self._decide(self.measure())
        self._decide(Tick())
        self.after(TICK_S, self.tick)

    def _decide(self, message: Message) -> None:
        for effect in self.brain.handle(message, self.kernel.now):
            self.note(self.brain, effect)
            if isinstance(effect, Send):
                self.post(effect.to, effect.message)
            else:
                self.perform(effect)
        self.heard(message)
