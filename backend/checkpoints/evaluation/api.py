"""REST: evaluating a checkpoint. Parse, call a service, represent."""

from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from ninja import Router
from pydantic import Field

from backend.accounts.keys.bearer import MAY_WRITE, caller_of
from backend.api.idempotency import Key
from backend.api.limits.rate_limit import counted_at
from backend.api.problems import problems
from backend.borders.types import PathId
from backend.checkpoints.evaluation.evaluating import EvaluationWishes, evaluate_checkpoint, evaluation_spec
from backend.checkpoints.selectors import the_checkpoint
from backend.errors import FieldError
from backend.jobs.models import Job
from backend.jobs.rest.new_job import COUNTED_SUBMISSION, answer_with_new_job
from backend.jobs.rest.representations import JobOut
from backend.jobs.submitting.destination import the_only_pool
from backend.jobs.submitting.refusals import SpecRefused
from backend.jobs.submitting.submit import Submitter
from backend.pools.selectors import pools_of
from engine.spec.job import EnvironmentSpec, Name
from engine.spec.strict import Strict, Text

router = Router(tags=["Checkpoints"])


class EvaluateCheckpoint(Strict):
    """Settings of an evaluation. Defaults are those of the checkpoint's job."""

    name: Name | None = None
    prompts: int | None = Field(None, ge=1, le=65_536, description="Number of held-out prompts.")
    samples: int | None = Field(None, ge=1, le=256, description="Samples per prompt: k of avg@k and pass@k.")
    temperature: float | None = Field(None, ge=0, le=4, description="0: greedy, with one sample per prompt by default.")
    top_p: float | None = Field(
        None, gt=0, le=1, description="Nucleus sampling: the likeliest tokens with this total probability."
    )
    environment: EnvironmentSpec | None = Field(
        None, description="Default: the environment that the checkpoint was trained on."
    )
    replicas: int = Field(1, ge=1, le=4_096, description="Number of rollout replicas that share the prompts.")
    pool: Annotated[Text, Field(min_length=1, max_length=80)] | None = Field(
        None, description="Name of the pool. Default: the pool of the checkpoint's job."
    )
    max_runtime_s: int | None = Field(None, ge=10, le=30 * 86_400)


@router.post(
    "/checkpoints/{checkpoint_id}/evaluate",
    auth=MAY_WRITE,
    throttle=COUNTED_SUBMISSION,
    response={202: JobOut} | problems(400, 404, 409, 413, 415, 422, 425, 429),
    summary="Evaluate a checkpoint",
)
def evaluate(
    request: HttpRequest, checkpoint_id: PathId, body: EvaluateCheckpoint, idempotency_key: Key = None
) -> HttpResponse:
    """Submits a job that samples held-out prompts with these weights and trains nothing. It is queued like any job and
    holds only the devices of its replicas. Its result is added to the checkpoint's `evaluations`. 409 `corrupt`. 425:
    the checkpoint is being verified after an attempt could not open it."""
    caller, now = caller_of(request), counted_at(request)
    checkpoint = the_checkpoint(caller.team, checkpoint_id)

    def make() -> Job:
        pool = the_only_pool(list(pools_of(caller.team)), body.pool or checkpoint.job.pool.name)
        try:
            spec = evaluation_spec(checkpoint, wishes_of(body))
            return evaluate_checkpoint(
                checkpoint, spec, pool=pool, by=Submitter(user=caller.user, key=caller.key), now=now
            )
        except SpecRefused as refusal:
            refusal.errors = tuple(map(in_this_body, refusal.errors))
            raise

    return answer_with_new_job(request, make, key=idempotency_key, spec_at="", now=now)


def wishes_of(body: EvaluateCheckpoint) -> EvaluationWishes:
    values: dict[str, Any] = {name: getattr(body, name) for name in EvaluateCheckpoint.model_fields if name != "pool"}
    return EvaluationWishes(**values)


def in_this_body(error: FieldError) -> FieldError:
    """Maps an error's pointer from the spec, which the caller did not write, into this body."""
    mine = {"/rollout/replicas": "/replicas"}.get(error.pointer, error.pointer.removeprefix("/evaluation"))
    return FieldError(pointer=mine, code=error.code, message=error.message)
