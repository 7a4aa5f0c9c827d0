"""laminar list, show, explain, cancel, pause, resume, kill, wait, attempts."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from ..answers.explanations import Explanation, Failure, Wait
from ..answers.jobs import Job
from .commands import laminar, with_session
from .completing import JOB
from .rendering import ago, cell, facts, lasted, plain, state_text, table, when
from .session import FAILED, OK, Session


@laminar.command("list")
@click.option("--state", multiple=True, help="Only jobs in this state. Can be repeated.")
@click.option("--project", help="Only jobs of this project.")
@click.option("--tag", multiple=True, help="Only jobs with this tag. If repeated, only jobs with all tags.")
@click.option("--name", "q", help="Only jobs with this in their name.")
@click.option("-n", "most", default=20, show_default=True, type=click.IntRange(1), help="Maximum number of rows.")
@with_session
def list_jobs(
    session: Session, state: Sequence[str], project: str | None, tag: Sequence[str], q: str | None, most: int
) -> None:
    """List the team's jobs, newest first."""
    jobs = list(session.client.jobs.each(state=state, project=project, tag=tag, q=q, most=most))
    session.document(jobs)
    rows = [
        (
            job.id,
            state_text(job.state, job.reason),
            job.name,
            f"{job.progress.done}/{job.progress.total} {plain(job.progress.unit)}",
            job.devices,
            ago(job.created_at),
        )
        for job in jobs
    ]
    if rows:
        session.show(table("id", "state", "name", "done", "devices", "made", rows=rows, numbers=("done", "devices")))
    else:
        session.note("No matching jobs. To submit one, run `laminar submit`.")


@laminar.command("show")
@click.argument("job_id", metavar="JOB", type=JOB)
@with_session
def show(session: Session, job_id: str) -> None:
    """Show one job."""
    job = session.client.jobs.show(job_id)
    session.document(job)
    session.show(job_facts(session, job))


def job_facts(session: Session, job: Job) -> Table:
    pairs = {
        "id": job.id,
        "name": job.name,
        "state": state_text(job.state, job.reason),
        "message": job.message or None,
        "failure": job.failure_class or None,
        "step": f"{job.step} of {job.steps}" if job.steps else f"evaluates step {job.step}",
        "answered": None if job.steps else f"{job.progress.done} of {job.progress.total} prompts",
        "devices": f"{job.devices} in {job.pool}",
        "project": job.project,
        "by": job.created_by,
        "made": f"{when(job.created_at)} ({ago(job.created_at)})",
        "ran": _ran(job),
        "page": page_of(session, job),
    }
    return facts({name: value for name, value in pairs.items() if value is not None})


def page_of(session: Session, job: Job) -> str:
    return f"{session.client.url}{job.links.page}"


def _ran(job: Job) -> str | None:
    if job.started_at is None:
        return None
    return lasted(((job.finished_at or datetime.now(UTC)) - job.started_at).total_seconds())


@laminar.command("attempts")
@click.argument("job_id", metavar="JOB", type=JOB)
@with_session
def attempts(session: Session, job_id: str) -> None:
    """List the attempts of a job, oldest first."""
    found = session.client.jobs.attempts(job_id)
    session.document(found)
    rows = [(each.n, when(each.created_at), when(each.ended_at), each.outcome, each.message) for each in found]
    session.show(table("n", "began", "ended", "outcome", "message", rows=rows))


