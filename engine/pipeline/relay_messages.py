"""What relays are told and what they tell, and what a relay's body is asked to do.

    trainer ──WeightsOffered──▶ master ──VersionComing──▶ relay ──VersionComing──▶ relay …
       ▲ ◀──MasterElected, VersionStored──┘ ◀──ChunksWanted──┘ │
       └──EpochSeen──▶ a candidate          ──chunks, by body──▶ replicas of the host ◀──WeightsServed

Invariants:
- relays speak in states: a `RelaySynced` says all that a relay holds, a `ChunksWanted` all that it lacks, so a lost or
  doubled message is mended by the next one;
- what a `payload` is only the bodies know: a handle on bytes, live or simulated;
- chunks travel between bodies, and only their hashes reach the brains.
"""

from dataclasses import dataclass

from engine.policy.lineage import WeightsId
from engine.weights.port import DeltaManifest, ParcelId, WeightManifest


def relay_address(host: int) -> str:
    return f"relay/{host}"


# ── to a relay, from the trainer, a replica or data ───────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOffered:
    manifest: WeightManifest
    pinned: bool
    """Kept until released, because an evaluation wants exactly this version."""
    payload: object


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSeen:
    """The highest epoch that the trainer has heard of. It answers every `MasterElected`."""

    epoch: int
    incarnation: int
    """Of the relay that leads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsWanted:
    replica: int
    incarnation: int
    held: int
    """The version that the replica has; -1: none yet."""
    exact: int | None
    """Only this one will do; None: the newest."""
    held_epoch: int = 0
    exact_epoch: int | None = None
    """None: the newest incarnation of the trainer that made this version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionReleased:
    version: int
    epoch: int = 0


# ── to a relay, from another ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySynced:
    """A heartbeat, and all that its sender holds."""

    host: int
    incarnation: int
    serial: int
    epoch: int
    held: tuple[WeightsId, ...]
    settled: tuple[WeightsId, ...]
    """What the sender and every live relay after it hold."""
    released: tuple[WeightsId, ...]
    wants_reply: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionComing:
    """The sender has this version, or is getting it, and will send what is asked for."""

    host: int
    incarnation: int
    epoch: int
    manifest: WeightManifest
    pinned: bool
    path: tuple[DeltaManifest, ...]
    """Deltas that the sender has, oldest first; the last one makes this version. Empty: it has only the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksWanted:
    host: int
    incarnation: int
    epoch: int
    version: WeightsId
    wants: tuple[tuple[ParcelId, tuple[int, ...]], ...]
    reach: object
    """How the sender's body is reached by others; only bodies know what it is."""


# ── to a relay, from its own body ─────────────────────────────────────────────────────────────────────────────────
# `arrival` is the number that the effect gave, so that news of a buffer that is gone is not taken for another's.


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsHashed:
    """An offer that came without hashes is here, and these are they."""

    arrival: int
    manifest: WeightManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHashed:
    """Chunk `index` is here, and this is its hash."""

    arrival: int
    parcel: ParcelId
    index: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferHashed:
    """The hash of the whole version, put together from its parcels."""

    arrival: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    """What was offered is not there any more, or there is no room for it."""

    arrival: int
    reason: str
    is_gone: bool = False
    """The trainer has made a newer version meanwhile, which is nobody's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaMade:
    version: WeightsId
    delta: DeltaManifest | None
    """None: it would not have been smaller."""


# ── to a rollout ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionAnnounced:
    version: int
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsServed:
    manifest: WeightManifest
    payload: object

    @property
    def version(self) -> int:
        return self.manifest.version


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionMissing:
    version: int
    epoch: int = 0


# ── to the trainer ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStored:
    """Every live relay of the chain has it, or a newer one."""

    version: int
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRefused:
    version: int
    reason: str
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterElected:
    """From the relay that leads this epoch, until the trainer has answered. Or from one that was offered weights and
    does not lead: then it says who does, and `held` is empty."""

    host: int
    incarnation: int | None
    """None: the sender speaks of another relay."""
    epoch: int
    held: tuple[WeightsId, ...]
    """What the master has: what it lacks was lost with the one before and must be offered again."""


# ── a relay's body ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchWeights:
    """Take over what the trainer offers. Answered by `WeightsHashed` once the hashes are taken, of chunks of
    `chunk_bytes`; or, if the manifest has hashes already, by `ChunkHashed` for every chunk; or by `FetchFailed`."""

    arrival: int
    manifest: WeightManifest
    payload: object
    chunk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenParcel:
    """Make room for a parcel that another relay will send; `ChunkHashed` for each chunk that comes. One with another
    hash than it should have is not kept."""

    arrival: int
    parcel: ParcelId
    num_bytes: int
    chunk_bytes: int
    chunk_sha256: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardChunk:
    to: int
    """A host."""
    reach: object
    parcel: ParcelId
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembleWeights:
    """Every chunk is here: apply the deltas of `path` to a copy of its base, or with an empty path take the whole as
    it came. Answered by `BufferHashed`."""

    arrival: int
    manifest: WeightManifest
    path: tuple[DeltaManifest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeDelta:
    """Answered by `DeltaMade`. Both versions stay readable until then, dropped or not."""

    version: WeightsId
    base: WeightsId
    chunk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeWeights:
    """Send `WeightsServed` with the bytes of this version."""

    to: str
    version: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class DropParcel:
    """The whole of a version, or one of its deltas."""

    parcel: ParcelId


RelayToRelay = RelaySynced | VersionComing | ChunksWanted
ToRelay = (
    WeightsOffered
    | EpochSeen
    | WeightsWanted
    | VersionReleased
    | RelayToRelay
    | WeightsHashed
    | ChunkHashed
    | BufferHashed
    | FetchFailed
    | DeltaMade
)
RelayToRollout = VersionAnnounced | WeightsServed | VersionMissing
RelayToTrainer = VersionStored | VersionRefused | MasterElected
RelayEffect = FetchWeights | OpenParcel | ForwardChunk | AssembleWeights | MakeDelta | ServeWeights | DropParcel
