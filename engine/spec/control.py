"""Messages between driver and control plane, and the order that starts an attempt.

The driver is the only client: it ships facts, sends heartbeats, and learns what is wanted of it from the
heartbeat's answer. Every message carries the attempt and its fence; an old fence is answered 409 `stale_fence`.
Either side may be of a later release: what it tells beyond this is passed over, and what is told here stays told.
"""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from engine.spec.asset_manifest import Sha256
from engine.spec.facts import Fact
from engine.spec.job import ACCEPTED, JobSpec
from engine.spec.labels import LabelSelector
from engine.spec.strict import BigCount, Count, Ordinal, Strict, Text, Told

MAX_FACTS_PER_BATCH = 200
CPUS_OF_A_DEVICE = 0.1
"""In a pool of CPUs, where a device is a process of the trainer or a replica that shares a core with others."""

Id = Annotated[Text, Field(min_length=1, max_length=64)]


class OrderedAsset(Strict):
    """A data set or a model that the spec names, at the version that was found when it was submitted."""

    pointer: Annotated[Text, Field(max_length=100)]
    """Into the spec."""
    id: Id
    kind: Literal["data", "model"]
    sha256: Sha256
    """Of its manifest."""
    num_bytes: int = Field(ge=1)
    place: Annotated[Text, Field(max_length=100)] | None = None
    """Its entry in the shared folder, where the operator put it; None: it is fetched from the control plane."""


class OrderedAssets(Strict):
    """`GET {control_url}/internal/engine/assets/{id}/manifest` and `…/parts/{sha256}`, with this token, which is good
    for these and no others, for as long as the attempt is the job's own."""

    token: Annotated[Text, Field(max_length=300)]
    assets: list[OrderedAsset] = Field(max_length=10)


class PoolTerms(Strict):
    """Of a cluster's hosts, those that a pool's jobs may use, and what of them."""

    labels: LabelSelector = Field(default_factory=dict)
    """Of Ray; empty: every host."""
    device: Literal["gpu", "cpu"] | None = None
    """`gpu`: nothing runs without; `cpu`: none is asked for, and none is seen. None: GPUs where there are some."""
    autoscales: bool = False
    """The cluster gets hosts while somebody asks for what it has not."""


class AttemptOrder(Strict):
    """`order.json` in the package that the Ray Jobs API hands to the driver."""

    job: Id
    attempt: Ordinal
    fence: Ordinal
    spec: JobSpec
    control_url: Annotated[Text, Field(max_length=500)]
    token: Annotated[Text, Field(max_length=200)]
    resume_from: Annotated[Text, Field(max_length=2_000)] | None = None
    """The uri of the verified checkpoint to go on from."""
    replicas: int | None = Field(None, ge=1, le=4_096)
    """The number that the scheduler granted; the others may be granted later. None: all of the spec's."""
    runtime_left_s: float | None = Field(None, gt=0)
    """Of max_runtime_s, less what earlier attempts took. None: all of it."""
    assets: OrderedAssets | None = None
    """All that the spec names. None: it names none."""
    pool: PoolTerms = Field(default_factory=PoolTerms)

    @classmethod
    def read(cls, text: bytes) -> Self:
        """Its spec was taken in before; see `JobSpec.accepted`."""
        return cls.model_validate_json(text, context=ACCEPTED)


class FactBatch(Told):
    """POST {control_url}/internal/engine/facts, bearer token of the attempt."""

    attempt: Ordinal
    fence: Ordinal
    facts: list[Fact] = Field(min_length=1, max_length=MAX_FACTS_PER_BATCH)


class FactAck(Told):
    """Facts up to and including `acked` are stored. A batch that starts beyond acked + 1 is answered 409
    `gap` with the same field, and the driver sends again from there."""

    acked: BigCount


class Heartbeat(Told):
    """POST {control_url}/internal/engine/heartbeat, every few seconds."""

    attempt: Ordinal
    fence: Ordinal
    step: Count
    turns: BigCount | None = None
    """Of the driver's own loop, which turns all the while, however long a step takes: one that stays the same is of a
    loop that stands still. None: of a driver that does not count."""


class ControlRequest(Told):
    """A request to a running attempt, from the row of the control plane to the driver.

    `cancel`: end now. `pause`: drain, write a checkpoint, end with the outcome `paused`. `resize`: go on with so
    many replicas; those that leave hand their trajectories to the others. The driver acknowledges it by its id."""

    id: Id
    kind: Literal["cancel", "pause", "resize"]
    replicas: int | None = Field(None, ge=1, le=4_096)
    """Of `resize`, and of nothing else."""

    @model_validator(mode="after")
    def _has_replicas_if_it_resizes(self) -> Self:
        if (self.replicas is not None) != (self.kind == "resize"):
            raise ValueError(f"replicas belong to kind 'resize' and to no other; got {self.replicas} of '{self.kind}'")
        return self


class HeartbeatReply(Told):
    """All requests that no fact has acknowledged yet; seeing one twice is harmless. One of a kind that came with a
    later release is passed over: the control plane sees that nobody acknowledges it."""

    requests: list[ControlRequest] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _without_what_came_later(cls, told: object) -> object:
        match told:
            case {"requests": list(requests), **others}:
                known = get_args(ControlRequest.model_fields["kind"].annotation)
                return {**others, "requests": [one for one in requests if _kind_of(one) in (None, *known)]}
        return told


def _kind_of(request: object) -> str | None:
    match request:
        case {"kind": str(kind)}:
            return kind
    return None
