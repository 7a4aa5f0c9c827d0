"""Exports a job as a run in an MLflow store, the file `mlflow.db` in a folder, for `mlflow ui`.

Invariants:
- a job has at most one run: the run has the job's id as a tag, and a second export is refused;
- an incomplete run is deleted at once, or by the next export of the same job;
- MLflow stores NaN as NaN, and an infinity as the largest float64 of its sign.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ..answers.jobs import Job
from ..errors import LaminarError
from .libraries import library
from .parameters import as_text, flat
from .port import OpenRun, Point, began, ended

EXTRA = "mlflow"
EXPERIMENT = "Laminar"
JOB_TAG = "laminar.job"
_STATUS = {"succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}
_METRICS_AT_ONCE, _PARAMETERS_AT_ONCE = 1_000, 100  # MLflow's limits per call


@contextmanager
def mlflow_run(job: Job, to: Path) -> Iterator[OpenRun]:
    library("sqlalchemy", extra=EXTRA)  # MLflow would report it only in a long chain of errors
    library("alembic", extra=EXTRA)
    entities = library("mlflow.entities", extra=EXTRA)
    tracking = library("mlflow.tracking", extra=EXTRA)
    to.mkdir(parents=True, exist_ok=True)
    store = to.resolve() / "mlflow.db"
    client = tracking.MlflowClient(tracking_uri=f"sqlite:///{store}")
    experiment = _experiment(client, to.resolve() / "artifacts")
    _make_room(client, experiment, job)

    tags = {JOB_TAG: job.id, "laminar.state": job.state, "laminar.pool": job.pool, "laminar.tags": json.dumps(job.tags)}
    run = client.create_run(experiment, start_time=_ms(began(job)), tags=tags, run_name=job.name).info.run_id

    def write(points: Sequence[Point]) -> None:
        for first in range(0, len(points), _METRICS_AT_ONCE):
            client.log_batch(run, metrics=_metrics(entities, points[first : first + _METRICS_AT_ONCE]))

    try:
        parameters = [entities.Param(name, as_text(value)) for name, value in flat(job.spec).items()]
        for first in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            client.log_batch(run, params=parameters[first : first + _PARAMETERS_AT_ONCE])
        yield OpenRun(write=write, place=store, shown_by=f"mlflow ui --backend-store-uri sqlite:///{store}")
    except BaseException:
        client.delete_run(run)
        raise
    client.set_terminated(run, status=_STATUS[job.state], end_time=_ms(ended(job)))


def _experiment(client: Any, artifacts: Path) -> str:
    known = client.get_experiment_by_name(EXPERIMENT)
    if known is not None:
        return str(known.experiment_id)
    return str(client.create_experiment(EXPERIMENT, artifact_location=artifacts.as_uri()))


def _make_room(client: Any, experiment: str, job: Job) -> None:
    for earlier in client.search_runs([experiment], filter_string=f"tags.`{JOB_TAG}` = '{job.id}'"):
        if earlier.info.status != "RUNNING":
            raise LaminarError(
                f"{job.id} is already in that store, as the run {earlier.info.run_id}. "
                "Delete the run, or choose another folder."
            )
        client.delete_run(earlier.info.run_id)


def _metrics(entities: ModuleType, points: Sequence[Point]) -> list[Any]:
    return [entities.Metric(each.name, each.value, _ms(each.at), each.step) for each in points]


def _ms(at: float) -> int:
    return round(at * 1_000)
