"""An event stream that survives lost connections: it reconnects with Last-Event-ID and resumes.

Invariants:
- `is_new` filters every received event, so an event that is sent twice is yielded once;
- a permanent error ends the stream with that error; a lost connection is retried a few times, and many more times
  once the stream has worked.
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, TypeVar

from ..decoding import read
from ..errors import LaminarError, NotAllowed, Unreachable
from ..retrying import may_repeat
from ..sse import SseReader
from ..wire import EVENT_STREAM, Effect, Emit, Lost, Open, Pause, ReadChunk, Reply, Request, Stream

T = TypeVar("T")
RECONNECT_S = 2.0  # until the stream sets its own
LONGEST_RECONNECT_S = 15.0
FIRST_TRIES, LATER_TRIES = 4, 40  # later tries span about ten minutes, longer than a server update


def followed(kind: type[T], request: Request, *, last_id: str, is_new: Callable[[T], bool]) -> Stream[T]:
    reader, failures, most = _reader(last_id), 0, FIRST_TRIES
    retry_s, cause = RECONNECT_S, LaminarError("the event stream ended")
    while True:
        try:
            reply: Reply = yield Open(_from(request, reader.last_id))
            if reply.status == 204:
                return
            if reply.is_good:
                failures, most, reader = 0, LATER_TRIES, _reader(reader.last_id)
                is_over = yield from _read_on(kind, reader, is_new)
                if is_over:
                    return
            else:
                refused = reply.error()
                if not may_repeat(request, refused):
                    raise refused
                cause = refused
        except Lost as lost:
            cause = Unreachable(str(lost))
        failures += 1
        if failures >= most:
            raise cause
        retry_s = reader.retry_s or retry_s
        yield Pause(min(LONGEST_RECONNECT_S, retry_s * 2 ** (failures - 1)))


def _read_on(kind: type[T], reader: SseReader, is_new: Callable[[T], bool]) -> Generator[Effect | Emit[T], Any, bool]:
    """-> whether the stream ended regularly."""
    while chunk := (yield ReadChunk()):
        for frame in reader.feed(chunk):
            if frame.event == "end":
                return True
            if frame.event == "goodbye":
                raise NotAllowed(401, {"code": "unauthenticated", "detail": "The key is no longer valid."})
            event = read(kind, frame.document())
            if is_new(event):
                yield Emit(event)
    return False


def _reader(last_id: str) -> SseReader:
    reader = SseReader()
    reader.last_id = last_id
    return reader


def _from(request: Request, last_id: str) -> Request:
    headers = {**request.headers, "Accept": EVENT_STREAM}
    return replace(request, headers=headers | {"Last-Event-ID": last_id} if last_id else headers)
