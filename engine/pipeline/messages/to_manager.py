"""Messages to the manager: from the parts, from the body that watches their processes, and from outside."""

from dataclasses import dataclass

from engine.pipeline.messages.addresses import Address
from engine.pipeline.records import ResidentLoad
from engine.policy.lineage import WeightsId
from engine.policy.placement import HostView
from engine.policy.progress import TURNING, Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReported:
    """The load of a replica's places and cache, for those who look for tails."""

    replica: int
    incarnation: int
    weights: WeightsId
    """Those that fresh work starts on."""
    num_running: int
    """On all versions, like `kv_used`."""
    kv_used: float
    num_tokens: int
    beside: tuple[ResidentLoad, ...] = ()
    """The part of it that is of other versions, each with its share."""
    has_free_slot: bool = False
    """It could take other weights at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReported:
    """A heartbeat, from a thread of the part's body that waits for nothing: the process lives, and its loop is at this
    piece of work."""

    part: Address
    incarnation: int
    piece: Piece = TURNING
    beside: tuple[Piece, ...] = ()
    """What threads beside the loop are at, each always in the same place. It is no sign that the loop lives; to the
    driver it tells that something moves."""
    waited_s: float = 0.0
    """The time for which the loop's thread was runnable and had no core, since it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStarved:
    """From the body that watches the processes: the host of a silent part says that its process exists, is runnable,
    and got no core for so long since it was asked last."""

    part: Address
    incarnation: int
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLost:
    """From the body that watches the processes."""

    part: Address
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsUpdated:
    """From the trainer: the moment to look for tails, since what runs is of an old version now."""

    weights: WeightsId


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOrdered:
    """From outside: this replica's device will be taken away."""

    replica: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeOrdered:
    """From the driver: the replicas below this number stay or come back, the others leave."""

    replicas: int
    within_s: float
    order: int = 0
    """The order's number, which comes back once it is carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLeft:
    """It has handed over everything."""

    replica: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsSeen:
    """From the body that looks at the cluster: all hosts that are there, and what each has free."""

    hosts: tuple[HostView, ...]


ToManager = (
    ReplicaReported
    | PartReported
    | PartStarved
    | PartLost
    | WeightsUpdated
    | LeaveOrdered
    | ResizeOrdered
    | ReplicaLeft
    | HostsSeen
)
