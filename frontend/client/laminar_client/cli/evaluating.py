"""laminar evaluate: the reward of a checkpoint on held-out prompts."""

from collections.abc import Sequence
from typing import Any

import click
from rich.text import Text

from ..answers.checkpoints import Checkpoint, Evaluation
from ..answers.jobs import Job
from .commands import laminar
from .completing import CHECKPOINT
from .jobs import outcome_code, page_of
from .rendering import plain, with_error
from .session import Session, wrong_use
from .specs import with_setting
from .watching import watch_to_its_end


@laminar.command("evaluate")
@click.argument("checkpoint_id", metavar="CHECKPOINT", type=CHECKPOINT)
@click.option("--prompts", type=click.IntRange(1), help="Number of held-out prompts (default: as its job).")
@click.option("--samples", type=click.IntRange(1), help="Answers per prompt: k of avg@k and pass@k.")
@click.option("--temperature", type=click.FloatRange(0), help="0 is greedy (default: as its job).")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Nucleus sampling (default: as its job).")
@click.option("--environment", metavar="NAME", help="Environment (default: as its job).")
@click.option("--dataset", metavar="FILE", help="Questions with answers: a file on the cluster (environment jsonl).")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="A setting of --environment.")
@click.option(
    "--replicas", default=1, show_default=True, type=click.IntRange(1), help="Replicas that share the prompts."
)
@click.option("--pool", help="Pool (default: as its job).")
@click.option("--name", help="Name of the evaluation.")
@click.option("--idempotency-key", metavar="TEXT", help="Repeated requests with the same key start only one job.")
@click.option("--wait/--no-wait", default=False, help="Wait for the result and print it.")
@click.option("--watch", is_flag=True, help="Show progress while waiting.")
@click.pass_context
def evaluate(
    context: click.Context,
    checkpoint_id: str,
    prompts: int | None,
    samples: int | None,
    temperature: float | None,
    top_p: float | None,
    environment: str | None,
    dataset: str | None,
    params: Sequence[str],
    replicas: int,
    pool: str | None,
    name: str | None,
    idempotency_key: str | None,
    wait: bool,
    watch: bool,
) -> None:
    """Evaluate a checkpoint: starts a job that answers held-out prompts with its weights and does not train. Settings
    default to those of the checkpoint's own job."""
    session: Session = context.find_root().obj
    job = session.client.checkpoints.evaluate(
        checkpoint_id,
        prompts=prompts,
        samples=samples,
        temperature=temperature,
        top_p=top_p,
        environment=_environment(environment, dataset, params),
        replicas=replicas,
        pool=pool,
        name=name,
        idempotency_key=idempotency_key,
    )
    if not (wait or watch):
        session.document(job)
    session.show(Text(plain(job.id)))
    session.note(page_of(session, job))
    if wait or watch:
        context.exit(_until_it_is_over(session, job, checkpoint_id, watch=watch))


def _until_it_is_over(session: Session, job: Job, checkpoint_id: str, *, watch: bool) -> int:
    code = watch_to_its_end(session, job.id) if watch else outcome_code(session.client.jobs.wait(job.id))
    checkpoint = session.client.checkpoints.show(checkpoint_id)
    session.line(checkpoint) if watch else session.document(checkpoint)
    found = next((each for each in checkpoint.evaluations if each.job == job.id), None)
    if found is not None:
        session.show(result_of(checkpoint, found))
    return code


def result_of(checkpoint: Checkpoint, found: Evaluation) -> str:
    sentence = f"step {checkpoint.step}: reward {with_error(found.reward_mean, found.reward_error)}"
    if found.pass_rate is not None:
        sentence += f", pass@{found.samples} {with_error(found.pass_rate, found.pass_error)}"
    return f"{sentence}, over {found.prompts} prompts"


def _environment(name: str | None, dataset: str | None, params: Sequence[str]) -> dict[str, Any] | None:
    if dataset is not None and name not in (None, "jsonl"):
        wrong_use(f"--dataset needs the environment jsonl, not {name}.")
    if name is None and dataset is None:
        if params:
            wrong_use("--param needs --environment or --dataset.")
        return None
    made: dict[str, Any] = {"name": name or "jsonl", "params": {} if dataset is None else {"data": dataset}}
    for param in params:
        made = with_setting(made, f"params.{param}")
    return made
