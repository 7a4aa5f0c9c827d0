"""The shipper against a real HTTP server that refuses, drops connections, loses facts and recovers."""

import json
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine.sinks import http_shipper
from engine.sinks.control_plane import ControlPlane, Refused, StaleFence
from engine.sinks.http_shipper import HttpSink, retry_delay_s
from engine.sinks.spool import Spool
from engine.spec.causes import PlatformCause
from engine.spec.control import ControlRequest, FactBatch, Heartbeat
from engine.spec.fact_segments import first_seqs, segment_name
from engine.spec.facts import (
    FACT_NAMES,
    LogLines,
    PhaseChanged,
    RunFinished,
    StepTrained,
    TrajectoriesSampled,
    TrajectorySample,
    UnknownFact,
)
from engine.spec.vocabulary import digest_of
from tests.waiting import GIVES_UP_AFTER_S, eventually

Answer = tuple[int, dict[str, Any]]


class FakeControlPlane:
    """Stores facts like the real one; `trouble` may respond first."""

    def __init__(self) -> None:
        self.facts: list[int] = []
        self.batches: list[FactBatch] = []
        self.beats: list[Heartbeat] = []
        self.tokens: set[str | None] = set()
        self.requests: list[dict[str, str]] = []
        self.names: frozenset[str] | None = None
        """None: it announces no vocabulary."""
        self.trouble: Callable[[str], Answer | None] = lambda path: None
        self.cuts = 0
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.server.serve_forever, args=[0.02], daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, path: str, body: bytes) -> Answer:
        troubled = self.trouble(path)
        if troubled is not None:
            return troubled
        if path.endswith("/heartbeat"):
            self.beats.append(Heartbeat.model_validate_json(body))
            return 200, {"requests": self.requests}
        batch = FactBatch.model_validate_json(body)
        if batch.facts[0].seq > len(self.facts) + 1:
            return 409, problem(409, "gap", acked=len(self.facts))
        self.batches.append(batch)
        if self.names is not None and any(fact.body.type not in {"unknown", *self.names} for fact in batch.facts):
            return 422, problem(422, "not_understood")
        self.facts += [fact.seq for fact in batch.facts if fact.seq > len(self.facts)]
        digest = {} if self.names is None else {"vocabulary": digest_of(self.names)}
        return 200, {"acked": len(self.facts)} | digest

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                assert self.path.endswith("/vocabulary")
                if fake.names is None:
                    self._answer(404, problem(404, "not_found"))
                else:
                    self._answer(200, {"names": sorted(fake.names)})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                fake.tokens.add(self.headers["Authorization"])
                status, answer = fake.answer(self.path, body)
                if fake.cuts > 0:  # the facts are stored, the response is lost
                    fake.cuts -= 1
                    self.connection.close()
                    return
                self._answer(status, answer)

            def _answer(self, status: int, answer: dict[str, Any]) -> None:
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments: object) -> None:
                pass

        return Handler


