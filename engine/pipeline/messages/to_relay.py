"""Messages to a relay: from the trainer, replicas and data, from other relays, and from its own body.

    trainer ──WeightsOffered──▶ master ──VersionComing──▶ relay ──VersionComing──▶ relay …
       ▲ ◀──MasterElected, VersionStored──┘ ◀──ChunksWanted──┘ │
       └──ClaimObserved──▶ a candidate          ──chunks, by body──▶ replicas of the host ◀──WeightsServed

Invariants:
- relays send states: a `RelaySynced` lists all that a relay holds, a `ChunksWanted` all that it lacks, so the next
  message repairs a lost or doubled one;
- chunks travel between bodies, and only their hashes reach the brains.
"""

from dataclasses import dataclass

from engine.policy.lineage import WeightsId
from engine.weights.port import BufferId, DeltaManifest, WeightManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOffered:
    manifest: WeightManifest
    pinned: bool
    """Kept until released, because an evaluation needs exactly this version."""
    payload: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimObserved:
    """The highest claim to the lead that the trainer has received. It answers every `MasterElected`."""

    claim: int
    incarnation: int
    """Incarnation of the claiming relay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsWanted:
    replica: int
    incarnation: int
    held: WeightsId
    """The replica's current weights."""
    exact: WeightsId | None
    """Only these weights; None: the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReleased:
    weights: WeightsId


# ── from the manager, and to trainer and data too ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaysPlaced:
    """All relays that have a host. No relay waits for one that is not listed."""

    relays: tuple[int, ...]


# ── from another relay ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySynced:
    """A heartbeat, with all that its sender holds."""

    host: int
    incarnation: int
    serial: int
    claim: int
    held: tuple[WeightsId, ...]
    settled: tuple[WeightsId, ...]
    """The versions that the sender and every live relay after it hold."""
    released: tuple[WeightsId, ...]
    wants_reply: bool
    coming: tuple[WeightsId, ...] = ()
    """The versions that will be held: arriving at the sender or at a relay before it, or offered by the trainer."""
    seals: tuple[tuple[WeightsId, str], ...] = ()
    """The sha256 of the versions held, as far as computed."""
    waits_s: float = 0.0
    """The longest recent wait of its process for a core."""
    process: object = None
    """Identifies the process to other bodies on the same host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionComing:
    """The sender has this version, or is receiving it, and will send the requested chunks."""

    host: int
    incarnation: int
    claim: int
    manifest: WeightManifest
    """Without hashes until the leading relay has the whole version: then it is sent again."""
    pinned: bool
    path: tuple[DeltaManifest, ...]
    """The sender's deltas, oldest first; the last one makes this version. Empty: the sender has only the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksWanted:
    host: int
    incarnation: int
    claim: int
    weights: WeightsId
    wants: tuple[tuple[BufferId, tuple[int, ...]], ...]
    knows_hashes: bool
    """The hashes of the version; False: the sender must still send them."""
    reach: object
    """Where to reach the requester's body; opaque to brains."""


# ── from its own body ─────────────────────────────────────────────────────────────────────────────────────────────
# `arrival` is the effect's number, so that a late message about a dropped buffer is not taken for another's.


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsHashed:
    """An offer without hashes has fully arrived; these are its hashes."""

    arrival: int
    manifest: WeightManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHashed:
    """Chunk `index` has arrived, with this hash."""

    arrival: int
    buffer_id: BufferId
    index: int
    digest: str
    is_torn: bool = False
    """The chunk does not match its sender's hash and was dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferHashed:
    """The identity of the whole version, assembled from its buffers."""

    arrival: int
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    """The offered weights are gone, or there is no room for them."""

    arrival: int
    reason: str
    is_gone: bool = False
    """The trainer has made a newer version meanwhile, which is no fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSealed:
    """The sha256 of a whole version, over its chunks."""

    weights: WeightsId
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaMade:
    weights: WeightsId
    delta: DeltaManifest | None
    """None: a delta would not be smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreAwaited:
    """The process of this relay, or of a silent one on its host, has waited for a core since the last check."""

    host: int
    waited_s: float


ToRelay = (
    WeightsOffered
    | RelaysPlaced
    | ClaimObserved
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
