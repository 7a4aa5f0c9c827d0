"""Bytes in chunks. No torch: a relay that only carries weights uses this.

Invariant: a buffer is either exactly what its manifest says or `TornWeights` is raised.
"""

from collections.abc import Iterator

from engine.signs import at_work
from engine.weights.open_file import OpenFile, map_path

Buffer = bytes | bytearray | memoryview

# Chain broadcast is near its best from 1 to 16 MB a chunk over a wide range of links; small models are one chunk.
CHUNK_BYTES = 4 * 2**20
# Of what is done in one go between two signs of life.
PIECE_BYTES = 64 * 2**20


class TornWeights(Exception):
    """The bytes are not those of their manifest."""

    retryable = True  # fetch again: the sender still has the whole version

    def __init__(self, message: str = "") -> None:
        super().__init__(message or type(self).__doc__)


class WeightsGone(TornWeights):
    """They were dropped meanwhile, because a newer version is there: no fault of anybody's."""


def copy_bytes(source: Buffer, target: memoryview) -> None:
    """Piece by piece: one copy of gigabytes would hold up every other thread of the process."""
    view = memoryview(source)
    for start, end in chunk_spans(len(view), PIECE_BYTES):
        with at_work("copy"):
            target[start:end] = view[start:end]


def hold_copy(source: Buffer) -> OpenFile:
    """In memory that other processes of the host can have."""
    file = OpenFile.without_name(len(source))
    copy_bytes(source, map_path(file.path, len(source), writable=True))
    return file


def chunk_spans(num_bytes: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each chunk; the last may be short."""
    for start in range(0, num_bytes, chunk_bytes):
        yield start, min(start + chunk_bytes, num_bytes)
