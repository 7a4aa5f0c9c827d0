"""The reason why a job waits, in a sentence. Says nothing that goes stale while the reason stays the same."""

from datetime import datetime

from backend.pools.models import ResourcePool
from backend.pools.views import WaitingReason


def waiting_message(
    reason: WaitingReason,
    *,
    devices: int,
    pool: ResourcePool,
    not_before: datetime | None = None,
    budget_of: str = "",
) -> str:
    """`devices`: what must be free at once for the job to start. `budget_of`: whose budget is in the way, if it is not
    the team's."""
    needed = f"The job needs {devices} device{'s' if devices != 1 else ''}"
    match reason:
        case WaitingReason.EXCEEDS_MAX:
            return f"{needed}: more than pool {pool.name} has or your team may ever use in it."
        case WaitingReason.POOL_CLOSED:
            return f"Pool {pool.name} is closed: what runs may end, and nothing starts until it is opened again."
        case WaitingReason.MAINTENANCE:
            return "The site is in maintenance: what runs goes on, and nothing starts until it is over."
        case WaitingReason.NO_SANDBOX:
            return (
                "Its environment runs code in a sandbox, which starts on none of the nodes of pool "
                f"{pool.name}: an administrator must mend them. It takes no devices until then."
            )
        case WaitingReason.BACKOFF_UNTIL:
            when = f" at {not_before:%H:%M:%S} UTC" if not_before else " later"
            return f"Its last start failed; it may try again{when}."
        case WaitingReason.BUDGET:
            whose = f"the budget of {budget_of}" if budget_of else "your team's budget"
            return f"Its longest run would cost more than is left of {whose} for this month."
        case WaitingReason.TEAM_CEILING:
            return f"{needed}; your team's quota in pool {pool.name} has fewer left."
        case WaitingReason.BEHIND_PRIORITY:
            return "What your team may use is being kept for a job that comes before it in your team's line."
        case WaitingReason.WAITING_LENDER_FENCE:
            return f"{needed}; so many are free in pool {pool.name}, but other teams keep them for themselves."
        case WaitingReason.POOL_FULL:
            return f"{needed}; fewer are free in pool {pool.name} right now."
        case WaitingReason.BACKFILL_HOLD:
            return "The free devices are being kept for an older, bigger job."
        case WaitingReason.PREEMPTION_IN_PROGRESS:
            return f"{needed}, and they are being freed for it."
        case WaitingReason.NOT_EVALUATED_YET:
            return "The scheduler has not looked at this job yet."