def _verb(name: str, help_text: str, ask: Callable[[Session, str], Job]) -> None:
    @laminar.command(name, help=help_text)
    @click.argument("job_ids", metavar="JOB...", type=JOB, nargs=-1, required=True)
    @with_session
    def verb(session: Session, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            job = ask(session, job_id)
            session.line(job)
            session.show(Text.assemble(plain(job.id), " is ", state_text(job.state)))


@laminar.command("cancel")
@click.argument("job_ids", metavar="JOB...", type=JOB, nargs=-1, required=True)
@click.pass_context
def cancel(context: click.Context, job_ids: Sequence[str]) -> None:
    """Cancel jobs. A running job saves no checkpoint. An ended or unknown job does not stop the others, but sets the
    exit code to 1."""
    session: Session = context.find_root().obj
    if len(job_ids) == 1:
        job = session.client.jobs.cancel(job_ids[0])
        session.line(job)
        session.show(Text.assemble(plain(job.id), " is ", state_text(job.state)))
        return
    results = session.client.jobs.cancel_many(job_ids)
    for each in results:
        session.line(each)
        session.show(f"{plain(each.id)}: {_CANCELLED.get(each.result, plain(each.result))}")
    context.exit(FAILED if any(each.result in ("finished", "not_found") for each in results) else OK)


_CANCELLED = {
    "cancelled": "cancelled, or stopping",
    "already": "already stopping or cancelled",
    "finished": "had already ended",
    "not_found": "not found",
}

_verb(
    "pause", "Pause jobs: save a checkpoint and release the devices.", lambda session, id: session.client.jobs.pause(id)
)
_verb("resume", "Return paused jobs to the queue.", lambda session, id: session.client.jobs.resume(id))
_verb("kill", "For admins: end jobs at once, without a checkpoint.", lambda session, id: session.client.jobs.kill(id))


@laminar.command("wait")
@click.argument("job_id", metavar="JOB", type=JOB)
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), metavar="SECONDS", help="Give up after this time.")
@click.pass_context
def wait(context: click.Context, job_id: str, timeout_s: float | None) -> None:
    """Wait until a job has ended. The exit code is its outcome."""
    session: Session = context.find_root().obj
    job = session.client.jobs.wait(job_id, timeout_s=timeout_s)
    session.document(job)
    session.show(
        Text.assemble(plain(job.id), " has ", state_text(job.state), f": {plain(job.message)}" * bool(job.message))
    )
    context.exit(outcome_code(job))


def outcome_code(job: Job) -> int:
    return OK if job.state == "succeeded" else FAILED


@laminar.command("explain")
@click.argument("job_id", metavar="JOB", type=JOB)
@with_session
def explain(session: Session, job_id: str) -> None:
    """Show why a job waits and what would let it start, or why it failed and what to do."""
    found = session.client.jobs.explain(job_id)
    session.document(found)
    session.show(Text.assemble(plain(found.job), " is ", state_text(found.state), f": {_sentence(found)}"))
    for name, value in (_of_waiting(found.waiting) if found.waiting else []) + (
        _of_failure(found.failure) if found.failure else []
    ):
        session.show(Text.assemble((f"  {name}: ", "bold"), plain(value, lines=True)))


def _sentence(found: Explanation) -> str:
    said = plain(found.message) or "no details available"
    return f"{said} [{plain(found.reason)}]" if found.reason else said


def _of_waiting(wait: Wait) -> list[tuple[str, str]]:
    rows = [("queue position", f"{wait.position}")] if wait.position is not None else []
    if wait.starts_at is not None:
        rows.append(("at the latest", f"about {when(wait.starts_at)}, if no other job goes ahead"))
    if (less := wait.starts_with_fewer) is not None:
        replicas = "1 replica" if less.replicas == 1 else f"{less.replicas} replicas"
        rows.append(("would start now", f"with {less.devices} devices ({replicas}, {less.fewer} fewer)"))
    if wait.starts_as_preemptible:
        rows.append(("would start now", "as preemptible: --set placement.preemptible=true"))
    return rows


def _of_failure(failure: Failure) -> list[tuple[str, str]]:
    rows = [("class", failure.failure_class), ("cause", failure.cause), ("advice", failure.advice)]
    if failure.resume_step is not None:
        rows.append(("a retry resumes", f"after step {cell(failure.resume_step)}"))
    rows += [("fault", each) for each in failure.evidence.faults]
    if failure.evidence.exit_reason:
        rows.append(("it ended", failure.evidence.exit_reason))
    rows += [(each.component, f"{each.at.astimezone():%H:%M:%S} {each.message}") for each in failure.evidence.lines]
    if failure.evidence.log_tail and not failure.evidence.lines:
        rows.append(("last lines", "\n" + failure.evidence.log_tail))
    return rows
