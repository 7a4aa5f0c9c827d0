"""Messages to a relay: from the trainer, replicas and data, from other relays, and from its own body.

    trainer ──WeightsOffered──▶ master ──VersionComing──▶ relay ──VersionComing──▶ relay …
       ▲ ◀──MasterElected, VersionStored──┘ ◀──ChunksWanted──┘ │
       └──ClaimSeen──▶ a candidate          ──chunks, by body──▶ replicas of the host ◀──WeightsServed

Invariants:
- relays speak in states: a `RelaySynced` says all that a relay holds, a `ChunksWanted` all that it lacks, so a lost or
  doubled message is made good by the next one;
- chunks travel between bodies, and only their hashes reach the brains.
"""

from dataclasses import dataclass

from engine.policy.lineage import WeightsId
from engine.weights.port import BufferId, DeltaManifest, WeightManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOffered:
    manifest: WeightManifest
    pinned: bool
    """Kept until released, because an evaluation wants exactly this version."""
    payload: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSeen:
    """The highest claim to the lead that the trainer has heard of. It answers every `MasterElected`."""

    claim: int
    incarnation: int
    """Of the relay that made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsWanted:
    replica: int
    incarnation: int
    held: WeightsId
    """The weights that the replica has."""
    exact: WeightsId | None
    """Only these will do; None: the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReleased:
    weights: WeightsId


# ── from the manager, and to trainer and data too ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaysPlaced:
    """All the relays that have a host. One that is not among them is not waited for."""

    relays: tuple[int, ...]


# ── from another relay ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySynced:
    """A heartbeat, and all that its sender holds."""

    host: int
    incarnation: int
    serial: int
    claim: int
    held: tuple[WeightsId, ...]
    settled: tuple[WeightsId, ...]
    """The versions that the sender and every live relay after it hold."""
    released: tuple[WeightsId, ...]
    wants_reply: bool
    seals: tuple[tuple[WeightsId, str], ...] = ()
    """The sha256 of what it holds, as far as they were taken."""
    waits_s: float = 0.0
    """The longest that its process waited for a core of late."""
    process: object = None
    """By which bodies on one host know each other's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionComing:
    """The sender has this version, or is getting it, and will send what is asked for."""

    host: int
    incarnation: int
    claim: int
    manifest: WeightManifest
    """Without hashes, until the relay that leads has all of it: then it comes again."""
    pinned: bool
    path: tuple[DeltaManifest, ...]
    """Deltas that the sender has, oldest first; the last one makes this version. Empty: it has only the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksWanted:
    host: int
    incarnation: int
    claim: int
    weights: WeightsId
    wants: tuple[tuple[BufferId, tuple[int, ...]], ...]
    knows_hashes: bool
    """Of the version; else it must still be told."""
    reach: object
    """The way to the sender's body; only bodies understand it."""


# ── from its own body ─────────────────────────────────────────────────────────────────────────────────────────────
# `arrival` is the number that the effect gave, so that news of a buffer that is gone is not taken for another's.


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsHashed:
    """All of an offer that came without hashes is here, and these are they."""

    arrival: int
    manifest: WeightManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHashed:
    """Chunk `index` is here, and this is its hash."""

    arrival: int
    buffer_id: BufferId
    index: int
    digest: str
    is_torn: bool = False
    """It is not what its sender says that it is: the buffer does not have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferHashed:
    """The identity of the whole version, put together from its buffers."""

    arrival: int
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    """The offered weights are not there any more, or there is no room for them."""

    arrival: int
    reason: str
    is_gone: bool = False
    """The trainer has made a newer version meanwhile, which is nobody's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSealed:
    """The sha256 of a version that is shown, by its chunks."""

    weights: WeightsId
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaMade:
    weights: WeightsId
    delta: DeltaManifest | None
    """None: it would not have been smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreAwaited:
    """The process of this relay, or of a silent one on its host, has waited for a core since it was last asked."""

    host: int
    waited_s: float


ToRelay = (
    WeightsOffered
    | RelaysPlaced
    | ClaimSeen
    | WeightsWanted
    | VersionReleased
    | RelaySynced
    | VersionComing
    | ChunksWanted
    | WeightsHashed
    | ChunkHashed
    | BufferHashed
    | FetchFailed
    | WeightsSealed
    | DeltaMade
    | CoreAwaited
)
