"""A part's heartbeat: every second it tells the manager that the process lives, and the work its loop is at.

Invariant: it holds nothing that the loop may hold for long, so however long a piece of work takes, the next one comes.
"""

from threading import Event, Thread
from typing import Final

from engine.live.body.loop import Loop
from engine.pipeline.messages.addresses import MANAGER, Address
from engine.pipeline.messages.to_manager import PartReported

BEAT_EVERY_S: Final = 1.0


class Heartbeat:
    def __init__(self, loop: Loop, *, part: Address, incarnation: int, every_s: float = BEAT_EVERY_S) -> None:
        self._loop, self._part, self._incarnation, self._every_s = loop, part, incarnation, every_s
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=f"{part} heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            report = PartReported(part=self._part, incarnation=self._incarnation, piece=self._loop.signs.piece)
            self._loop.outbox.put(MANAGER, report)
            if self._stopping.wait(self._every_s):
                return
