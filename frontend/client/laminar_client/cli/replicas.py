"""laminar faults, timeline."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import click

from ..answers.telemetry import Timeline
from .commands import laminar, with_session
from .completing import JOB
from .rendering import lasted, table, when
from .session import Session


@laminar.command("faults")
@click.argument("job_id", metavar="JOB", type=JOB)
@click.option("-n", "most", default=50, show_default=True, type=click.IntRange(1, 100), help="Maximum number of rows.")
@with_session
def faults(session: Session, job_id: str, most: int) -> None:
    """List the faults that the engine detected and repaired, newest first."""
    found = session.client.jobs.faults(job_id, most=most)
    session.document(found)
    rows = [(when(each.at), each.attempt, each.component, each.message, each.action) for each in found]
    session.show(table("when", "attempt", "part", "what happened", "what was done", rows=rows, numbers=("attempt",)))


@laminar.command("timeline")
@click.argument("job_id", metavar="JOB", type=JOB)
@click.option("--minutes", default=5.0, show_default=True, type=click.FloatRange(0.1), help="The newest minutes.")
@with_session
def timeline(session: Session, job_id: str, minutes: float) -> None:
    """Show how each replica spent its time, in shares; --json has every span."""
    job = session.client.jobs.show(job_id)
    until = job.finished_at or datetime.now(UTC)
    found = session.client.jobs.timeline(job_id, since=until - timedelta(minutes=minutes), until=until)
    session.document(found)
    spent = _spent(found)
    kinds = sorted({doing for by_kind in spent.values() for doing in by_kind})
    rows = [
        (replica, lasted(sum(by_kind.values())), *(_share(by_kind, kind) for kind in kinds))
        for replica, by_kind in sorted(spent.items())
    ]
    if rows:
        session.show(table("replica", "seen", *kinds, rows=rows, numbers=("replica", "seen", *kinds)))
    else:
        session.note("No reports of replicas in this period.")


def _spent(found: Timeline) -> Mapping[int, Mapping[str, float]]:
    """Seconds by replica and activity."""
    spent: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for span in found.spans:
        spent[span.replica][span.doing] += (span.end - span.start).total_seconds()
    for cell in found.cells:
        spent[cell.replica][cell.doing] += cell.seconds
    return spent


def _share(by_kind: Mapping[str, float], kind: str) -> str:
    whole = sum(by_kind.values())
    return f"{by_kind.get(kind, 0.0) / whole:.0%}" if whole else "–"
