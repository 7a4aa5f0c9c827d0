"""Messages on a pipe: four bytes of length, then JSON. Both sides of the sandbox use this module."""

import json
import os
import struct
from typing import Final

HEADER: Final = struct.Struct(">I")
MAX_BYTES: Final = 8 << 20


def packed(message: object) -> bytes:
    body = json.dumps(message).encode()
    if len(body) > MAX_BYTES:
        raise ValueError(f"a message of {len(body)} bytes; at most {MAX_BYTES}")
    return HEADER.pack(len(body)) + body


def read_frame(fd: int) -> object:
    """Blocks. Raises `EOFError` when the other side has closed the pipe."""
    (length,) = HEADER.unpack(_read_exactly(fd, HEADER.size))
    return json.loads(_read_exactly(fd, length))


def write_frame(fd: int, message: object) -> None:
    view = memoryview(packed(message))
    while view:
        view = view[os.write(fd, view) :]


def _read_exactly(fd: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.read(fd, length)
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