def problem(status: int, code: str, **more: object) -> dict[str, Any]:
    return {"type": "about:blank", "title": code, "status": status, "detail": code, "code": code, "errors": [], **more}


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeControlPlane]:
    monkeypatch.setattr(http_shipper, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(http_shipper, "LAST_RETRY_S", 0.05)
    monkeypatch.setattr(http_shipper, "HEARTBEAT_EVERY_S", 0.05)
    fake = FakeControlPlane()
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


@pytest.fixture
def sink(control: FakeControlPlane, tmp_path: Path) -> Iterator[HttpSink]:
    client = ControlPlane(control.url + "/", "secret-token")
    made = HttpSink(spool=Spool(tmp_path / "facts"), control=client, attempt=1, fence=3)
    yield made
    made.close(timeout_s=0)
    client.close()


def step(number: int) -> StepTrained:
    return StepTrained(step=number, metrics={"reward/mean": 0.5})


def what_ended(sink: HttpSink) -> Exception:
    def error() -> Exception | None:
        try:
            sink.requests()
        except (StaleFence, Refused) as error:
            return error
        return None

    ended_by = eventually(error, "the sink reports why it ended")
    assert ended_by is not None
    return ended_by


def test_facts_arrive_in_order_with_the_token_and_the_fence(control: FakeControlPlane, sink: HttpSink) -> None:
    sink.start(step=lambda: 7, turns=lambda: 40)
    for number in range(1, 31):
        sink.record(step(number))
    assert sink.close(timeout_s=60)
    assert control.facts == list(range(1, 31))
    assert control.tokens == {"Bearer secret-token"}
    assert {(batch.attempt, batch.fence) for batch in control.batches} == {(1, 3)}
    assert (control.beats[0].step, control.beats[0].turns) == (7, 40)


def test_a_control_plane_that_is_down_costs_no_fact(control: FakeControlPlane, sink: HttpSink) -> None:
    left = iter(range(8))
    control.trouble = lambda path: (503, {}) if next(left, None) is not None else None
    sink.start(step=lambda: 0)
    for number in range(1, 6):
        sink.record(step(number))
    assert sink.close(timeout_s=60)
    assert control.facts == [1, 2, 3, 4, 5]


def test_a_lost_answer_stores_nothing_twice(control: FakeControlPlane, sink: HttpSink) -> None:
    control.cuts = 3
    sink.start(step=lambda: 0)
    sink.record(step(1))
    sink.record(step(2))
    assert sink.close(timeout_s=60)
    assert control.facts == [1, 2]


def test_after_a_gap_it_sends_again_from_there(control: FakeControlPlane, sink: HttpSink) -> None:
    sink.start(step=lambda: 0)
    for number in range(1, 6):
        sink.record(step(number))
    eventually(lambda: len(control.facts), "five facts are stored", until=lambda number: number == 5)
    del control.facts[2:]  # a database restored from a backup
    sink.record(step(6))
    assert sink.close(timeout_s=60)
    assert control.facts == [1, 2, 3, 4, 5, 6]


def test_unreadable_response_is_retried(control: FakeControlPlane, sink: HttpSink) -> None:
    nonsense = iter([(200, {"acked": "all of them"}), (200, {}), (302, {}), (409, {"code": "other"})])
    control.trouble = lambda path: next(nonsense, None) if path.endswith("/facts") else None
    sink.start(step=lambda: 0)
    sink.record(step(1))
    assert sink.close(timeout_s=60)
    assert control.facts == [1]


@pytest.mark.parametrize("status", [301, 302, 308])
def test_redirect_is_logged_as_a_wrong_control_url(
    control: FakeControlPlane, sink: HttpSink, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    redirects: Iterator[tuple[int, dict[str, str]]] = iter([(status, {})])
    control.trouble = lambda path: next(redirects, None) if path.endswith("/facts") else None
    sink.start(step=lambda: 0)
    sink.record(step(1))
    assert sink.close(timeout_s=60)
    assert f"{status}, a redirect" in caplog.text
    assert f"LAMINAR_CONTROL_URL must be an address without a redirect, got {control.url}" in caplog.text


@pytest.mark.parametrize("path", ["/facts", "/heartbeat"])
def test_a_stale_fence_ends_shipping_and_tells_the_driver(control: FakeControlPlane, sink: HttpSink, path: str) -> None:
    control.trouble = lambda called: (409, problem(409, "stale_fence")) if called.endswith(path) else None
    sink.record(step(1))
    sink.start(step=lambda: 0)
    assert isinstance(what_ended(sink), StaleFence)
    sink.close(timeout_s=3_600)  # longer than a test may last: a fenced driver does not wait for delivery


@pytest.mark.parametrize("status", [413, 422])
def test_fact_refused_for_good_is_reported_not_dropped(
    control: FakeControlPlane, sink: HttpSink, status: int, tmp_path: Path
) -> None:
    control.trouble = lambda called: (status, problem(status, "no")) if called.endswith("/facts") else None
    sink.start(step=lambda: 0)
    sink.record(step(1))
    error = what_ended(sink)
    assert isinstance(error, Refused) and str(error).startswith("facts from 1 on:") and str(status) in str(error)
    assert not sink.close(timeout_s=60)
    assert (tmp_path / "facts" / segment_name(1)).read_text().count("\n") == 1


def test_driver_that_starts_again_sends_what_is_missing(control: FakeControlPlane, tmp_path: Path) -> None:
    before = Spool(tmp_path / "facts", segment_bytes=100)
    for number in range(1, 10):
        before.append(step(number))
    before.close()
    control.facts = [1, 2, 3]
    sink = HttpSink(spool=Spool(tmp_path / "facts"), control=ControlPlane(control.url, "t"), attempt=1, fence=3)
    sink.start(step=lambda: 0)
    assert sink.close(timeout_s=60)
    assert control.facts == [*range(1, 10)]


def test_stored_facts_are_discarded_and_a_restored_database_fed(control: FakeControlPlane, tmp_path: Path) -> None:
    """Of two backups one is recent enough."""
    spool = Spool(tmp_path / "facts", segment_bytes=100, kept_bytes=1_000)
    sink = HttpSink(spool=spool, control=ControlPlane(control.url, "t"), attempt=1, fence=3)
    sink.start(step=lambda: 0)
    for number in range(1, 101):
        sink.record(step(number))
    eventually(
        lambda: first_seqs(tmp_path / "facts")[0], "the first 80 facts are discarded", until=lambda first: first > 80
    )
    del control.facts[95:]
    sink.record(step(101))
    eventually(lambda: len(control.facts), "101 facts are stored", until=lambda number: number == 101)
    del control.facts[10:]
    sink.record(step(102))
    error = what_ended(sink)
    assert isinstance(error, Refused) and "fact 11 is not kept" in str(error) and "older backup" in str(error)
    assert not sink.close(timeout_s=60) and len(control.facts) == 10


def test_request_repeated_by_heartbeats_is_passed_on_once(control: FakeControlPlane, sink: HttpSink) -> None:
    control.requests = [{"id": "r1", "kind": "cancel"}]
    sink.start(step=lambda: 0)
    eventually(lambda: len(control.beats), "three heartbeats arrive", until=lambda number: number >= 3)
    assert sink.requests() == [ControlRequest(id="r1", kind="cancel")]
    assert sink.requests() == []


def test_large_facts_travel_in_several_batches(control: FakeControlPlane, sink: HttpSink) -> None:
    sample = TrajectorySample(
        prompt_ordinal=0, sample=0, version=0, staleness=0, num_tokens=1, reward=0, advantage=0,
        prompt="p" * 90_000, response="r" * 90_000,
    )  # fmt: skip
    for number in range(1, 7):
        sink.record(TrajectoriesSampled(step=number, trajectories=[sample]))
    sink.start(step=lambda: 0)
    assert sink.close(timeout_s=60)
    assert control.facts == [1, 2, 3, 4, 5, 6]
    assert len(control.batches) >= 3


# ── a control plane of an earlier release ─────────────────────────────────────────────────────────────────────────────

EARLIER = FACT_NAMES - {"phase_changed"}


def test_driver_sends_only_what_is_announced(
    control: FakeControlPlane, sink: HttpSink, caplog: pytest.LogCaptureFixture
) -> None:
    """A kind and a field that it does not know: each fact keeps its number, the rest of it arrives."""
    control.names = FACT_NAMES - {"phase_changed", "log_lines.num_dropped"}
    for phase in ("loading_weights", "training"):
        sink.record(PhaseChanged(phase=phase))
    sink.record(LogLines(component="driver", lines=[], num_dropped=3))
    sink.record(RunFinished(outcome="succeeded", ledger={"trained": 4}))
    sink.start(step=lambda: 0)
    assert sink.close(timeout_s=60)
    sent = [fact for batch in control.batches for fact in batch.facts]
    assert [fact.seq for fact in sent] == [1, 2, 3, 4], "each once"
    assert [fact.body for fact in sent] == [
        UnknownFact(kind="phase_changed"),
        UnknownFact(kind="phase_changed"),
        LogLines(component="driver", lines=[]),
        RunFinished(outcome="succeeded", ledger={"trained": 4}),
    ]
    assert caplog.text.count("name=phase_changed") == 1, "logged once"


def test_change_of_the_control_planes_release_is_noticed(control: FakeControlPlane, sink: HttpSink) -> None:
    """Upgraded, it gets more; taken back, it refuses once and gets less."""
    control.names = FACT_NAMES
    sink.start(step=lambda: 0)
    releases: list[frozenset[str]] = [FACT_NAMES, EARLIER, FACT_NAMES]
    for number, names in enumerate(releases, start=1):
        control.names = names
        for body in (step(number), PhaseChanged(phase="training")):
            sink.record(body)
            eventually(lambda: sink.num_waiting, "it is stored", until=lambda waiting: waiting == 0)
    assert sink.close(timeout_s=60)
    assert control.facts == [*range(1, 7)]
    last = {fact.seq: fact for batch in control.batches for fact in batch.facts}
    assert [last[seq].body.type for seq in (2, 4, 6)] == ["phase_changed", "unknown", "phase_changed"]


def test_fact_that_decides_the_ledger_is_not_sent_in_part(control: FakeControlPlane, sink: HttpSink) -> None:
    control.names = FACT_NAMES - {"run_finished.cause"}
    sink.record(step(1))
    sink.start(step=lambda: 0)
    eventually(lambda: control.facts, "the step is stored", until=lambda facts: facts == [1])
    sink.record(
        RunFinished(outcome="failed", failure_class="infrastructure", cause=PlatformCause.NODE_LOST, ledger={"open": 4})
    )
    error = what_ended(sink)
    assert isinstance(error, Refused) and "does not know run_finished.cause; upgrade the control plane" in str(error)
    assert control.facts == [1]


def test_recording_does_not_wait_for_the_network(control: FakeControlPlane, sink: HttpSink) -> None:
    may_answer = threading.Event()
    control.trouble = lambda path: None if may_answer.wait(GIVES_UP_AFTER_S) else (500, problem(500, "late"))
    sink.start(step=lambda: 0)
    for number in range(1, 21):
        sink.record(step(number))
    assert control.facts == [], "no response has come yet"
    may_answer.set()
    assert sink.close(timeout_s=60)
    assert control.facts == [*range(1, 21)]


def test_the_wait_between_tries_grows_to_a_bound_with_jitter() -> None:
    chance = random.Random(0)
    waits = [retry_delay_s(failures, chance) for failures in range(1_000)]
    assert waits[0] <= 0.2 and min(waits[10:]) >= 2.5 and max(waits) <= 5.0
    assert len(set(waits[10:])) > 100
