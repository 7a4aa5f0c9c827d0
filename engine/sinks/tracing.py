"""A sink that makes spans from the facts passing through it, and sends them to a collector (LAMINAR_OTLP_URL).

Invariants:
- facts are passed on first, and a lost span loses no fact;
- the run never waits for the collector: spans beyond `MOST_WAITING`, and those that it refuses, are dropped; the log
  warns once, and again only after the collector has accepted spans.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import httpx

from engine.sinks.port import EventSink
from engine.spec.facts import DriverStarted, FactBody, PhaseChanged, PipelineReady, RunFinished, StepTrained
from engine.spec.logs.spans import Of, Span, document

log = logging.getLogger(__name__)

MOST_WAITING: Final = 2_000
AT_ONCE: Final = 500
SEND_EVERY_S: Final = 5.0
TIMEOUT_S: Final = 5.0


class SpanSender:
    def __init__(self, address: str, *, job: str) -> None:
        self._address, self._job = address, job
        self._waiting: deque[Span] = deque(maxlen=MOST_WAITING)
        self._ending = threading.Event()
        self._is_lost = False
        self._thread = threading.Thread(target=self._send_for_ever, name="spans", daemon=True)
        self._thread.start()

    def add(self, span: Span) -> None:
        self._waiting.append(span)

    def close(self) -> None:
        """Sends the waiting spans, within some seconds."""
        self._ending.set()
        self._thread.join(TIMEOUT_S + 1.0)

    def _send_for_ever(self) -> None:
        with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client:
            while not self._ending.wait(SEND_EVERY_S):
                self._send(client)
            self._send(client)

    def _send(self, client: httpx.Client) -> None:
        while self._waiting:
            spans = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
            try:
                client.post(self._address, json=document(self._job, spans, service="laminar-engine")).raise_for_status()
                self._is_lost = False
            except httpx.HTTPError as error:
                if not self._is_lost:
                    log.warning("spans lost=%d error=%s", len(spans), type(error).__name__)
                self._is_lost = True
                return


class TracingSink:
    def __init__(
        self, sink: EventSink, sender: SpanSender, *, attempt: int, fence: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._sink, self._sender, self._clock = sink, sender, clock
        self._driver: Of = ("driver", attempt, fence)
        self._attempt = attempt
        self._began = self._stepped = clock()
        self._phase: tuple[str, float] | None = None
        self._steps = 0

    def record(self, body: FactBody) -> None:
        self._sink.record(body)
        now = self._clock()
        match body:
            case DriverStarted():
                self._began = self._stepped = now
            case PhaseChanged():
                self._end_phase(now)
                self._phase = (body.phase, now)
            case PipelineReady():
                self._stepped = now
                self._add_span("start", began=self._began, ended=now)
            case StepTrained():
                self._on_step(body.step, now)
            case RunFinished():
                self._end_phase(now)
                tags = {"laminar.attempt": self._attempt, "laminar.steps": self._steps, "laminar.outcome": body.outcome}
                is_failure = body.outcome == "failed"
                self._sender.add(
                    Span(
                        name="driver",
                        of=self._driver,
                        began=self._began,
                        ended=now,
                        attributes=tags,
                        is_failure=is_failure,
                    )
                )

    def close(self, timeout_s: float) -> bool:
        return self._sink.close(timeout_s)

    def _on_step(self, step: int, now: float) -> None:
        if not self._steps:
            self._add_span("first step", began=self._began, ended=now, step=step)
        self._steps += 1
        self._add_span("step", began=self._stepped, ended=now, step=step)
        self._stepped = now

    def _end_phase(self, now: float) -> None:
        if self._phase is not None:
            name, began = self._phase
            self._add_span(name, began=began, ended=now)

    def _add_span(self, name: str, *, began: float, ended: float, step: int = 0) -> None:
        tags = {"laminar.attempt": self._attempt} | ({"laminar.step": step} if step else {})
        of = (*self._driver, name, step or f"{began:.6f}")  # a phase may repeat, a step does not
        self._sender.add(Span(name=name, of=of, parent=self._driver, began=began, ended=ended, attributes=tags))
