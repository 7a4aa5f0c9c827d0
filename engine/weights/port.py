"""Versioned weights as one flat buffer of bytes, so that whoever carries them needs no torch.

Invariants:
- `sha256` is the hash of the whole buffer, `chunk_sha256[i]` of bytes i·chunk_bytes … (i+1)·chunk_bytes;
- a buffer is never changed after its manifest was made: readers map it for nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    version: int
    num_bytes: int
    chunk_bytes: int
    sha256: str
    chunk_sha256: tuple[str, ...]
    tensors: tuple[TensorEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    manifest: WeightManifest
    buffer: memoryview

    @property
    def version(self) -> int:
        return self.manifest.version
