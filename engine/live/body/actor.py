"""The base of every Ray actor of the pipeline: a body in a loop, a heartbeat thread, peers, and an outbox for the
driver.

Invariants:
- a heartbeat never waits for the loop; its report of the loop's progress is how a hanging loop is detected;
- all calls are one-way: `deliver` enqueues and returns nothing, `collect` is the driver's poll;
- an actor never restarts by itself: its state would be lost unnoticed. The manager decides.
"""

import logging
import os
import socket
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from engine.live.body.handed import Handed
from engine.live.body.heartbeat import Heartbeat
from engine.live.body.loop import Body, Loop, Upward
from engine.live.body.recording import Recording
from engine.live.process.core_waits import ProcessNamed, ProcessTimes, look_at, own_process
from engine.live.process.kernel_kills import MemoryReport, MemoryReporter
from engine.live.process.settings import log_form
from engine.pipeline.messages.addresses import DRIVER, Address
from engine.pipeline.messages.message import Message
from engine.sinks.lines import LineKeeper, TakenLines
from engine.spec.job import JobSpec
from engine.spec.logs.log_text import log_to

log = logging.getLogger(__name__)

# One thread each: messages keep their order, and a waiting poll never delays a delivery.
CONCURRENCY_GROUPS = {"inbox": 1, "outbox": 1}

Collected = Upward | TakenLines | MemoryReport | ProcessNamed


class SideReports:
    """An actor's reports to the driver that are not messages: its process, log lines, OOM kills on its host."""

    def __init__(self, lines: LineKeeper) -> None:
        self._lines, self._kills = lines, MemoryReporter()
        self._process: ProcessNamed | None = ProcessNamed(process=own_process())

    def take(self) -> list[tuple[Address, TakenLines | MemoryReport | ProcessNamed]]:
        process, self._process = self._process, None
        return [(DRIVER, each) for each in (process, self._kills.news(), self._lines.take()) if each is not None]


class BodyActor:
    def __init__(
        self,
        *,
        part: Address,
        incarnation: int = 0,
        recordings: Path | None = None,
        built_with: Mapping[str, object] | None = None,
    ) -> None:
        """`recordings`: a folder for the brain's messages and decisions; `built_with`: the arguments to rebuild it."""
        log_to(fmt="%(levelname)s %(message)s", form=log_form())
        lines = LineKeeper(str(part))
        self._side_reports = SideReports(lines)
        logging.getLogger().addHandler(lines)
        log.info("part=%s incarnation=%d host=%s pid=%d", part, incarnation, socket.gethostname(), os.getpid())
        self._handed = Handed[tuple[Address, Collected]]()
        self._part = part
        self._peers: dict[Address, Any] = {}
        recording: Recording | None = None
        if recordings is not None and built_with is not None:
            file = recordings / f"{str(part).replace('/', '-')}.{incarnation}.jsonl"
            recording = Recording(file, part=part, built_with=built_with)
        self._loop = Loop(
            name=str(part),
            build=self.build,
            send=self._send,
            recording=recording,
            memory_needed=self.memory_needed,
        )
        Heartbeat(self._loop, part=part, incarnation=incarnation).start()

    @staticmethod
    def options(spec: JobSpec) -> dict[str, Any]:
        """Ray options in addition to the placement."""
        return {}

    @abstractmethod
    def build(self) -> Body:
        """Builds the body on the loop's thread. Heavy imports and loads happen here."""

    def memory_needed(self) -> str:
        """The arithmetic for an out-of-memory report; empty for parts whose memory does not depend on the model."""
        return ""

    @ray.method(concurrency_group="inbox", num_returns=0)
    def deliver(self, message: Message) -> None:
        self._loop.deliver(message)

    @ray.method(concurrency_group="inbox", num_returns=0)
    def connect(self, peers: dict[Address, Any]) -> None:
        self._peers = {**self._peers, **peers}
        self.met(peers)

    def met(self, peers: Mapping[Address, Any]) -> None:
        """Called with peers that are new or replace others."""

    @ray.method(concurrency_group="outbox")
    def collect(self, timeout_s: float, got: int) -> tuple[int, list[tuple[Address, Collected]]]:
        return self._handed.after(got, lambda: self._collect(timeout_s))

    def _collect(self, timeout_s: float) -> list[tuple[Address, Collected]]:
        collected: list[tuple[Address, Collected]] = [*self._loop.outbox.collect(timeout_s)]
        return [*self._side_reports.take(), *collected]  # before a message that may be this actor's last

    @ray.method(concurrency_group="inbox")
    def look_at(self, process: str) -> ProcessTimes | None:
        """Inspects a process of this host for the driver, which may run on another host."""
        return look_at(process)

    def _send(self, to: Address, message: Message) -> None:
        peer = self._peers.get(to)
        if peer is None:
            log.info("body=%s dropped=%s to=%s reason=not-connected", self._part, type(message).__name__, to)
            return
        peer.deliver.remote(message)
