"""An environment worker's actor: answers the turns of every replica, in a process of its own.

Graders and tools do not compete with decoding for the interpreter's lock, and an answer follows a trajectory that moves
to another replica meanwhile.

Invariants:
- the worker's death loses nothing: replicas repeat their requests;
- a thread of the worker that ends is reported to the driver: polls alone would still be answered.
"""

import logging
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final

import ray

from engine.environments.port import GraderError
from engine.live.assets.job_assets import JobAssets
from engine.live.body.actor import Collected, SideReports
from engine.live.body.handed import Handed
from engine.live.body.loop import BodyFailed, Outbox
from engine.live.environment.turn_threads import TurnThreads
from engine.live.environment.turns import Answer, Ask
from engine.live.process.core_waits import ProcessTimes, look_at
from engine.live.process.memory import is_out_of_memory
from engine.live.process.settings import log_form
from engine.pipeline.messages.addresses import DRIVER, Address, environment_address
from engine.sinks.lines import LineKeeper
from engine.spec.causes import PlatformCause
from engine.spec.facts import FailureClass
from engine.spec.job import JobSpec
from engine.spec.logs.log_text import log_to

log = logging.getLogger(__name__)

GATHER: Final = 256  # answers that go out together
# A message costs more than the answers in it: after each message, answers gather for this long.
GATHER_S: Final = 0.01


class EnvironmentActor:
    def __init__(
        self, *, spec: JobSpec, worker: int, data_folder: Path | None, assets: JobAssets | None = None
    ) -> None:
        log_to(fmt="%(levelname)s %(message)s", form=log_form())
        self._part = str(environment_address(worker))
        lines = LineKeeper(self._part)
        self._side_reports = SideReports(lines)
        logging.getLogger().addHandler(lines)
        log.info("part=%s host=%s pid=%d", self._part, socket.gethostname(), os.getpid())
        self._spec, self._data_folder, self._assets = spec, data_folder, assets
        self._peers: dict[Address, Any] = {}
        self._outbox, self._handed = Outbox(), Handed[tuple[Address, Collected]]()
        self._answers: SimpleQueue[tuple[Address, Answer]] = SimpleQueue()
        self._asks: SimpleQueue[Sequence[Ask]] = SimpleQueue()
        for name, loop in ((self._part, self._run), ("answers", self._send)):
            Thread(target=self._until_it_fails, args=(loop,), name=name, daemon=True).start()

    @staticmethod
    def options(spec: JobSpec) -> dict[str, Any]:
        return {}

    @ray.method(concurrency_group="inbox", num_returns=0)
    def connect(self, peers: dict[Address, Any]) -> None:
        self._peers = {**self._peers, **peers}

    @ray.method(concurrency_group="inbox", num_returns=0)
    def ask(self, asks: Sequence[Ask]) -> None:
        self._asks.put(asks)

    @ray.method(concurrency_group="outbox")
    def collect(self, timeout_s: float, got: int) -> tuple[int, list[tuple[Address, Collected]]]:
        return self._handed.after(got, lambda: self._collect(timeout_s))

    def _collect(self, timeout_s: float) -> list[tuple[Address, Collected]]:
        collected: list[tuple[Address, Collected]] = [*self._outbox.collect(timeout_s)]
        return [*self._side_reports.take(), *collected]

    @ray.method(concurrency_group="inbox")
    def look_at(self, process: str) -> ProcessTimes | None:
        """Inspects a process of this host for the driver, which may run on another host."""
        return look_at(process)

    def _until_it_fails(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            log.exception("the environment has stopped")
            self._fail("memory" if is_out_of_memory(error) else "platform", f"{self._part}: {error!r}")

    def _fail(self, failure_class: FailureClass, message: str) -> None:
        cause = PlatformCause.NO_SANDBOX if failure_class == "infrastructure" else None
        self._outbox.put(DRIVER, BodyFailed(failure_class=failure_class, message=message, cause=cause))

    def _run(self) -> None:
        # Heavy imports run on this thread, not earlier.
        from engine.environments.registry import make_environment
        from engine.environments.sandbox.capacity import share_host
        from engine.environments.sandbox.outcome import SandboxUnavailable

        spec = self._spec
        share_host(spec.environment.workers)
        if self._assets is not None:
            self._assets.ensure("data")
        try:
            environment = make_environment(spec.environment, seed=spec.training.seed, data_folder=self._data_folder)
        except SandboxUnavailable as error:  # a ValueError, as are the spec's own faults
            self._fail("infrastructure", str(error))
            return
        except GraderError as error:
            self._fail(error.blame, str(error))
            return
        except ValueError as error:  # the spec requires something that this machine lacks
            self._fail("config", str(error))
            return
        threads = TurnThreads(
            environment,
            timeout_s=spec.environment.turn_timeout_s,
            answer=lambda to, answer: self._answers.put((to, answer)),
        )
        while True:
            for ask in self._asks.get():
                threads.ask(ask)

    def _send(self) -> None:
        sent_at = float("-inf")
        while True:
            answers: defaultdict[Address, list[Answer]] = defaultdict(list)
            to, answer = self._answers.get()
            answers[to].append(answer)
            time.sleep(max(0.0, sent_at + GATHER_S - time.monotonic()))
            try:
                for _ in range(GATHER - 1):
                    to, answer = self._answers.get_nowait()
                    answers[to].append(answer)
            except Empty:
                pass
            for address, batch in answers.items():
                if address in self._peers:
                    self._peers[address].answer.remote(batch)
            sent_at = time.monotonic()
