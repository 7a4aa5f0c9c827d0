"""Bytes in chunks. No torch: relays, which only transfer weights, use this.

Invariant: a buffer matches its manifest exactly, or `TornWeights` is raised.
"""

from collections.abc import Iterator

from engine.process.progress import working
from engine.weights.open_file import OpenFile, map_path

Buffer = bytes | bytearray | memoryview

# Chain broadcast is near its optimum from 1 to 16 MB a chunk over a wide range of links; small models are one chunk.
CHUNK_BYTES = 4 * 2**20
# Work between two reports of progress (engine/process/progress.py).
PIECE_BYTES = 64 * 2**20


class TornWeights(Exception):
    """The bytes do not match their manifest."""

    retryable = True  # by another fetch: the sender still has the whole version

    def __init__(self, message: str = "") -> None:
        super().__init__(message or type(self).__doc__)


class WeightsGone(TornWeights):
    """The weights were dropped in the meantime because a newer version exists: no fault."""


def copy_bytes(source: Buffer, target: memoryview) -> None:
    """Copies in pieces: a single copy of gigabytes would block every other thread of the process."""
    view = memoryview(source)
    for start, end in chunk_spans(len(view), PIECE_BYTES):
        with working("copy"):
            target[start:end] = view[start:end]


def hold_copy(source: Buffer) -> OpenFile:
    """Copies into memory that other processes of the host can map."""
    file = OpenFile.without_name(len(source))
    copy_bytes(source, map_path(file.path, len(source), writable=True))
    return file


def chunk_spans(num_bytes: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each chunk; the last may be short."""
    for start in range(0, num_bytes, chunk_bytes):
        yield start, min(start + chunk_bytes, num_bytes)
