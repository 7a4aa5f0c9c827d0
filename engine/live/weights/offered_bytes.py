"""Weight bytes as they are handed from process to process: the `payload` of a live run.

    hosts of the trainer ──OfferedBytes──▶ master relay            relay ──SharedBytes──▶ replicas of its host

Invariant: a payload is a name for bytes, never the bytes.
"""

from dataclasses import dataclass
from threading import Thread

from engine.live.weights.segments import SharedBytes, hold_open, let_go_of, map_shared, own_memory
from engine.weights.chunks import TornWeights
from engine.weights.port import WeightManifest, WeightVersion
from engine.weights.spans import Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The place of a link's listener."""

    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedPart:
    """What one host of the trainer has of a version."""

    shared: SharedBytes
    spans: Spans
    """Its bytes, which stand there one after another."""
    reach: Reach | None
    """The link over which they can be had; None: only through shared memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedBytes:
    """Bytes of the trainer, for the relay that leads: one part for each host that trains, together the whole."""

    parts: tuple[OfferedPart, ...]


def map_version(manifest: WeightManifest, payload: object) -> WeightVersion:
    """The version that a relay served to a replica of its host, mapped read-only. The relay has hashed it, in this very
    memory; what is left to see is that the name still stands for it, since no other memory ever gets the same one.
    `TornWeights`, which is retryable, if it has been dropped meanwhile: a newer version is there by then."""
    assert isinstance(payload, SharedBytes), f"weights came as {type(payload).__name__}"
    if payload.memory != own_memory():
        raise TornWeights("the relay that serves this replica is on another host")
    if payload.num_bytes != manifest.num_bytes:
        raise TornWeights(f"weights={manifest.weights}: {payload.num_bytes} bytes, not {manifest.num_bytes}")
    return WeightVersion(manifest=manifest, buffer=map_shared(payload), file=hold_open(payload))


def unmap_beside(version: WeightVersion) -> None:
    """So that decoding goes on meanwhile."""
    Thread(target=let_go_of, args=(version.buffer,), name="unmap", daemon=True).start()
