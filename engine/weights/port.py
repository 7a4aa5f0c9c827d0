"""Versioned weights as one flat buffer of bytes, so that their transfer needs no torch.

Invariants:
- `chunk_hashes[i]` is the hash of bytes i·chunk_bytes … (i+1)·chunk_bytes, and `identity` that of these hashes: they
  are computed in parallel and once, and a process with every right chunk has the right whole;
- all relays of a job use the same chunk size, so equal bytes have equal identities there;
- a buffer never changes after its manifest is made, so readers map it without a copy;
- versions are ordered by (epoch, version): a restarted trainer counts steps again from its checkpoint, and its versions
  supersede those of the dead one.
"""

from dataclasses import dataclass, replace

from engine.policy.lineage import WeightsId
from engine.weights.open_file import OpenFile


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """The buffer holds an adapter, which engine/weights/low_rank.py merges into whole weights."""

    base: str
    """The fingerprint of the model to which it is added."""
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The trainer's log-probs of a fixed row of tokens under these weights; installing engines compare theirs."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """For each token but the first, given all before it, at temperature 1."""
    tolerance: float
    """The mean difference that rounding can explain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    weights: WeightsId
    num_bytes: int
    chunk_bytes: int
    identity: str
    """Empty: not all hashes are computed yet."""
    chunk_hashes: tuple[str, ...]
    tensors: tuple[TensorEntry, ...]
    low_rank: LowRank | None = None
    """None: the buffer holds all weights of the model."""
    probe: Probe | None = None
    """None: the publisher computes no probe."""
    sums: tuple[int, ...] = ()
    """The sum over each tensor's bits in the trainer's memory (engine/weights/sums.py); empty: unknown."""

    @property
    def is_hashed(self) -> bool:
        return bool(self.identity)

    @property
    def num_chunks(self) -> int:
        return -(-self.num_bytes // self.chunk_bytes)

    @property
    def cut(self) -> "WeightManifest":
        """The manifest without hashes: equal for versions that may have the same chunks."""
        return replace(self, identity="", chunk_hashes=())


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    manifest: WeightManifest
    buffer: memoryview
    file: OpenFile | None = None
    """The buffer as a file for other processes of this host. None: it is memory of this process."""

    @property
    def version(self) -> int:
        return self.manifest.weights.version


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferId:
    """A buffer in transfer: a whole version, or the delta since `base`."""

    weights: WeightsId
    base: WeightsId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaManifest:
    weights: WeightsId
    base: WeightsId
    base_identity: str
    result_identity: str
    num_bytes: int
    """Size of the delta."""
    chunk_bytes: int
    chunk_hashes: tuple[str, ...]

    @property
    def buffer_id(self) -> BufferId:
        return BufferId(weights=self.weights, base=self.base)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightDelta:
    manifest: DeltaManifest
    buffer: memoryview
