"""The chain of relays: T = (p + k − 2) · (α + M / (k · B)), with the best number of chunks k = √((p − 2)·M / (α·B)).

p: relays, M: bytes of a version, B: bytes a second of one hop, α: the fixed cost of a chunk.
"""

from math import sqrt
from typing import Final

from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant
from engine.sim.costs.links import HOST_NETWORK, Link
from engine.sim.costs.models import Model

HOP_S: Final = Constant(
    name="hop",
    value=3.5e-3,
    unit="s a chunk",
    origin="fitted",
    source="145.4 GB are with 127 relays in under 1.6 s, so this is its upper bound",
)


def broadcast_s(
    model: Model, *, relays: int, link: Link = HOST_NETWORK, bytes_sent: float | None = None, book: Book = AS_THEY_STAND
) -> float:
    """`bytes_sent`: the size of a delta or an adapter; None: the whole version."""
    if relays < 1:
        return 0.0
    whole_s, hop_s = (bytes_sent or model.weight_bytes) / link.bytes_per_s, book(HOP_S)
    chunks = max(1, round(sqrt(max(0, relays - 2) * whole_s / hop_s)))
    return max(1, relays + chunks - 2) * (hop_s + whole_s / chunks)
