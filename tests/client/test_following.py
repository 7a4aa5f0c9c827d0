"""Event streams: read right from any pieces, and gone on with where they broke."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.client.laminar_client.calls.happenings import events, logs
from frontend.client.laminar_client.errors import Conflict, NotAllowed, Unreachable
from frontend.client.laminar_client.sse import SseReader
from frontend.client.laminar_client.wire import Lost
from tests.client.hands import Hands, problem, reply

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
        found += list(reader.feed(b"\n"))  # only now is it sure that no \n belonged to the last \r
    assert [told.id for told in found] == ["1", "1", "2"]
    assert found[1].data == "a\nb"
    assert json.loads(found[0].data)["message"] == "ü\u2028x"
    assert reader.retry_s == 0.05


def test_an_event_that_a_broken_connection_cut_is_not_given() -> None:
    reader = SseReader()
    assert list(reader.feed(frame(1)[:-1])) == []
    assert reader.last_id == "", "going on behind it would lose it"
    assert [told.id for told in reader.feed(frame(1)[-1:])] == ["1"]
    assert reader.last_id == "1"


def test_a_broken_stream_is_gone_on_with_and_no_event_comes_twice() -> None:
    hands = Hands(
        [reply(), Lost("cut"), problem(503), reply(), reply()],
        chunks=[[frame(1), frame(2)[:20]], [frame(1), frame(2), Lost("cut")], [frame(2), frame(3), END]],
    )
    hands.run(events("job_1", follow=True))
    assert [event.seq for event in hands.given] == [1, 2, 3]
    asked = [request.headers["Last-Event-ID"] for request in hands.requests]
    assert asked == ["0", "1", "1", "1", "2"]


def test_a_connection_that_brought_nothing_does_not_forget_the_place() -> None:
    hands = Hands([reply()] * 3, chunks=[[frame(1), Lost("cut")], [Lost("cut")], [frame(2), END]])
    hands.run(events("job_1", follow=True))
    assert [request.headers["Last-Event-ID"] for request in hands.requests] == ["0", "1", "1"]
    assert [event.seq for event in hands.given] == [1, 2]


def test_a_job_that_is_over_and_seen_needs_no_stream() -> None:
    hands = Hands([reply(204, b"")], chunks=[[]])
    hands.run(events("job_1", after=9, follow=True))
    assert hands.given == []


def test_a_key_that_ends_meanwhile_ends_the_stream() -> None:
    hands = Hands([reply()], chunks=[[frame(1), b'event: goodbye\ndata: {"code": "unauthenticated"}\n\n']])
    with pytest.raises(NotAllowed):
        hands.run(events("job_1", follow=True))


def test_forgotten_events_are_told_as_such() -> None:
    hands = Hands([problem(410, "gone")])
    with pytest.raises(Conflict):
        hands.run(events("job_1", follow=True))


def test_a_server_that_never_answers_ends_the_patience() -> None:
    hands = Hands([Lost("nobody there")] * 10)
    with pytest.raises(Unreachable, match="nobody there"):
        hands.run(events("job_1", follow=True))
    assert len(hands.requests) == 4


def _lines(*numbers: int, cursor: int, more: bool = False) -> bytes:
    lines = [
        {"at": EVENT["at"], "attempt": 1, "component": "driver", "level": "info", "message": f"line {number}"}
        for number in numbers
    ]
    page = {"lines": lines, "cursor": cursor, "more": more, "num_dropped": 0, "components": ["driver"]}
    return json.dumps(page).encode()


def _job(state: str) -> bytes:
    texts = ("id", "name", "project", "pool", "phase", "reason", "message", "failure_class", "created_by")
    numbers = ("attempt", "devices", "step", "steps", "priority", "max_runtime_s")
    none = ("queued_at", "started_at", "finished_at", "parent", "start_from")
    document = dict.fromkeys(texts, "x") | dict.fromkeys(numbers, 1) | dict.fromkeys(none, None)
    return json.dumps(
        document | {"state": state, "tags": [], "spec": {}, "created_at": EVENT["at"], "links": {"page": "/"}}
    ).encode()


def test_followed_log_lines_come_once_each_also_those_written_between_two_looks() -> None:
    hands = Hands(
        [
            reply(200, _job("running")),
            reply(200, _lines(3, 4, cursor=7)),  # the newest, from batch 7 on
            reply(200, _lines(3, 4, 5, cursor=9)),  # the same, and one that came since
            reply(200, _job("succeeded")),
            reply(200, _lines(6, cursor=11)),
        ]
    )
    hands.run(logs("job_1", follow=True))
    assert [line.message for line in hands.given] == ["line 3", "line 4", "line 5", "line 6"]
    assert dict(hands.requests[2].query)["after"] == "6"
