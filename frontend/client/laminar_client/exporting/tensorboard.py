"""Exports a job as a TensorBoard run: a folder named after it, with one event file.

Invariants:
- a tag is the name of a series; the part before its slash is TensorBoard's group;
- TensorBoard keeps float32: larger values become infinite; it marks infinities and NaN as such;
- TensorFlow is not needed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from ..answers.jobs import Job
from .folders import whole_folder
from .libraries import library
from .parameters import flat
from .port import OpenRun, Point, began, ended

EXTRA = "tensorboard"


@contextmanager
def tensorboard_run(job: Job, to: Path) -> Iterator[OpenRun]:
    event_pb2 = library("tensorboard.compat.proto.event_pb2", extra=EXTRA)
    summary_pb2 = library("tensorboard.compat.proto.summary_pb2", extra=EXTRA)
    writing = library("tensorboard.summary.writer.event_file_writer", extra=EXTRA)
    metadata = library("tensorboard.plugins.hparams.metadata", extra=EXTRA)

    goal = to / job.id
    with whole_folder(goal) as folder:
        writer = writing.EventFileWriter(str(folder))

        def add(*values: Any, at: float, step: int = 0) -> None:
            summary = summary_pb2.Summary(value=values)
            writer.add_event(event_pb2.Event(wall_time=at, step=step, summary=summary))

        def tell(tag: str, session: Any, *, at: float) -> None:
            described = metadata.create_summary_metadata(session)
            add(summary_pb2.Summary.Value(tag=tag, metadata=described, tensor=metadata.NULL_TENSOR), at=at)

        def write(points: Sequence[Point]) -> None:
            for (step, at), together in groupby(points, key=lambda point: (point.step, point.at)):
                values = [summary_pb2.Summary.Value(tag=each.name, simple_value=each.value) for each in together]
                add(*values, at=at, step=step)

        try:
            tell(metadata.SESSION_START_INFO_TAG, _start(job), at=began(job))
            yield OpenRun(write=write, place=goal, shown_by=f"tensorboard --logdir {to}")
            tell(metadata.SESSION_END_INFO_TAG, _end(job), at=ended(job))
        finally:
            writer.close()


def _start(job: Job) -> Any:
    plugin = library("tensorboard.plugins.hparams.plugin_data_pb2", extra=EXTRA)
    info = plugin.SessionStartInfo(group_name=job.id, start_time_secs=began(job))
    for name, value in flat(job.spec).items():
        kind = "bool_value" if isinstance(value, bool) else "string_value" if isinstance(value, str) else "number_value"
        setattr(info.hparams[name], kind, value)
    return plugin.HParamsPluginData(session_start_info=info)


def _end(job: Job) -> Any:
    """TensorBoard only knows success and failure; a cancelled job is not a success."""
    plugin = library("tensorboard.plugins.hparams.plugin_data_pb2", extra=EXTRA)
    statuses = library("tensorboard.plugins.hparams.api_pb2", extra=EXTRA)
    status = statuses.STATUS_SUCCESS if job.state == "succeeded" else statuses.STATUS_FAILURE
    return plugin.HParamsPluginData(session_end_info=plugin.SessionEndInfo(status=status, end_time_secs=ended(job)))
