"""Versioned weights as one flat buffer of bytes, so that whoever carries them needs no torch.

Invariants:
- `chunk_hashes[i]` is the hash of bytes i·chunk_bytes … (i+1)·chunk_bytes, and `identity` that of these hashes: they
  are taken side by side and once, and whoever has every right chunk has the right whole;
- the relays of a job cut a version alike, so equal bytes have equal identities there;
- a buffer is never changed after its manifest was made: readers map it for nothing;
- versions are ordered by (epoch, version): a restarted trainer counts steps again from its checkpoint, and what it
  publishes wins over a dead one's.
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
    """The buffer holds an adapter, of which engine/weights/low_rank.py makes whole weights."""

    base: str
    """The fingerprint of the model that it is added to."""
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What the trainer makes of a fixed row of tokens by these weights, for whoever installs them to compare."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each but the first, after all before it, at temperature 1."""
    tolerance: float
    """The mean difference that rounding explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    weights: WeightsId
    num_bytes: int
    chunk_bytes: int
    identity: str
    """Empty: nobody has taken all the hashes yet."""
    chunk_hashes: tuple[str, ...]
    tensors: tuple[TensorEntry, ...]
    low_rank: LowRank | None = None
    """None: these are all weights of the model."""
    probe: Probe | None = None
    """None: whoever published them computes nothing."""
    sums: tuple[int, ...] = ()
    """Of each tensor's bits, as the trainer holds them (engine/weights/sums.py); empty: not known."""

    @property
    def is_hashed(self) -> bool:
        return bool(self.identity)

    @property
    def num_chunks(self) -> int:
        return -(-self.num_bytes // self.chunk_bytes)

    @property
    def cut(self) -> "WeightManifest":
        """Without hashes: what is equal of two that may have the same chunks."""
        return replace(self, identity="", chunk_hashes=())


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    manifest: WeightManifest
    buffer: memoryview
    file: OpenFile | None = None
    """The buffer, for other processes of this host. None: it is memory of this one."""

    @property
    def version(self) -> int:
        return self.manifest.weights.version


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferId:
    """A buffer that travels to make a version: the whole of it, or the delta since `base`."""

    weights: WeightsId
    base: WeightsId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaManifest:
    weights: WeightsId
    base: WeightsId
    base_identity: str
    result_identity: str
    num_bytes: int
    """Of the delta."""
    chunk_bytes: int
    chunk_hashes: tuple[str, ...]

    @property
    def buffer_id(self) -> BufferId:
        return BufferId(weights=self.weights, base=self.base)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightDelta:
    manifest: DeltaManifest
    buffer: memoryview
