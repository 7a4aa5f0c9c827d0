"""Adapters of a LoRA job: weights, bytes, and what training them takes of memory.

    weights(r) = r · layers · 19 · d        d = √(params / (12 · layers))

A layer of width d has about 12 · d² weights, and its seven products have inputs and outputs of 19 · d together (four of
attention with 2 · d, three of an MLP of 8/3 · d). For 7B, 32B and 72B that is within 6 % of their public config.json.
"""

from math import sqrt
from typing import Final

from engine.sim.costs.models import BYTES_PER_WEIGHT, Model

PRODUCTS: Final = 7
"""Of a layer: query, key, value, output, gate, up, down."""
_SIDES: Final = 19
_SQUARES: Final = 12


def adapter_weights(model: Model, rank: int) -> float:
    width = sqrt(model.num_weights / (_SQUARES * model.num_layers))
    return rank * model.num_layers * _SIDES * width


def adapter_bytes(model: Model, rank: int) -> float:
    return BYTES_PER_WEIGHT * adapter_weights(model, rank)
