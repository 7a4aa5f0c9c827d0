"""laminar preview, submit, retry, templates, projects."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from rich.text import Text

from ..answers.jobs import Job
from .commands import laminar, with_session
from .completing import CHECKPOINT, JOB, TEMPLATE
from .jobs import page_of
from .rendering import json_text, plain, table
from .session import Session, wrong_use
from .specs import spec_from, with_setting
from .watching import watch_to_its_end

F = TypeVar("F", bound=Callable[..., Any])


def _spec_options(function: F) -> F:
    for option in reversed(
        [
            click.argument("spec_file", metavar="[SPEC]", required=False, type=click.Path()),
            click.option("--template", type=TEMPLATE, metavar="NAME", help="Start from this template."),
            click.option("--set", "settings", multiple=True, metavar="A.B=VALUE", help="Change a value of the spec."),
            click.option("--name", help="Name of the job."),
            click.option("--pool", help="Name of the pool (optional if there is only one)."),
        ]
    ):
        function = option(function)
    return function


@laminar.command("preview")
@_spec_options
@with_session
def preview(
    session: Session,
    spec_file: str | None,
    template: str | None,
    settings: Sequence[str],
    name: str | None,
    pool: str | None,
) -> None:
    """Check a spec, and show whether it would start now and fits the devices. SPEC is a .json, .toml or .yaml file, or
    - for stdin."""
    spec = spec_from(spec_file, template, settings, name, lambda: session.client)
    found = session.client.jobs.preview(spec, pool=pool)
    session.document(found)
    head = ("would start now", "green") if found.starts_at_once else ("would wait", "yellow")
    session.show(Text.assemble(head, f": {found.devices} devices in {plain(found.pool)}"))
    if not found.starts_at_once:
        session.show(Text(f"  {plain(found.message)} [{plain(found.reason)}]"))
    session.show(f"  {found.trajectories_per_step} trajectories per step")
    if found.fit is not None:
        session.show(Text(f"  {plain(found.fit.message)}", "" if found.fit.fits else "yellow"))
    if found.cost is not None:
        cost, currency = found.cost, plain(found.cost.currency)
        amounts = f"{plain(cost.an_hour)} {currency} per hour, {plain(cost.at_most)} {currency} for the maximum runtime"
        session.show(Text(f"  costs {amounts}"))
    for hint in found.hints:
        session.show(Text(f"  {plain(hint.message)}", "yellow"))
    if found.presets:
        rows = [(each.path, "empty" if each.value is None else str(each.value), each.reason) for each in found.presets]
        session.show(table("preset", "value", "because", rows=rows))


@laminar.command("submit")
@_spec_options
@click.option("--project", help="Id or name of the project (optional if there is only one).")
@click.option("--from", "start_from", type=CHECKPOINT, metavar="CHECKPOINT", help="Start from this checkpoint.")
@click.option("--idempotency-key", metavar="TEXT", help="Repeated requests with the same key submit only one job.")
@click.option("--watch", is_flag=True, help="Show progress until the job has ended.")
@click.pass_context
def submit(
    context: click.Context,
    spec_file: str | None,
    template: str | None,
    settings: Sequence[str],
    name: str | None,
    pool: str | None,
    project: str | None,
    start_from: str | None,
    idempotency_key: str | None,
    watch: bool,
) -> None:
    """Submit a job. SPEC is a .json, .toml or .yaml file, or - for stdin."""
    session: Session = context.find_root().obj
    spec = spec_from(spec_file, template, settings, name, lambda: session.client)
    job = session.client.jobs.submit(
        spec,
        project=_project_id(session, project),
        pool=pool,
        start_from=start_from,
        idempotency_key=idempotency_key,
    )
    _told_and_watched(context, session, job, watch=watch)


@laminar.command("retry")
@click.argument("job_id", metavar="JOB", type=JOB)
@click.option(
    "--from",
    "start_from",
    type=CHECKPOINT,
    metavar="CHECKPOINT",
    help="A checkpoint's id, or `start` (default: the newest).",
)
@click.option("--set", "settings", multiple=True, metavar="A.B=VALUE", help="Change a value of the spec.")
@click.option("--watch", is_flag=True, help="Show progress until the job has ended.")
@click.pass_context
def retry(context: click.Context, job_id: str, start_from: str | None, settings: Sequence[str], watch: bool) -> None:
    """Create a new job from an ended one; it continues from the newest checkpoint."""
    session: Session = context.find_root().obj
    changes: dict[str, Any] = {}
    for setting in settings:
        changes = with_setting(changes, setting)
    job = session.client.jobs.retry(job_id, start_from=start_from, changes=changes or None)
    _told_and_watched(context, session, job, watch=watch)


def _told_and_watched(context: click.Context, session: Session, job: Job, *, watch: bool) -> None:
    if not watch:
        session.document(job)
    else:
        session.line(job)
    session.show(Text(plain(job.id)))
    session.note(page_of(session, job))
    if watch:
        context.exit(watch_to_its_end(session, job.id))


def _project_id(session: Session, wanted: str | None) -> str:
    choices = session.client.team.projects()
    if wanted is None and len(choices) == 1:
        return choices[0].id
    found = [each for each in choices if wanted in (each.id, each.name)]
    if len(found) != 1:
        names = ", ".join(f"{plain(each.name)} ({each.id})" for each in choices) or "none yet"
        wrong_use(f"Specify one of your team's projects with --project: {names}.")
    return found[0].id


@laminar.command("templates")
@click.argument("name", required=False, type=TEMPLATE)
@with_session
def templates(session: Session, name: str | None) -> None:
    """List templates; with NAME, print its spec as JSON, to save and edit."""
    if name is not None:
        click.echo(json_text(session.client.team.template(name).spec, indent=2))
        return
    found = session.client.team.templates()
    session.document(found)
    session.show(table("name", "title", "about", rows=[(each.name, each.title, each.about) for each in found]))
