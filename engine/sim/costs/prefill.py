"""Prefill: 2 · params · tokens / (flops · TP · share). Decoding waits for it."""

from typing import Final

from engine.sim.costs.constants import AS_THEY_STAND, Book, Constant
from engine.sim.costs.devices import Device
from engine.sim.costs.models import Model

PREFILL_SHARE: Final = Constant(
    name="prefill_share",
    value=0.5,
    unit="of the flops",
    origin="given",
    source="half of peak; a re-prefill of all that runs on 7B, 32B and 72B comes to 29, 27 and 47 s",
)


def prefill_token_s(device: Device, model: Model, *, tp: int, book: Book = AS_THEY_STAND) -> float:
    return 2 * model.num_weights / (device.flops * tp * book(PREFILL_SHARE))
