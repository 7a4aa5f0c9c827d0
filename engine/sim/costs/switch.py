"""A switch of colocated devices between training and generation: the state of one moves to the host's memory, that of
the other comes back, and the weights are resharded.

    seconds = (state of training + weights a replica) / device / (bytes/s of the bus · share), there and back
"""

from typing import Final

from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant
from engine.sim.costs.devices import Device
from engine.sim.costs.install import BUS_SHARE
from engine.sim.costs.models import Model
from engine.sim.costs.training import state_bytes

RESHARD_SHARE: Final = Constant(
    name="reshard_share",
    value=0.5,
    unit="of a device's network",
    origin="assumed",
    source="an all-gather of every weight into each replica's layout",
)


def switch_s(
    device: Device, model: Model, *, devices: int, tp: int, lora_rank: int = 0, book: Book = AS_THEY_STAND
) -> float:
    """The time of a step's two switches: to generation, and back to training."""
    bus = device.host.bytes_per_s * book(BUS_SHARE)
    state_s = state_bytes(model, lora_rank=lora_rank) / devices / bus
    reshard_s = model.weight_bytes / tp / (device.far.bytes_per_s * book(RESHARD_SHARE))
    return 2 * state_s + reshard_s
