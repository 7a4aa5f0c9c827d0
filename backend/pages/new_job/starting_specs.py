"""Starting points of a new job: the spec of a template or an earlier job, optionally with a checkpoint's weights.

Invariants:
- a job that is run again starts where the earlier one did, or the page gives the reason;
- its name differs from the earlier job's;
- only checkpoints of teams in which the user may submit are offered.
"""

from dataclasses import dataclass

from django.db.models import QuerySet
from django.http import QueryDict
from pydantic import ValidationError

from backend.accounts.models import User
from backend.accounts.selectors import may_submit, teams_of
from backend.borders.types import is_id
from backend.checkpoints.models import Checkpoint
from backend.jobs.selectors import job_visible_to
from backend.jobs.submitting.successors import again_name, continued_name
from backend.jobs.submitting.templates import templates
from engine.spec.job import JobSpec

_DEFAULT_TEMPLATE = "running_sums"
GONE = "The requested checkpoint is no longer available. This job would start from the base model."


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPoint:
    checkpoint: Checkpoint | None = None
    """The checkpoint that the page offers."""
    is_chosen: bool = False
    remark: str = ""

    @property
    def start_from(self) -> str:
        return self.checkpoint.pk if self.checkpoint is not None and self.is_chosen else ""


def requested_starting_spec(user: User, asked: QueryDict) -> tuple[str, JobSpec, StartingPoint]:
    """From the page's URL: the name of a template or an earlier job's id, the spec, and the checkpoint."""
    earlier = job_visible_to(user, asked.get("from", ""))
    wanted = asked.get("checkpoint", "") or (earlier.start_from if earlier is not None else "")
    checkpoint = _usable(user, wanted)
    starting_point = StartingPoint(
        checkpoint=checkpoint, is_chosen=True, remark=GONE if wanted and checkpoint is None else ""
    )
    if earlier is None and checkpoint is not None:
        earlier = checkpoint.job
    if earlier is None:
        name = asked.get("template", _DEFAULT_TEMPLATE)
        name = name if name in templates() else next(iter(templates()))
        return name, templates()[name], starting_point
    spec = _beyond(JobSpec.accepted(earlier.spec), checkpoint) if checkpoint else JobSpec.accepted(earlier.spec)
    goes_on = checkpoint is not None and checkpoint.job_id == earlier.pk
    name = continued_name(earlier.name, checkpoint.step) if goes_on and checkpoint else again_name(earlier.name)
    return earlier.pk, spec.model_copy(update={"name": name}), starting_point


def starting_point_sent(user: User, sent: QueryDict) -> StartingPoint:
    """From the form: the offered checkpoint, and whether its box was checked."""
    return StartingPoint(checkpoint=_usable(user, sent.get("offered", "")), is_chosen="start_from" in sent)


def newest_checkpoint(user: User) -> Checkpoint | None:
    """The user's newest checkpoint that a job can start from."""
    return _usable_by(user).order_by("-created_at", "-pk").first()


def _usable(user: User, checkpoint: str) -> Checkpoint | None:
    return _usable_by(user).filter(pk=checkpoint).first() if is_id(checkpoint) else None


def _usable_by(user: User) -> QuerySet[Checkpoint]:
    teams = [team for team in teams_of(user) if may_submit(user, team)]
    return Checkpoint.objects.filter(job__team__in=teams).usable().select_related("job")


def _beyond(spec: JobSpec, checkpoint: Checkpoint) -> JobSpec:
    """Doubles the steps if none would be left after the checkpoint."""
    if spec.training.steps > checkpoint.step or spec.only_evaluates:
        return spec
    document = spec.model_dump(mode="json")
    document["training"]["steps"] += checkpoint.step
    try:
        return JobSpec.model_validate(document)
    except ValidationError:  # above the maximum: the form shows the error
        return spec
