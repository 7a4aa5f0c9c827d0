"""Exports a job as an offline run of Weights & Biases: a folder for `wandb sync`.

Invariants:
- the run's id is the job's, so syncing it twice gives one run;
- the run contains only data of the job, none of the exporting machine;
- each row of the history is a step, with the time of its newest value.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from ..answers.jobs import Job
from .folders import whole_folder
from .libraries import library
from .port import OpenRun, Point

EXTRA = "wandb"
PROJECT = "laminar"


@contextmanager
def wandb_run(job: Job, to: Path) -> Iterator[OpenRun]:
    wandb = library("wandb", extra=EXTRA)
    is_ours = _is_idle(wandb)
    goal = to / job.id
    with whole_folder(goal) as folder:
        run = wandb.init(
            id=job.id,
            project=PROJECT,
            name=job.name,
            tags=job.tags,
            config=job.spec,
            dir=folder.parent,  # hidden, and deleted afterwards with everything left in it
            mode="offline",
            reinit="create_new",
            settings=_settings(wandb),
        )

        def write(points: Sequence[Point]) -> None:
            for step, together in groupby(points, key=lambda point: point.step):
                row = list(together)
                values = {each.name: each.value for each in row}
                run.log(values | {"_timestamp": max(each.at for each in row)}, step=step)

        succeeded = False
        try:
            yield OpenRun(write=write, place=goal, shown_by=f"wandb sync {goal}")
            succeeded = job.state == "succeeded"
        finally:
            run.finish(exit_code=0 if succeeded else 1)
            if is_ours:
                wandb.teardown()  # its core may still be writing; teardown waits until the file is complete
        made = Path(run.settings.sync_dir)
        for each in made.iterdir():
            each.rename(folder / each.name)


def _is_idle(wandb: ModuleType) -> bool:
    """Whether this process has no active run and no core, so that the export may start and stop one."""
    return getattr(wandb.sdk.wandb_setup, "_singleton", wandb) is None


def _settings(wandb: ModuleType) -> Any:
    """Records nothing about this machine, process or folder, and prints nothing."""
    return wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        host=PROJECT,  # the default is this machine's name
        save_code=False,
        silent=True,
        symlink=False,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
