"""Messages for the reasons why a job waits. They contain nothing that goes stale while the reason stays the same."""

from datetime import datetime

from backend.pools.decision.views import WaitingReason
from backend.pools.models import ResourcePool


def waiting_message(
    reason: WaitingReason,
    *,
    devices: int,
    pool: ResourcePool,
    not_before: datetime | None = None,
    budget_of: str = "",
) -> str:
    """`devices`: free devices that the job needs to start. `budget_of`: owner of the budget that blocks the job, if it
    is not the team."""
    needed = f"The job needs {devices} device{'s' if devices != 1 else ''}"
    match reason:
        case WaitingReason.EXCEEDS_MAX:
            return f"{needed}: more than pool {pool.name} has or your team may use."
        case WaitingReason.POOL_CLOSED:
            return f"Pool {pool.name} is closed: running jobs finish, and none start until it is opened again."
        case WaitingReason.MAINTENANCE:
            return "The site is in maintenance: running jobs continue, and none start until it ends."
        case WaitingReason.NO_SANDBOX:
            return (
                "Its environment runs code in a sandbox, which does not work on any node of pool "
                f"{pool.name}. The job takes no devices until an operator fixes this."
            )
        case WaitingReason.BACKOFF_UNTIL:
            when = f" at {not_before:%H:%M:%S} UTC" if not_before else " later"
            return f"The last start failed. The next attempt may start{when}."
        case WaitingReason.BUDGET:
            whose = f"the budget of {budget_of}" if budget_of else "your team's budget"
            return f"The job's longest possible run exceeds what is left of {whose} for this month."
        case WaitingReason.TEAM_CEILING:
            return f"{needed}; your team's quota in pool {pool.name} has fewer left."
        case WaitingReason.BEHIND_PRIORITY:
            return "Your team's devices are reserved for a job ahead of it in your team's queue."
        case WaitingReason.RESERVED_BY_OTHERS:
            return f"{needed}. They are free in pool {pool.name}, but other teams do not lend them."
        case WaitingReason.POOL_FULL:
            return f"{needed}; fewer are free in pool {pool.name} right now."
        case WaitingReason.BACKFILL_HOLD:
            return "The free devices are reserved for an older, larger job."
        case WaitingReason.PREEMPTION_IN_PROGRESS:
            return f"{needed}, which are being freed for it."
        case WaitingReason.NOT_EVALUATED_YET:
            return "Waiting for the scheduler."
