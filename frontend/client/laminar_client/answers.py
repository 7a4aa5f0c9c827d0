"""What the server answers, as frozen dataclasses. `raw` is the whole document as it came, with what is newer than this
client; times are datetimes in UTC, durations and sizes have their unit in the name."""

# Over budget: plain records without logic, one for each answer of the API; whoever looks one up finds it here.

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")
TERMINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(kind: type[T]) -> type[T]:
    make: Callable[[type[T]], type[T]] = dataclass(frozen=True, kw_only=True, slots=True)
    return make(kind)


@record
class Answer:
    raw: Mapping[str, Any] = field(repr=False, compare=False)


@record
class Named(Answer):
    id: str
    name: str


@record
class KeyInUse(Named):
    prefix: str
    expires_at: datetime | None


@record
class Me(Answer):
    key: KeyInUse
    team: Named
    user: str
    role: str
    scopes: list[str]


@record
class Project(Named):
    created_at: datetime


@record
class Template(Answer):
    name: str
    title: str
    spec: dict[str, Any]


@record
class Links(Answer):
    """Paths on the server."""

    page: str


@record
class Job(Answer):
    id: str
    name: str
    tags: list[str]
    project: str
    pool: str
    state: str
    phase: str
    reason: str
    message: str
    failure_class: str
    attempt: int
    devices: int
    step: int
    steps: int
    spec: dict[str, Any]
    priority: int
    max_runtime_s: int
    parent: str | None
    start_from: str | None
    created_at: datetime
    queued_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    created_by: str
    links: Links

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL_STATES


@record
class Preview(Answer):
    spec: dict[str, Any]
    pool: str
    devices: int
    trajectories_per_step: int
    starts_at_once: bool
    reason: str
    message: str


@record
class Event(Answer):
    seq: int
    at: datetime
    type: str
    actor: str
    from_state: str
    to_state: str
    reason: str
    message: str
    data: dict[str, Any]


@record
class TeamEvent(Event):
    job_id: str


@record
class EventPage(Answer):
    data: list[Event]
    has_more: bool
    next_after: int


@record
class Attempt(Answer):
    n: int
    created_at: datetime
    ended_at: datetime | None
    resume_from: str
    outcome: str
    message: str


@record
class Fault(Answer):
    seq: int
    at: datetime
    attempt: int
    component: str
    message: str
    action: str


@record
class Cancelled(Answer):
    """`result`: cancelled, already, finished or not_found."""

    id: str
    result: str


@record
class CancelledJobs(Answer):
    data: list[Cancelled]


@record
class ReplicaSpan(Answer):
    attempt: int
    replica: int
    incarnation: int
    version: int
    doing: str
    start: datetime
    end: datetime


@record
class ReplicaCell(Answer):
    """Seconds of one stretch that were spent on one thing."""

    attempt: int
    replica: int
    doing: str
    start: datetime
    seconds: float


@record
class Timeline(Answer):
    """`spans`; or, where there would be too many, `cells` of `cell_s` seconds."""

    since: datetime
    until: datetime
    spans: list[ReplicaSpan]
    cells: list[ReplicaCell]
    cell_s: int


@record
class Metrics(Answer):
    """`series`: by name, [step, value]; sampled series also have `bands`: [step, lowest, highest]."""

    cursor: int
    series: dict[str, list[Any]]
    bands: dict[str, Any]
    more: bool


@record
class LogLine(Answer):
    at: datetime
    attempt: int
    component: str
    level: str
    message: str


@record
class LogLines(Answer):
    lines: list[LogLine]
    cursor: int
    more: bool
    num_dropped: int
    components: list[str]


@record
class Rollout(Answer):
    """One trajectory, its texts perhaps cut; `jobs.rollout` gives it whole."""

    attempt: int
    step: int
    prompt_ordinal: int
    sample: int
    version: int
    staleness: int
    num_tokens: int
    reward: float
    advantage: float
    prompt: str
    response: str
    remark: str


