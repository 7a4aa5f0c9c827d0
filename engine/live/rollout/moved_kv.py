"""Keys and values of samples on their way from one replica to another.

Invariant: bytes travel as numpy arrays, which Ray carries without copying them into a pickle.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.inference.port import KvPages


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedKv:
    pages: KvPages
    """With its data left out."""
    array: Any
    """A numpy array of bytes."""

    @classmethod
    def of(cls, pages: KvPages) -> "MovedKv":
        return cls(pages=replace(pages, data=b""), array=np.frombuffer(pages.data, dtype=np.uint8))

    def opened(self) -> KvPages:
        return replace(self.pages, data=memoryview(self.array))


KvBySample = dict[int, MovedKv]
