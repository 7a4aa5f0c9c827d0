"""Models, as far as costs go: weights, keys and values, layers. The bytes are what the Laminar paper's set-up
comes to; layers are the models' public config.json."""

from dataclasses import dataclass
from typing import Final

BYTES_PER_WEIGHT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    name: str
    weight_bytes: float
    kv_bytes: float
    """Of a token."""
    num_layers: int
    tensor_parallel: int
    """Devices of 80 GB that one replica spans."""

    @property
    def num_weights(self) -> float:
        return self.weight_bytes / BYTES_PER_WEIGHT


_ALL: Final = (
    Model(name="7B", weight_bytes=15.2e9, kv_bytes=57_344, num_layers=28, tensor_parallel=1),
    Model(name="32B", weight_bytes=65.6e9, kv_bytes=262_144, num_layers=64, tensor_parallel=4),
    Model(name="72B", weight_bytes=145.4e9, kv_bytes=327_680, num_layers=80, tensor_parallel=8),
)
MODELS: Final = {model.name: model for model in _ALL}