@record
class Smaller(Answer):
    devices: int
    fewer: int
    replicas: int


@record
class Wait(Answer):
    reason: str
    message: str
    position: int | None
    starts_at: datetime | None
    starts_with_fewer: Smaller | None
    starts_as_preemptible: bool


@record
class SaidLine(Answer):
    at: datetime
    component: str
    level: str
    message: str


@record
class Evidence(Answer):
    exit_reason: str = ""
    phase: str = ""
    step: int = 0
    faults: list[str] = field(default_factory=list)
    lines: list[SaidLine] = field(default_factory=list)
    log_tail: str = ""


@record
class Failure(Answer):
    failure_class: str
    cause: str
    advice: str
    attempt: int
    evidence: Evidence
    resume_step: int | None


@record
class Explanation(Answer):
    job: str
    state: str
    reason: str
    message: str
    evaluated_at: datetime | None
    waiting: Wait | None
    failure: Failure | None


@record
class Evaluation(Answer):
    """What a job that only evaluates said of a checkpoint."""

    job: str
    at: datetime
    environment: str
    prompts: int
    reward_mean: float
    reward_std: float
    length_mean: float


@record
class Checkpoint(Answer):
    id: str
    job: str
    attempt: int
    step: int
    version: int
    state: str
    message: str
    num_bytes: int
    metrics: dict[str, float]
    pinned: bool
    created_at: datetime
    expires_at: datetime | None
    evaluations: list[Evaluation]


@record
class DownloadFile(Answer):
    name: str
    num_bytes: int
    sha256: str


@record
class Download(Answer):
    """A link that is good for a few minutes, and what is behind it."""

    url: str
    expires_at: datetime
    filename: str
    num_bytes: int
    files: list[DownloadFile]


@record
class ModelVersion(Answer):
    model: str
    number: int
    checkpoint: str
    note: str
    created_at: datetime
    created_by: str
    lineage: dict[str, Any]


@record
class Model(Named):
    created_at: datetime


@record
class ModelWithVersions(Model):
    versions: list[ModelVersion]


@record
class Quota(Answer):
    """In devices; a limit of None is none."""

    nominal: int
    borrow_limit: int | None
    lend_limit: int | None
    weight: float
    used: int
    borrowed: int


@record
class Pool(Named):
    flavor: str
    capacity: int
    is_open: bool
    reserved: int
    quota: Quota


@record
class PoolQuota(Quota):
    pool: str
    pool_name: str
    capacity: int


@record
class Holder(Answer):
    team: str
    job: str | None
    name: str | None
    state: str
    devices: int
    elastic_devices: int
    preemptible: bool
    since: datetime


@record
class InLine(Answer):
    position: int
    team: str
    job: str | None
    name: str | None
    devices: int
    reason: str
    queued_at: datetime


@record
class Queue(Answer):
    pool: str
    name: str
    capacity: int
    is_open: bool
    free: int
    used: int
    used_by_others: int
    share: float
    evaluated_at: datetime | None
    holders: list[Holder]
    waiting: list[InLine]
    num_waiting: int
    has_more: bool


@record
class Budget(Answer):
    gpu_seconds: int | None
    spent: float
    committed: float
    left: float | None


@record
class Kinds(Answer):
    """Device-seconds. The five kinds add up to `held`; `billed` is `held` less `credited`."""

    held: float
    startup: float
    useful: float
    stale: float
    fault: float
    idle: float
    credited: float
    billed: float


@record
class UsageGroup(Answer):
    group: str
    label: str
    seconds: Kinds


@record
class Usage(Answer):
    group_by: str
    first: date
    last: date
    as_of: datetime
    total: Kinds
    data: list[UsageGroup]
    has_more: bool = False
    next_after: str | None = None


@record
class JobUsage(Answer):
    as_of: datetime
    total: Kinds
