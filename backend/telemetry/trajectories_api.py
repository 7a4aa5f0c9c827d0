"""REST: the texts of models. Their own scope: texts may be secret where numbers are not."""

from typing import Annotated, Literal, Self

from django.http import HttpRequest
from ninja import Query, Router
from pydantic import BaseModel, Field

from backend.accounts.bearer import ApiKeyAuth, caller_of
from backend.api.pagination import MAX_LIMIT, Page
from backend.api.problems import problems
from backend.borders.types import PathId
from backend.jobs.models import Job
from backend.jobs.selectors import the_job
from backend.store.chosen import store
from backend.telemetry.models import RemovedKind, Trajectory
from backend.telemetry.removal import refuse_if_removed
from backend.telemetry.representations import TrajectoryOut
from backend.telemetry.trajectory_search import the_trajectory, trajectories_found, values_of, whole_of
from engine.spec.facts import Outcome, TokenTrace, TrajectorySample
from engine.spec.strict import Text

router = Router(tags=["Trajectories"])

MAY_READ_TRAJECTORIES = ApiKeyAuth("trajectories:read")
LARGEST = 2**63 - 1
LARGEST_REWARD = 1e12
Reward = Annotated[float | None, Query(ge=-LARGEST_REWARD, le=LARGEST_REWARD)]


class WholeTrajectoryOut(TrajectoryOut):
    """A whole trajectory: its texts uncut, and of each token its author and its probability."""

    trace: TokenTrace | None = Field(description="Position by position; null where the engine sent none.")

    @classmethod
    def whole(cls, row: Trajectory, sample: TrajectorySample) -> Self:
        known = TrajectoryOut.of(row).model_dump()
        return cls.model_validate(
            known | {name: getattr(sample, name) for name in ("prompt", "response", "remark", "trace")}
        )


class DistributionOut(BaseModel):
    name: str
    step: int | None = Field(description="Null while there is no step.")
    num_sampled: int = Field(description="The engine sends a few trajectories of each step, not all.")
    values: list[float] = Field(description="In the order in which they were chosen.")


@router.get(
    "/jobs/{job_id}/trajectories",
    auth=MAY_READ_TRAJECTORIES,
    response={200: Page[TrajectoryOut]} | problems(404, 410, 422),
    summary="Trajectories worth reading",
)
def trajectories(
    request: HttpRequest,
    job_id: PathId,
    step: Annotated[int | None, Query(ge=0, le=LARGEST)] = None,
    outcome: Outcome | None = None,
    min_reward: Reward = None,
    max_reward: Reward = None,
    cursor: Annotated[Text | None, Query(max_length=40, description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 20,
) -> Page[TrajectoryOut]:
    """Newest step first. 410: the job ended so long ago that they were removed."""
    found, following = trajectories_found(
        _with_trajectories(request, job_id),
        step=step,
        outcome=outcome,
        min_reward=min_reward,
        max_reward=max_reward,
        cursor=cursor,
        limit=limit,
    )
    data = [TrajectoryOut.of(row) for row in found]
    return Page(data=data, has_more=following is not None, next_cursor=following)


@router.get(
    "/jobs/{job_id}/trajectories/{trajectory_id}",
    auth=MAY_READ_TRAJECTORIES,
    response={200: WholeTrajectoryOut} | problems(404, 410),
    summary="One trajectory, whole",
)
def trajectory(request: HttpRequest, job_id: PathId, trajectory_id: PathId) -> WholeTrajectoryOut:
    """With its tokens, their log-probs and the versions that wrote them."""
    row = the_trajectory(_with_trajectories(request, job_id), trajectory_id)
    return WholeTrajectoryOut.whole(row, whole_of(row, store()))


@router.get(
    "/jobs/{job_id}/distributions",
    auth=ApiKeyAuth("jobs:read"),
    response={200: DistributionOut} | problems(404, 410, 422),
    summary="Values of a step's trajectories",
)
def distributions(
    request: HttpRequest,
    job_id: PathId,
    name: Literal["reward", "advantage", "length", "staleness"] = "reward",
    step: Annotated[int | None, Query(ge=0, le=LARGEST, description="The newest unless told.")] = None,
) -> DistributionOut:
    """Of the trajectories that were chosen to be read."""
    at, values = values_of(_with_trajectories(request, job_id), name, step)
    return DistributionOut(name=name, step=at, num_sampled=len(values), values=list(values))


def _with_trajectories(request: HttpRequest, job_id: str) -> Job:
    job = the_job(caller_of(request).team, job_id)
    refuse_if_removed(job, RemovedKind.TRAJECTORIES)
    return job
