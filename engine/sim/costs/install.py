"""The installation of a version in a replica: each device takes its part from its host's memory.

    seconds = weights / (TP · bytes/s of the host's bus · share) + fixed

The replica decodes nothing meanwhile.
"""

from typing import Final

from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant
from engine.sim.costs.devices import Device
from engine.sim.costs.models import Model

BUS_SHARE: Final = Constant(
    name="bus_share",
    value=0.6,
    unit="of the bus",
    origin="assumed",
    source="copies from pinned memory, all devices of a host at once",
    sweep=(0.5, 1.6),
)
INSTALL_FIXED: Final = Constant(
    name="install_fixed",
    value=0.1,
    unit="s",
    origin="assumed",
    source="a step is ended, pointers are changed, caches of prefixes are dropped",
)


def install_s(
    device: Device, model: Model, *, tp: int, bytes_sent: float | None = None, book: Book = AS_THEY_STAND
) -> float:
    """`bytes_sent`: the size of an adapter; None: the whole version."""
    return (bytes_sent or model.weight_bytes) / (tp * device.host.bytes_per_s * book(BUS_SHARE)) + book(INSTALL_FIXED)
