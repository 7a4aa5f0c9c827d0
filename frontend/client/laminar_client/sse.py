"""An incremental parser of Server-Sent Events (WHATWG HTML, section 9.2), without network.

Invariant: an event is yielded, and its id stored, only when it is complete. Partial events of a broken connection are
dropped, so resuming after `last_id` misses nothing.
"""

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LONGEST_LINE = 8 * 1024 * 1024  # far above any real event: a stream without line ends must not fill the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSent:
    event: str
    data: str
    id: str

    def document(self) -> Any:
        return json.loads(self.data)


class TooLong(ValueError):
    """A line exceeds the maximum length."""


class SseReader:
    """`feed` takes received bytes and yields the completed events. `last_id` and `retry_s` are the stream's."""

    def __init__(self) -> None:
        self.last_id = ""
        self.retry_s: float | None = None
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._event, self._data, self._id = "", list[str](), ""

    def feed(self, chunk: bytes) -> Iterator[ServerSent]:
        text = self._rest + self._decode.decode(chunk)
        held = "\r" if text.endswith("\r") else ""  # its \n may be in the next chunk
        lines = text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = lines.pop() + held
        if len(self._rest) > LONGEST_LINE:
            raise TooLong("a line of the event stream is too long")
        for line in lines:
            if found := self._line(line):
                yield found

    def _line(self, line: str) -> ServerSent | None:
        if not line:
            return self._complete()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isdecimal():
            self.retry_s = int(value) / 1_000
        return None

    def _complete(self) -> ServerSent | None:
        event, data = self._event, self._data
        self._event, self._data = "", []
        self.last_id = self._id or self.last_id
        if not data:
            return None
        return ServerSent(event=event or "message", data="\n".join(data), id=self.last_id)
