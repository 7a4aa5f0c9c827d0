"""Pools of devices: quotas, holders and queues."""

from datetime import datetime

from .record import Answer, Named, record


@record
class Quota(Answer):
    """In devices; None means no limit."""

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
    device_gb: int | None = None


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
    reason: str | None
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
