"""Ships facts from the spool to the control plane, and fetches the control plane's requests to the driver.

    record ──▶ spool (disk) ──▶ shipper thread ──▶ control plane
                                heartbeat thread ◀─▶ control plane ──▶ requests ──▶ driver

Invariants:
- recording never waits for the network, and no recorded fact is dropped: while the control plane is down the shipper
  retries forever;
- facts are sent in order; only the control plane's acknowledgement moves the shipper forward, or back if a restored
  database has fewer facts;
- shipping ends if a restored database needs facts that the spool has discarded: a gap is never sent;
- facts are sent in the words that the control plane announces (`translation.py`). They are read at the start, at an
  acknowledgement that names others, and at a refusal, which is final only if they are the same;
- a request is passed to the driver once, however often heartbeats repeat it;
- a stale fence, or a fact that is refused for good, ends shipping; the driver's next call of `requests` raises it.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

from engine.process.progress import report_progress
from engine.sinks.control_plane import ControlPlane, Gap, Refused, StaleFence, Unreachable
from engine.sinks.spool import NotInSpool, Spool
from engine.sinks.translation import NotUnderstood, Translation
from engine.spec.control import MAX_FACTS_PER_BATCH, ControlRequest, FactAck, Heartbeat
from engine.spec.facts import FactBody

log = logging.getLogger(__name__)

MAX_BATCH_BYTES: Final = 512 * 1024  # well under the body limit of any web server, and a good size for one transaction
FIRST_RETRY_S: Final = 0.2
LAST_RETRY_S: Final = 5.0  # pages are current within seconds after the control plane is back
HEARTBEAT_EVERY_S: Final = 2.0


def retry_delay_s(num_failures: int, chance: random.Random) -> float:
    """Doubles up to a bound; jitter keeps many drivers from retrying at the same instant."""
    longest = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(num_failures, 16))
    return longest * chance.uniform(0.5, 1.0)


class HttpSink:
    def __init__(self, *, spool: Spool, control: ControlPlane, attempt: int, fence: int) -> None:
        self._spool, self._control = spool, control
        self._attempt, self._fence = attempt, fence
        self._requests: SimpleQueue[ControlRequest] = SimpleQueue()
        self._seen_requests: set[str] = set()
        # After a restart of the driver, its last fact is sent again: the response shows which facts are stored.
        self._acked = max(0, spool.last_seq - 1)
        self._translation: Translation | None = None
        self._ended_by: StaleFence | Refused | None = None
        self._progress = threading.Condition()
        self._stopping = threading.Event()
        self._step: Callable[[], int] = lambda: 0
        self._turns: Callable[[], int | None] = lambda: None
        self._chance = random.Random()
        self._threads = [
            threading.Thread(target=self._ship_for_ever, name="fact-shipper", daemon=True),
            threading.Thread(target=self._beat_for_ever, name="heartbeat", daemon=True),
        ]

    def start(self, *, step: Callable[[], int], turns: Callable[[], int | None] = lambda: None) -> None:
        """For the heartbeat: the last step trained, and a counter that grows while the driver's loop runs."""
        self._step, self._turns = step, turns
        for thread in self._threads:
            thread.start()

    def record(self, body: FactBody) -> None:
        self._spool.append(body)
        with self._progress:
            self._progress.notify_all()

    def requests(self) -> list[ControlRequest]:
        """The requests since the last call; raises `StaleFence` or `Refused` once that has ended shipping."""
        if self._ended_by is not None:
            raise self._ended_by
        requests: list[ControlRequest] = []
        while True:
            try:
                requests.append(self._requests.get_nowait())
            except Empty:
                return requests

    def close(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._progress:
            while not self._is_delivered and self._ended_by is None and (left := deadline - time.monotonic()) > 0:
                report_progress()
                self._progress.wait(min(left, 1.0))
        self._stopping.set()
        with self._progress:
            self._progress.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=2.0)
        self._spool.close()
        return self._is_delivered

    @property
    def _is_delivered(self) -> bool:
        return self._acked >= self._spool.last_seq

    # ── facts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ship_for_ever(self) -> None:
        num_failures = 0
        while not self._stopping.is_set():
            with self._progress:
                if self._is_delivered:
                    self._progress.wait(1.0)
                    continue
            try:
                self._ship_once()
                num_failures = 0
            except Unreachable as error:
                # One line at the start of an outage, then occasional reminders: an outage may take hours.
                if num_failures in (0, 10) or num_failures % 100 == 0:
                    log.warning("facts waiting=%d tries=%d error=%s", self.num_waiting, num_failures + 1, error)
                self._stopping.wait(retry_delay_s(num_failures, self._chance))
                num_failures += 1
            except StaleFence as error:
                self._end(error)
                return
            except Refused as error:
                self._end(Refused(f"facts from {self._acked + 1} on: {error}"))
                return

    @property
    def num_waiting(self) -> int:
        """Facts that are not stored yet."""
        return self._spool.last_seq - self._acked

    def _ship_once(self) -> None:
        try:
            lines = self._spool.lines_after(self._acked, max_facts=MAX_FACTS_PER_BATCH, max_bytes=MAX_BATCH_BYTES)
        except NotInSpool as error:
            raise Refused(f"{error}; the control plane's database was restored from an older backup") from error
        answer = self._send(lines)
        if answer.acked > self._spool.last_seq:
            raise Refused(
                f"the control plane has {answer.acked} facts of this attempt, its spool {self._spool.last_seq}"
            )
        if answer.acked <= self._acked and not isinstance(answer, Gap):
            raise Unreachable(f"sent facts from {self._acked + 1} on, but only {answer.acked} are stored")
        with self._progress:
            self._acked = answer.acked
            self._progress.notify_all()
        if not isinstance(answer, Gap):
            self._spool.discard(answer.acked)

    def _send(self, lines: list[bytes]) -> FactAck | Gap:
        translation = self._translation = self._translation or Translation(self._control.vocabulary())
        try:
            lines = translation.lines(lines)
            answer = self._control.send_facts(attempt=self._attempt, fence=self._fence, lines=lines)
        except (Refused, NotUnderstood) as error:
            self._translation = Translation(self._control.vocabulary())
            if self._translation.names != translation.names:
                raise Unreachable(f"the control plane's release has changed: {error}") from error
            raise Refused(str(error)) from error
        if isinstance(answer, FactAck) and answer.vocabulary and not translation.is_of(answer.vocabulary):
            self._translation = None
        return answer

    # ── heartbeat ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _beat_for_ever(self) -> None:
        while not self._stopping.is_set():
            try:
                reply = self._control.beat(self._heartbeat())
                for request in reply.requests:
                    self._pass_on(request)
            except Unreachable as error:
                log.debug("heartbeat error=%s", error)  # the shipper logs a warning if facts are waiting
            except StaleFence as error:
                self._end(error)
                return
            except Refused as error:
                self._end(Refused(f"heartbeat: {error}"))
                return
            self._stopping.wait(HEARTBEAT_EVERY_S)

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(attempt=self._attempt, fence=self._fence, step=self._step(), turns=self._turns())

    def _pass_on(self, request: ControlRequest) -> None:
        if request.id not in self._seen_requests:
            self._seen_requests.add(request.id)
            self._requests.put(request)

    def _end(self, error: StaleFence | Refused) -> None:
        log.error("shipping ended error=%s message=%s", type(error).__name__, error)
        self._stopping.set()
        with self._progress:
            self._ended_by = error
            self._progress.notify_all()
