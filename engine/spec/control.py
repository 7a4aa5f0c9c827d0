"""Messages between driver and control plane, and the order that starts an attempt.

The driver is the only client: it ships facts, sends heartbeats, and receives requests in the heartbeat's reply.
Every message carries the attempt and its fence; an old fence is answered 409 `stale_fence`.
Either side may run a later release: unknown fields are ignored, and no field of this module is ever removed.
"""

from typing import Annotated, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from engine.spec.assets.asset_manifest import Sha256
from engine.spec.facts import FACT_NAMES, Fact
from engine.spec.job import ACCEPTED, JobSpec
from engine.spec.labels import LabelSelector
from engine.spec.strict import BigCount, Count, Lenient, Ordinal, Strict, Text
from engine.spec.vocabulary import digest_of

MAX_FACTS_PER_BATCH = 200
CPUS_OF_A_DEVICE = 0.1
"""CPUs reserved per device of a CPU pool, where trainer processes and replicas share cores."""

VOCABULARY_DIGEST: Final = digest_of(FACT_NAMES)

Id = Annotated[Text, Field(min_length=1, max_length=64)]


class OrderedAsset(Strict):
    """A data set or model named in the spec, at the version resolved when the job was submitted."""

    pointer: Annotated[Text, Field(max_length=100)]
    """A JSON pointer into the spec."""
    id: Id
    kind: Literal["data", "model"]
    sha256: Sha256
    """The digest of the asset's manifest."""
    num_bytes: int = Field(ge=1)
    place: Annotated[Text, Field(max_length=100)] | None = None
    """The asset's entry in the operator's shared folder; None: the node downloads it from the control plane."""


class OrderedAssets(Strict):
    """Assets to read with `GET {control_url}/internal/engine/assets/{id}/manifest` and `…/parts/{sha256}`. The token is
    valid for these assets only, and only while the attempt is the job's current one."""

    token: Annotated[Text, Field(max_length=300)]
    assets: list[OrderedAsset] = Field(max_length=10)


class PoolTerms(Strict):
    """Which hosts of a cluster the jobs of a pool may use, and which of their devices."""

    labels: LabelSelector = Field(default_factory=dict)
    """A selector over Ray's node labels; empty: every host."""
    device: Literal["gpu", "cpu"] | None = None
    """`gpu`: GPUs are required; `cpu`: GPUs are neither requested nor visible. None: GPUs where the cluster has any."""
    autoscales: bool = False
    """The cluster adds hosts while requests for resources are unmet."""


class AttemptOrder(Strict):
    """`order.json` in the package that the Ray Jobs API hands to the driver."""

    job: Id
    attempt: Ordinal
    fence: Ordinal
    spec: JobSpec
    control_url: Annotated[Text, Field(max_length=500)]
    token: Annotated[Text, Field(max_length=200)]
    resume_from: Annotated[Text, Field(max_length=2_000)] | None = None
    """The URI of the verified checkpoint to resume from."""
    replicas: int | None = Field(None, ge=1, le=4_096)
    """The number of replicas that the scheduler granted; it may grant more later. None: all that the spec requests."""
    runtime_left_s: float | None = Field(None, gt=0)
    """max_runtime_s less the time of earlier attempts. None: all of max_runtime_s."""
    assets: OrderedAssets | None = None
    """All assets that the spec names. None: the spec names none."""
    pool: PoolTerms = Field(default_factory=PoolTerms)

    @classmethod
    def read(cls, text: bytes) -> Self:
        """Reads the spec as accepted earlier; see `JobSpec.accepted`."""
        return cls.model_validate_json(text, context=ACCEPTED)


class FactBatch(Lenient):
    """POST {control_url}/internal/engine/facts with the attempt's bearer token."""

    attempt: Ordinal
    fence: Ordinal
    facts: list[Fact] = Field(min_length=1, max_length=MAX_FACTS_PER_BATCH)


class Vocabulary(Lenient):
    """GET {control_url}/internal/engine/vocabulary: the names that this control plane understands in facts. A driver
    sends no others; see `engine.spec.vocabulary`."""

    names: list[Annotated[Text, Field(max_length=400)]] = Field(max_length=10_000)


class FactAck(Lenient):
    """Facts up to and including `acked` are stored. A batch that starts beyond acked + 1 is answered 409
    `gap` with the same field, and the driver resends from there."""

    acked: BigCount
    vocabulary: Annotated[Text, Field(max_length=64)] = ""
    """The digest of the control plane's names: at another one than the driver knows, it reads them again."""


class Heartbeat(Lenient):
    """POST {control_url}/internal/engine/heartbeat, every few seconds."""

    attempt: Ordinal
    fence: Ordinal
    step: Count
    turns: BigCount | None = None
    """Iterations of the driver's loop, which continue however long a step takes: a count that stays the same means
    that the loop is stuck. None: the driver's release does not count them."""


class ControlRequest(Lenient):
    """A request of the control plane to a running attempt; the driver acknowledges it by its id.

    `cancel`: end now. `pause`: drain, write a checkpoint, end with the outcome `paused`. `resize`: continue with this
    number of replicas; replicas that leave hand their trajectories to the others."""

    id: Id
    kind: Literal["cancel", "pause", "resize"]
    replicas: int | None = Field(None, ge=1, le=4_096)
    """Set for `resize` only."""

    @model_validator(mode="after")
    def _has_replicas_if_it_resizes(self) -> Self:
        if (self.replicas is not None) != (self.kind == "resize"):
            raise ValueError(f"replicas is required for kind 'resize' only; got {self.replicas} for '{self.kind}'")
        return self


class HeartbeatReply(Lenient):
    """All requests that no fact has acknowledged yet; receiving one twice is harmless. A request of a kind that this
    release does not know is ignored; the control plane sees that it stays unacknowledged."""

    requests: list[ControlRequest] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _drop_unknown_kinds(cls, document: object) -> object:
        match document:
            case {"requests": list(requests), **others}:
                known = get_args(ControlRequest.model_fields["kind"].annotation)
                return {**others, "requests": [each for each in requests if _kind_of(each) in (None, *known)]}
        return document


def _kind_of(request: object) -> str | None:
    match request:
        case {"kind": str(kind)}:
            return kind
    return None
