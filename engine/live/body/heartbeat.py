"""A part's heartbeat to the manager, every second: its process is alive, the loop's current piece of work, the loop's
waits for a core, and work on other threads.

Invariant: it takes no lock that the loop may hold for long, so heartbeats continue however long a piece of work takes.
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
            progress = self._loop.progress
            report = PartReported(
                part=self._part,
                incarnation=self._incarnation,
                piece=progress.piece,
                worker_pieces=progress.worker_pieces,
                waited_s=self._loop.waited_s,
            )
            self._loop.outbox.put(MANAGER, report)
            if self._stopping.wait(self._every_s):
                return
