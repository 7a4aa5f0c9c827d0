"""Handles for weight bytes that processes pass to each other: the `payload` of a live run.

    hosts of the trainer ──OfferedBytes──▶ master relay            relay ──SharedBytes──▶ replicas of its host

Invariant: a payload names bytes and never contains them.
"""

from dataclasses import dataclass
from threading import Thread

from engine.live.weights.segments import SharedBytes, hold_open, map_shared, own_memory, release_pages
from engine.weights.chunks import TornWeights
from engine.weights.port import WeightManifest, WeightVersion
from engine.weights.spans import Spans


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The address of a link's listener."""

    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedPart:
    """One trainer host's part of a version."""

    shared: SharedBytes
    spans: Spans
    """Its bytes, which are contiguous in the shared memory."""
    reach: Reach | None
    """The link to pull them over; None: only through shared memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedBytes:
    """A version of the trainer, for the leading relay: one part for each training host, together the whole."""

    parts: tuple[OfferedPart, ...]


def map_version(manifest: WeightManifest, payload: object) -> WeightVersion:
    """Maps a version read-only that a relay serves to a replica of its host. The relay has hashed this memory, and no
    other memory ever gets the same name, so only the name is checked. Raises `TornWeights`, which is retryable, if the
    version was dropped meanwhile: a newer one exists then."""
    assert isinstance(payload, SharedBytes), f"unexpected payload of weights: {type(payload).__name__}"
    if payload.memory != own_memory():
        raise TornWeights("the relay that serves this replica is on another host")
    if payload.num_bytes != manifest.num_bytes:
        raise TornWeights(f"weights={manifest.weights}: {payload.num_bytes} bytes, not {manifest.num_bytes}")
    return WeightVersion(manifest=manifest, buffer=map_shared(payload), file=hold_open(payload))


def unmap_in_background(version: WeightVersion) -> None:
    """Releases the pages on another thread, so that decoding continues."""
    Thread(target=release_pages, args=(version.buffer,), name="unmap", daemon=True).start()
