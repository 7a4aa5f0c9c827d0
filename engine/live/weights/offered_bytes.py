"""Weight bytes as they are handed from process to process: the `payload` of a live run.

    hosts of the trainer ──OfferedBytes──▶ master relay            relay ──SharedBytes──▶ replicas of its host

Invariant: a payload is a name for bytes, never the bytes.
"""

from dataclasses import dataclass

from engine.live.weights.link import Reach
from engine.live.weights.segments import SharedBytes, map_shared, own_memory
from engine.weights.chunks import TornWeights
from engine.weights.port import WeightManifest, WeightVersion
from engine.weights.spans import Spans


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
    """The version that a relay served to a replica of its host, mapped read-only. `TornWeights`, which is retryable, if
    it has been dropped meanwhile: a newer version is there by then."""
    assert isinstance(payload, SharedBytes), f"weights came as {type(payload).__name__}"
    if payload.memory != own_memory():
        raise TornWeights("the relay that serves this replica is on another host")
    return WeightVersion(manifest=manifest, buffer=map_shared(payload))
