"""A finished trajectory brings only the routes that data has not acknowledged: data joins both, or knows none."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.pipeline.messages.to_data import ProgressStreamed
from engine.pipeline.packed import Bytes, Floats, Ints
from engine.pipeline.records import NO_ROUTES, GroupTask, SampleKey, SampleProgress, Trajectory, TrajectoryContent
from tests.engine.pipeline.brain_builders import DataWithDisk, answers, granted, holding, sample_progress

SAMPLE_RUN = 3
REPORTED = b"abcdef"


def with_reported_routes(*, sample_run: int = SAMPLE_RUN) -> tuple[DataWithDisk, GroupTask]:
    """A group whose replica has reported routes of its first sample."""
    data = DataWithDisk().past_the_evaluation()
    (task,) = granted(data.sync(wants=2))
    data.handle(ProgressStreamed(replica=0, incarnation=0, progress=(progress_of(task, sample_run),)))
    return data, task


def progress_of(task: GroupTask, sample_run: int) -> SampleProgress:
    whole = sample_progress(task.key, 0, num_tokens=4)
    return replace(whole, packed_routes=REPORTED, num_route_bytes=len(REPORTED), sample_run=sample_run)


def ended(task: GroupTask, routes: bytes, *, since: int, sample_run: int = SAMPLE_RUN) -> tuple[Trajectory, ...]:
    """Both samples; the first one with these routes."""
    first, second = answers([task])
    content = TrajectoryContent(
        prompt_ids=Ints.of([1]),
        response_ids=Ints.of([2, 3, 4, 5, 6]),
        logprobs=Floats.of([-0.5] * 5),
        prompt_text="",
        response_text="",
        remark="",
        routes=Bytes(routes),
        routes_since=since,
        sample_run=sample_run,
    )
    return replace(first, content=content), second


def trained_content(data: DataWithDisk, key: SampleKey) -> TrajectoryContent:
    """As the trainer gets it."""
    taken = [each for group in data.brain.state.training for each in group.taken]
    ready = [each for group in data.brain.state.ready for each in group.trajectories]
    [trajectory] = [each for each in (*taken, *ready) if each.key == key]
    assert trajectory.content is not None
    return trajectory.content


@pytest.mark.parametrize(("since", "rest"), [(6, b"ghi"), (4, b"efghi"), (6, b"")])
def test_reported_and_later_routes_are_joined(since: int, rest: bytes) -> None:
    data, task = with_reported_routes()
    finished = ended(task, rest, since=since)
    data.sync(wants=0, groups=holding([task]), finished=finished)
    content = trained_content(data, finished[0].key)
    assert (content.routes.data, content.routes_since, content.sample_run) == (REPORTED[:since] + rest, 0, 0)


def test_routes_that_come_whole_are_not_touched() -> None:
    data, task = with_reported_routes()
    finished = ended(task, b"whole", since=0)
    data.sync(wants=0, groups=holding([task]), finished=finished)
    assert trained_content(data, finished[0].key) is finished[0].content


def begin_other_run(data: DataWithDisk, task: GroupTask) -> None:
    progress = progress_of(task, SAMPLE_RUN + 1)
    data.handle(ProgressStreamed(replica=0, incarnation=0, progress=(progress,)))


def restart(data: DataWithDisk, task: GroupTask) -> None:
    data.restart()


@pytest.mark.parametrize("event", [begin_other_run, restart])
def test_routes_that_cannot_be_joined_are_unknown(event: Callable[[DataWithDisk, GroupTask], None]) -> None:
    data, task = with_reported_routes()
    event(data, task)
    finished = ended(task, b"ghi", since=6)
    data.sync(wants=0, groups=holding([task]), finished=finished)
    content = trained_content(data, finished[0].key)
    assert (content.routes, content.routes_since) == (NO_ROUTES, 0)
    assert content.response_ids == finished[0].content.response_ids if finished[0].content else False


@pytest.mark.parametrize("fields", [{"replica": 1}, {"incarnation": 1}])
def test_routes_of_another_replica_are_not_joined(fields: dict[str, int]) -> None:
    data, task = with_reported_routes()
    finished = ended(task, b"ghi", since=6)
    data.sync(wants=0, finished=finished, **fields)
    assert trained_content(data, finished[0].key).routes == NO_ROUTES


def test_more_routes_than_data_has_are_not_joined() -> None:
    data, task = with_reported_routes()
    finished = ended(task, b"ghi", since=7)
    data.sync(wants=0, groups=holding([task]), finished=finished)
    assert trained_content(data, finished[0].key).routes == NO_ROUTES
