"""laminar logs, events, metrics, trajectories."""

from collections.abc import Sequence

import click
from rich.text import Text

from ..answers.telemetry import Trajectory
from .commands import laminar, with_session
from .completing import JOB
from .rendering import number, plain, table
from .session import INTERRUPTED, Session
from .watching import event_text

LEVEL_STYLES = {"warning": "yellow", "error": "red", "debug": "dim"}


@laminar.command("events")
@click.argument("job_id", metavar="JOB", type=JOB)
@click.option("-f", "--follow", is_flag=True, help="Stream new events until the job has ended.")
@click.option("--after", default=0, type=click.IntRange(0), help="Only events after this number.")
@click.pass_context
def events(context: click.Context, job_id: str, follow: bool, after: int) -> None:
    """List the events of a job, oldest first."""
    session: Session = context.find_root().obj
    seen = after
    try:
        for event in session.client.jobs.events(job_id, after=after, follow=follow):
            seen = event.seq
            session.line(event)
            session.show(f"{event.seq:>4}  {event.at.astimezone():%Y-%m-%d %H:%M:%S}  {event_text(event)}")
    except KeyboardInterrupt:
        session.note(f"To continue: laminar events {job_id} --follow --after {seen}")
        context.exit(INTERRUPTED)


@laminar.command("logs")
@click.argument("job_id", metavar="JOB", type=JOB)
@click.option("-f", "--follow", is_flag=True, help="Stream new lines until the job has ended.")
@click.option("--component", help="Only this part, such as driver or rollout-0.")
@click.option("--level", type=click.Choice(["debug", "info", "warning", "error"]), help="This level and above.")
@click.option("--grep", "q", metavar="TEXT", help="Only lines with this text, ignoring case.")
@click.option(
    "-n", "--tail", default=200, show_default=True, type=click.IntRange(1, 2_000), help="Approximate number of lines."
)
@with_session
def logs(
    session: Session,
    job_id: str,
    follow: bool,
    component: str | None,
    level: str | None,
    q: str | None,
    tail: int,
) -> None:
    """Show the log lines of a job's parts, newest last."""
    for line in session.client.jobs.logs(job_id, component=component, level=level, q=q, tail=tail, follow=follow):
        session.line(line)
        head = f"{line.at.astimezone():%H:%M:%S} {plain(line.component)} "
        session.show(Text.assemble((head, "dim"), (plain(line.message), LEVEL_STYLES.get(line.level, ""))))


@laminar.command("metrics")
@click.argument("job_id", metavar="JOB", type=JOB)
@click.argument("names", nargs=-1)
@click.option(
    "--points",
    default=20,
    show_default=True,
    type=click.IntRange(2, 2_000),
    help="Maximum number of points per series.",
)
@with_session
def metrics(session: Session, job_id: str, names: Sequence[str], points: int) -> None:
    """Show a job's series: without NAMES the newest value of each, else their points, downsampled by the server."""
    found = session.client.jobs.metrics(job_id, names=names, max_points=points)
    session.document(found)
    if not names:
        rows = [(name, int(line[-1][0]), number(line[-1][1])) for name, line in sorted(found.series.items()) if line]
        session.show(table("series", "step", "value", rows=rows, numbers=("step", "value")))
        return
    for name, line in found.series.items():
        points_of = [(int(step), number(value)) for step, value in line]
        session.show(table("step", name, rows=points_of, numbers=("step", name)))


@laminar.command("trajectories")
@click.argument("job_id", metavar="JOB", type=JOB)
@click.option("--search", help='Only with these words in any turn; supports "a phrase", -exclude, prefix*.')
@click.option("--step", type=click.IntRange(0), help="Only this step.")
@click.option("--outcome", help="Only with this outcome.")
@click.option("--end", help="Only with this end: trained, filtered, dropped_stale or failed.")
@click.option("--min-reward", type=float)
@click.option("--max-reward", type=float)
@click.option("-n", "most", default=20, show_default=True, type=click.IntRange(1), help="Maximum number of rows.")
@with_session
def trajectories(
    session: Session,
    job_id: str,
    search: str | None,
    step: int | None,
    outcome: str | None,
    end: str | None,
    min_reward: float | None,
    max_reward: float | None,
    most: int,
) -> None:
    """List trajectories, newest step first. The key needs the scope trajectories:read."""
    given = session.client.jobs.trajectories(
        job_id, q=search, step=step, outcome=outcome, end=end, min_reward=min_reward, max_reward=max_reward, most=most
    )
    found = list(given)
    session.document(found)
    if search is not None:
        places = [(each.step, number(each.reward), each.trajectory_id, _passage(each)) for each in found]
        session.show(table("step", "reward", "trajectory", "found", rows=places, numbers=("step", "reward")))
        return
    rows = [
        (each.step, number(each.reward), each.staleness, each.num_tokens, each.prompt, each.response, each.remark)
        for each in found
    ]
    columns = ("step", "reward", "stale", "tokens", "prompt", "response", "remark")
    session.show(table(*columns, rows=rows, numbers=columns[:4]))


def _passage(found: Trajectory) -> str:
    if found.passage is None:
        return ""
    where = found.passage.place if found.passage.turn is None else f"turn {found.passage.turn}"
    return f"{where}: …{found.passage.before}{found.passage.match}{found.passage.after}…"
