"""REST: the texts of models. They have a scope of their own: texts may be secret where numbers are not."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from django.http import HttpRequest
from ninja import Query, Router
from pydantic import BaseModel, Field

from backend.accounts.keys.bearer import ApiKeyAuth, caller_of
from backend.api.pagination import MAX_LIMIT, Page
from backend.api.problems import problems
from backend.borders.types import PathId
from backend.jobs.models import Job
from backend.jobs.selectors import the_job
from backend.store.chosen import store
from backend.telemetry.fulltext.finding import passages_of
from backend.telemetry.fulltext.question import LONGEST, question_of
from backend.telemetry.models import RemovedKind, Trajectory
from backend.telemetry.removal import refuse_if_removed
from backend.telemetry.representations import TrajectoryOut
from backend.telemetry.trajectories.search import (
    Wanted,
    search_trajectories,
    the_trajectory,
    trajectories_of_team,
    values_of,
    whole_of,
)
from engine.spec.facts import End, Outcome, TokenTrace, TrajectorySample, Turn
from engine.spec.strict import Text

router = Router(tags=["Trajectories"])

MAY_READ_TRAJECTORIES = ApiKeyAuth("trajectories:read")
LARGEST = 2**63 - 1
LARGEST_REWARD = 1e12
_WHOLE = ("prompt", "response", "remark", "reason", "turns", "parts", "trace")
SEARCH = (
    'Words of the prompt, the turns or the response, all required, case-insensitive; "a phrase", -excluded, prefix*. '
    "The first 100,000 characters are searched."
)
Search = Annotated[Text | None, Query(max_length=LONGEST, description=SEARCH)]
Whole = Annotated[int | None, Query(ge=0, le=LARGEST)]
Cursor = Annotated[Text | None, Query(max_length=40, description="`next_cursor` of the previous page.")]
Reward = Annotated[float | None, Query(ge=-LARGEST_REWARD, le=LARGEST_REWARD)]


class WholeTrajectoryOut(TrajectoryOut):
    """A full trajectory: complete texts, messages, and the author and probability of each token."""

    turns: list[Turn] = Field(
        description="The response as messages, in order; empty if it is one message of the model."
    )
    parts: dict[str, float] = Field(description="Parts of the reward, if the environment reports them.")
    trace: TokenTrace | None = Field(description="Per position; null if the engine sent none.")

    @classmethod
    def whole(cls, row: Trajectory, sample: TrajectorySample) -> Self:
        known = TrajectoryOut.of(row).model_dump()
        return cls.model_validate(known | {name: getattr(sample, name) for name in _WHOLE})


class DistributionOut(BaseModel):
    name: str
    step: int | None = Field(description="Null if there is no step yet.")
    num_sampled: int = Field(description="The engine sends only some trajectories of each step.")
    values: list[float] = Field(description="In the order in which they were sampled.")


@router.get(
    "/jobs/{job_id}/trajectories",
    auth=MAY_READ_TRAJECTORIES,
    response={200: Page[TrajectoryOut]} | problems(404, 410, 422),
    summary="List a job's trajectories",
)
def trajectories(
    request: HttpRequest,
    job_id: PathId,
    q: Search = None,
    step: Whole = None,
    prompt_ordinal: Whole = None,
    version: Annotated[int | None, Query(ge=0, le=LARGEST, description="Version of the generating weights.")] = None,
    min_staleness: Whole = None,
    outcome: Outcome | None = None,
    end: End | None = None,
    min_reward: Reward = None,
    max_reward: Reward = None,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 20,
) -> Page[TrajectoryOut]:
    """Newest step first. 410: removed, because the job ended long ago."""
    wanted = Wanted(
        question=None if q is None else question_of(q),
        step=step,
        prompt_ordinal=prompt_ordinal,
        version=version,
        min_staleness=min_staleness,
        outcome=outcome,
        end=end,
        min_reward=min_reward,
        max_reward=max_reward,
    )
    rows, following = search_trajectories(_with_trajectories(request, job_id), wanted, cursor=cursor, limit=limit)
    return _page(rows, following, wanted)


@router.get(
    "/trajectories",
    auth=MAY_READ_TRAJECTORIES,
    response={200: Page[TrajectoryOut]} | problems(422),
    summary="Search all trajectories",
)
def all_trajectories(
    request: HttpRequest,
    q: Annotated[Text, Query(max_length=LONGEST, description=SEARCH)],
    project: Annotated[Text | None, Query(max_length=64, description="Project ID.")] = None,
    outcome: Outcome | None = None,
    end: End | None = None,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 20,
) -> Page[TrajectoryOut]:
    """Trajectories of the team, the latest first; without those that were removed."""
    wanted = Wanted(question=question_of(q), outcome=outcome, end=end)
    team_id = caller_of(request).team.pk
    rows, following = trajectories_of_team(team_id, wanted, project_id=project, cursor=cursor, limit=limit)
    return _page(rows, following, wanted)


@router.get(
    "/jobs/{job_id}/trajectories/{trajectory_id}",
    auth=MAY_READ_TRAJECTORIES,
    response={200: WholeTrajectoryOut} | problems(404, 410),
    summary="Get a full trajectory",
)
def trajectory(request: HttpRequest, job_id: PathId, trajectory_id: PathId) -> WholeTrajectoryOut:
    """With its tokens, their log-probs and the versions that generated them."""
    row = the_trajectory(_with_trajectories(request, job_id), trajectory_id)
    return WholeTrajectoryOut.whole(row, whole_of(row, store()))


@router.get(
    "/jobs/{job_id}/distributions",
    auth=ApiKeyAuth("jobs:read"),
    response={200: DistributionOut} | problems(404, 410, 422),
    summary="Get the values of a step's trajectories",
)
def distributions(
    request: HttpRequest,
    job_id: PathId,
    name: Literal["reward", "advantage", "length", "staleness"] = "reward",
    step: Annotated[int | None, Query(ge=0, le=LARGEST, description="Default: the newest.")] = None,
) -> DistributionOut:
    """Values of the trajectories that the engine sent."""
    at, values = values_of(_with_trajectories(request, job_id), name, step)
    return DistributionOut(name=name, step=at, num_sampled=len(values), values=list(values))


def _page(rows: Sequence[Trajectory], following: str | None, wanted: Wanted) -> Page[TrajectoryOut]:
    passages = {} if wanted.question is None else passages_of(rows, wanted.question)
    data = [TrajectoryOut.of(row, passages.get(row.pk)) for row in rows]
    return Page(data=data, has_more=following is not None, next_cursor=following)


def _with_trajectories(request: HttpRequest, job_id: str) -> Job:
    job = the_job(caller_of(request).team, job_id)
    refuse_if_removed(job, RemovedKind.TRAJECTORIES)
    return job
