"""Ceilings of a key: the most devices and GPU-hours that its jobs may hold and use.

    refuse_over_ceiling(key, devices=…, gpu_seconds=…, use_of=…)    in the transaction that creates the job

Invariants:
- exact in a race: the key's row is locked from before its use is counted until the new job exists, so of two jobs that
  fit alone but not together one is refused;
- devices: of all the key's jobs that have not ended, whether they hold devices or wait for some;
- GPU-hours: those reserved so far, plus the most that unended jobs may still use, so admitted jobs never exceed a
  ceiling. A ceiling does not stop a running job: max_runtime_s does.

The caller passes the measurement (jobs and reservations know it); the rule is here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from django.db import connection

from backend.accounts.models import ApiKey
from backend.errors import Conflict, Denied

_HOUR_S = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUse:
    devices: int
    gpu_seconds: float


class CeilingReached(Conflict):
    """This key has reached its ceiling."""

    code = "key_ceiling"


def refuse_over_ceiling(key: ApiKey, *, devices: int, gpu_seconds: float, use_of: Callable[[ApiKey], KeyUse]) -> None:
    """Raises `CeilingReached`. No query for a key without ceilings."""
    if key.max_devices is None and key.max_gpu_hours is None:
        return
    assert connection.in_atomic_block, "the lock must last until the job exists"
    ceilings = ApiKey.objects.select_for_update(no_key=True).get(pk=key.pk)
    use = use_of(key)
    if ceilings.max_devices is not None and use.devices + devices > ceilings.max_devices:
        raise CeilingReached(
            f"This job requests {devices} devices; the key's jobs hold or wait for {use.devices}, and its ceiling "
            f"max_devices is {ceilings.max_devices}. Wait for a job to end, cancel one, or use another key.",
            ceiling="max_devices",
            limit=ceilings.max_devices,
            in_use=use.devices,
        )
    if ceilings.max_gpu_hours is not None and use.gpu_seconds + gpu_seconds > float(ceilings.max_gpu_hours) * _HOUR_S:
        raise CeilingReached(
            f"This job may use up to {_hours(gpu_seconds)} GPU-hours; {_hours(use.gpu_seconds)} of this key's are used "
            f"or reserved for jobs that have not ended, and its ceiling max_gpu_hours is {ceilings.max_gpu_hours}. "
            "Lower max_runtime_s, wait for a job to end, or use another key.",
            ceiling="max_gpu_hours",
            limit=float(ceilings.max_gpu_hours),
            in_use=float(_hours(use.gpu_seconds)),
        )


def _hours(gpu_seconds: float) -> Decimal:
    return (Decimal(str(gpu_seconds)) / _HOUR_S).quantize(Decimal("0.01"))


def refuse_limited(key: ApiKey, deed: str) -> None:
    """Refuses a limited key an action whose result would not carry the key's limits."""
    if key.project_id or key.max_devices is not None or key.max_gpu_hours is not None:
        raise Denied(f"A key that is limited to a project, devices or GPU-hours {deed}.")
