"""Memory of a replica: the room that weights and everything else leave for keys and values.

    tokens = (devices · (memory − reserve) − weights) / bytes of a token

slots.py gives the memory of several versions. A set-up that does not fit has a reason in words.
"""

from dataclasses import dataclass
from typing import Final

from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant
from engine.sim.costs.devices import Device
from engine.sim.costs.models import Model
from engine.sim.costs.slots import Slots

RESERVE: Final = Constant(
    name="reserve",
    value=0.125,
    unit="of a device's memory",
    origin="fitted",
    source="the KV tokens of 7B, 32B and 72B on H800 (0.95M, 0.82M, 1.27M)",
)
"""For activations, graphs of captured steps, the allocator, the communicator."""


@dataclass(frozen=True, slots=True)
class Room:
    kv_tokens: int
    why_not: str = ""
    """Why it does not fit; empty: it does."""


def room_for_kv(
    device: Device, model: Model, *, tp: int, slots: Slots, at_least_tokens: int, book: Book = AS_THEY_STAND
) -> Room:
    """`at_least_tokens`: the longest sequence, which must fit whole in the room that older versions leave."""
    usable = tp * device.memory_bytes * (1 - book(RESERVE))
    left = usable - slots.weight_bytes(model)
    tokens = int(left / model.kv_bytes)
    if tokens >= at_least_tokens + slots.room_bytes(model, book=book) / model.kv_bytes:
        return Room(tokens)
    needed = f"{at_least_tokens:,} tokens of {model.kv_bytes:,.0f} bytes"
    return Room(0, f"{slots.describe(model)} and {needed} do not fit in {usable / 1e9:.1f} GB of {tp} x {device.name}")
