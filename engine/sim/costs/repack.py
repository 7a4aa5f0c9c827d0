"""A move of sequences to another replica: their keys and values over the network of the devices that hold them.

    seconds = tokens · kv / (TP · bytes/s · share) + fixed

Neither the source nor the host decodes the moving sequences meanwhile.
"""

from typing import Final

from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant
from engine.sim.costs.devices import Device
from engine.sim.costs.models import Model

LINK_SHARE: Final = Constant(
    name="link_share",
    value=0.8,
    unit="of the link",
    origin="assumed",
    source="large messages over RDMA",
    sweep=(0.5, 1.2),
)
MOVE_FIXED: Final = Constant(
    name="move_fixed",
    value=0.17,
    unit="s",
    origin="fitted",
    source="a repack costs 0.69 s in all; assumed to be for the 40 tails of 8K tokens of a 32B model given with it",
)


def move_s(device: Device, model: Model, *, tp: int, tokens: float, book: Book = AS_THEY_STAND) -> float:
    rate = tp * device.far.bytes_per_s * book(LINK_SHARE)
    return tokens * model.kv_bytes / rate + book(MOVE_FIXED)
