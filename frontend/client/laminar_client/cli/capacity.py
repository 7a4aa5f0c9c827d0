"""laminar queue, quota, usage."""

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal

import click
from rich.text import Text

from ..answers.pools import Pool, Queue
from ..answers.usage import Cost, Kinds
from .commands import laminar, with_session
from .completing import JOB
from .rendering import ago, facts, lasted, plain, state_text, table
from .session import Session, wrong_use

KINDS = ("useful", "stale", "fault", "startup", "idle", "held", "billed")
HOUR_S = 3_600


@laminar.command("queue")
@click.argument("pool", required=False)
@click.option("--mine", is_flag=True, help="Show only your team's waiting jobs, with their positions.")
@with_session
def queue(session: Session, pool: str | None, mine: bool) -> None:
    """Show the holders of a pool's devices, and the waiting jobs in order."""
    found = session.client.team.queue(_pool_named(session, pool).id, mine=mine)
    session.document(found)
    state = "" if found.is_open else ", closed"
    session.show(f"{plain(found.name)}: {found.free} of {found.capacity} devices are free{state}; "
                 f"yours {found.used}, others' {found.used_by_others}")  # fmt: skip
    _show_line(session, found)


def _show_line(session: Session, found: Queue) -> None:
    if found.holders:
        holders = [
            (each.job or plain(each.team), state_text(each.state), each.devices, ago(each.since), each.name)
            for each in found.holders
        ]
        session.show(table("id", "state", "devices", "since", "name", rows=holders, numbers=("devices",)))
    if found.waiting:
        waiting = [
            (each.position, each.job or plain(each.team), each.devices, each.reason, ago(each.queued_at), each.name)
            for each in found.waiting
        ]
        columns = ("place", "id", "devices", "why it waits", "since", "name")
        session.show(table(*columns, rows=waiting, numbers=("place", "devices")))
    else:
        session.show("No jobs are waiting.")


def _pool_named(session: Session, wanted: str | None) -> Pool:
    pools = session.client.team.pools()
    found = [each for each in pools if wanted is None or wanted in (each.id, each.name)]
    if len(found) != 1:
        names = ", ".join(plain(each.name) for each in pools) or "none yet"
        wrong_use(f"Specify one of your team's pools: {names}.")
    return found[0]


@laminar.command("quota")
@with_session
def quota(session: Session) -> None:
    """Show the team's quota in each pool, and its budget."""
    pools, budget = session.client.team.quota(), session.client.team.budget()
    session.document({"pools": pools, "budget": budget})
    rows = [
        (each.pool_name, each.used, each.nominal, each.borrowed, _limit(each.borrow_limit), each.weight, each.capacity)
        for each in pools
    ]
    columns = ("pool", "in use", "own", "borrowed", "may borrow", "weight", "capacity")
    session.show(table(*columns, rows=rows, numbers=columns[1:]))
    limit = "no limit" if budget.gpu_seconds is None else lasted(budget.gpu_seconds)
    left = "" if budget.left is None else f", {lasted(budget.left)} left"
    session.show(f"budget this month: {lasted(budget.spent)} spent, {lasted(budget.committed)} reserved, {limit}{left}"
                 " (device time)")  # fmt: skip


def _limit(value: int | None) -> str:
    return "all" if value is None else str(value)


@laminar.command("usage")
@click.argument("job_id", metavar="[JOB]", required=False, type=JOB)
@click.option(
    "--by", "group_by", type=click.Choice(["job", "day", "user", "project", "team", "key"]), default="job",
    show_default=True,
)  # fmt: skip
@click.option(
    "--from", "first", type=click.DateTime(["%Y-%m-%d"]), help="First day, UTC (default: first of this month)."
)
@click.option("--to", "last", type=click.DateTime(["%Y-%m-%d"]), help="Last day, UTC (default: today).")
@with_session
def usage(session: Session, job_id: str | None, group_by: str, first: datetime | None, last: datetime | None) -> None:
    """Show device-hours by kind and their cost, for a job or for the team this month."""
    if job_id is not None:
        of_job = session.client.jobs.usage(job_id)
        session.document(of_job)
        hours = {kind: _hours(of_job.total, kind) for kind in KINDS}
        session.show(
            facts(hours | ({"cost": _money(of_job.total_cost, with_currency=True)} if of_job.total_cost else {}))
        )
        return
    found = session.client.team.usage(group_by=group_by, first=_day(first), last=_day(last))
    session.document(found)
    rows: list[tuple[object, ...]] = [
        (each.label or each.group, *(_hours(each.seconds, kind) for kind in KINDS), *_costs(each.cost))
        for each in found.data
    ]
    rows.append(
        (Text("total", style="bold"), *(_hours(found.total, kind) for kind in KINDS), *_costs(found.total_cost))
    )
    columns = (*KINDS, *([found.total_cost.currency] if found.total_cost else []))
    session.show(table(group_by, *columns, rows=rows, numbers=columns))
    if found.has_more:
        session.note("More groups exist. To list all of them, use the Python client.")


def _costs(cost: Cost | None) -> list[str]:
    """The cost cell of a table row; empty if the site has no prices."""
    return [_money(cost)] if cost else []


def _money(cost: Cost, *, with_currency: bool = False) -> str:
    """The billed amount, rounded for display; --json has every digit."""
    return f"{Decimal(cost.billed):,.2f}" + (f" {cost.currency}" if with_currency else "")


def _day(moment: datetime | None) -> date | None:
    return None if moment is None else moment.date()


def _hours(kinds: Kinds, kind: str) -> str:
    values: Mapping[str, float] = {name: getattr(kinds, name) for name in KINDS}
    return f"{values[kind] / HOUR_S:.3f} h"
