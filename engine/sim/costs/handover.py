"""The hand-over of a version: the trainer pauses while its weights are copied to its host's memory.

    seconds = weights / rate

The rate is the master host's, so that the stall depends neither on the relays nor on the devices.
"""

from typing import Final

from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant
from engine.sim.costs.models import Model

HANDOVER_RATE: Final = Constant(
    name="handover_rate",
    value=103.1e9,
    unit="bytes/s",
    origin="fitted",
    source="a stall of 0.64 s for 65.5 GB and of 1.40 s for 145.4 GB",
)


def handover_s(model: Model, *, bytes_sent: float | None = None, book: Book = AS_THEY_STAND) -> float:
    """`bytes_sent`: the size of an adapter; None: the whole version."""
    return (bytes_sent or model.weight_bytes) / book(HANDOVER_RATE)
