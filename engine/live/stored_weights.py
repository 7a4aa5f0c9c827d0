"""Weight bytes on their way between actors: a handle on a byte array in Ray's object store.

Invariant: arrays are numpy uint8, which readers on the host map for nothing and read-only; torch tensors would be
copied and pickled, at a hundredth of the speed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from engine.weights.port import WeightManifest, WeightVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBytes:
    ref: Any
    """A ray.ObjectRef; inside of a message it travels as a reference."""


def store_bytes(buffer: memoryview) -> StoredBytes:
    return StoredBytes(ref=ray.put(np.frombuffer(buffer, dtype=np.uint8)))


def map_bytes(payload: object) -> memoryview:
    assert isinstance(payload, StoredBytes), f"weights came as {type(payload).__name__}"
    array: Any = ray.get(payload.ref)
    return memoryview(array)


def map_version(manifest: WeightManifest, payload: object) -> WeightVersion:
    return WeightVersion(manifest=manifest, buffer=map_bytes(payload))
