"""Event streams: parsed from arbitrary chunks, and resumed after a lost connection."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.client.laminar_client.calls.telemetry import events, logs
from frontend.client.laminar_client.errors import Conflict, NotAllowed, Unreachable
from frontend.client.laminar_client.sse import SseReader
from frontend.client.laminar_client.wire import Lost
from tests.frontend.client.scripted_wire import ScriptedWire, problem, reply

EVENT = {"at": "2026-01-05T12:00:00Z", "type": "state_changed", "actor": "", "from_state": "", "to_state": "",
         "reason": "", "message": "ü\u2028x", "data": {}}  # fmt: skip


def frame(seq: int) -> bytes:
    return f"id: {seq}\nevent: state_changed\ndata: {json.dumps(EVENT | {'seq': seq}, ensure_ascii=False)}\n\n".encode()


END = b'event: end\ndata: {"state": "succeeded"}\n\n'


@given(
    cuts=st.lists(st.integers(0, 400), max_size=12),
    ends=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_events_are_the_same_however_the_bytes_are_cut(cuts: list[int], ends: str) -> None:
    text = b": hello\nretry: 50\n\n" + frame(1) + b"data: a\ndata: b\n\n" + frame(2)
    whole = text.replace(b"\n", ends.encode())
    places = [0, *sorted(cuts), len(whole)]
    reader = SseReader()
    found = [told for start, stop in itertools.pairwise(places) for told in reader.feed(whole[start:stop])]
    if ends == "\r":
        found += list(reader.feed(b"\n"))  # only now is it clear that no \n followed the last \r
    assert [told.id for told in found] == ["1", "1", "2"]
    assert found[1].data == "a\nb"
    assert json.loads(found[0].data)["message"] == "ü\u2028x"
    assert reader.retry_s == 0.05


def test_an_event_that_a_broken_connection_cut_is_not_given() -> None:
    reader = SseReader()
    assert list(reader.feed(frame(1)[:-1])) == []
    assert reader.last_id == "", "resuming after it would lose it"
    assert [told.id for told in reader.feed(frame(1)[-1:])] == ["1"]
    assert reader.last_id == "1"


def test_broken_stream_resumes_without_repeated_events() -> None:
    scripted = ScriptedWire(
        [reply(), Lost("cut"), problem(503), reply(), reply()],
        chunks=[[frame(1), frame(2)[:20]], [frame(1), frame(2), Lost("cut")], [frame(2), frame(3), END]],
    )
    scripted.run(events("job_1", follow=True))
    assert [event.seq for event in scripted.given] == [1, 2, 3]
    asked = [request.headers["Last-Event-ID"] for request in scripted.requests]
    assert asked == ["0", "1", "1", "1", "2"]


def test_empty_connection_keeps_the_stream_position() -> None:
    scripted = ScriptedWire([reply()] * 3, chunks=[[frame(1), Lost("cut")], [Lost("cut")], [frame(2), END]])
    scripted.run(events("job_1", follow=True))
    assert [request.headers["Last-Event-ID"] for request in scripted.requests] == ["0", "1", "1"]
    assert [event.seq for event in scripted.given] == [1, 2]


def test_a_job_that_is_over_and_seen_needs_no_stream() -> None:
    scripted = ScriptedWire([reply(204, b"")], chunks=[[]])
    scripted.run(events("job_1", after=9, follow=True))
    assert scripted.given == []


def test_a_key_that_ends_meanwhile_ends_the_stream() -> None:
    scripted = ScriptedWire([reply()], chunks=[[frame(1), b'event: goodbye\ndata: {"code": "unauthenticated"}\n\n']])
    with pytest.raises(NotAllowed):
        scripted.run(events("job_1", follow=True))


def test_forgotten_events_are_told_as_such() -> None:
    scripted = ScriptedWire([problem(410, "gone")])
    with pytest.raises(Conflict):
        scripted.run(events("job_1", follow=True))


def test_a_server_that_never_answers_ends_the_patience() -> None:
    scripted = ScriptedWire([Lost("nobody there")] * 10)
    with pytest.raises(Unreachable, match="nobody there"):
        scripted.run(events("job_1", follow=True))
    assert len(scripted.requests) == 4


def line(place: str, message: str, event: str = "line") -> bytes:
    said = {"at": EVENT["at"], "attempt": 1, "component": "driver", "level": "info", "message": message}
    return f"id: {place}\nevent: {event}\ndata: {json.dumps(said)}\n\n".encode()


def test_followed_log_lines_go_on_behind_the_last_whole_one() -> None:
    """The server sets the position, also within a batch of lines; an id without data counts, too."""
    scripted = ScriptedWire(
        [reply(), reply(), Lost("cut"), reply()],
        chunks=[
            [line("7.1", "a"), line("7.2", "b")[:-1], Lost("cut")],
            [line("7.2", "b"), b"id: 9\n\n", line("11.0", "3 lines were left out", "dropped"), Lost("cut")],
            [line("11", "c"), END],
        ],
    )
    scripted.run(logs("job_1", level="info", tail=5, follow=True))
    assert [each.message for each in scripted.given] == ["a", "b", "3 lines were left out", "c"]
    assert [request.headers.get("Last-Event-ID") for request in scripted.requests] == [None, "7.1", "11.0", "11.0"]
    assert {dict(request.query)["level"] for request in scripted.requests} == {"info"}
