"""`laminar export`: trackers read back the job's measurements, and each job is exported once."""

import asyncio
import json
import math
import sqlite3
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from backend.jobs.lifecycle import locked_job, next_cursor
from backend.jobs.models import Job
from backend.telemetry.models import MetricPoint, MetricSeries
from backend.telemetry.retention import reduce_old_series
from backend.telemetry.series.points import NewPoint, store_points
from frontend.client.laminar_client import AsyncLaminar, Laminar
from frontend.client.laminar_client.errors import Conflict, LaminarError, ServerFault
from frontend.client.laminar_client.exporting.curves import ROLLUP, export, steps_a_window
from frontend.client.laminar_client.exporting.parameters import flat
from tests.frontend.client.conftest import Shell
from tests.frontend.client.scripted_wire import ScriptedWire, problem, reply
from tests.frontend.client.tracker_readers import READERS, History
from tests.frontend.conftest import Server
from tests.frontend.seed import World, failed, finished, running

TRACKERS = tuple(READERS)
OUTCOMES = {"mlflow": ("FINISHED", "FAILED"), "tensorboard": ("1", "2"), "wandb": ("0", "1")}
BEGAN = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.fixture(params=TRACKERS)
def tracker(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def truth(job: Job, *, tracker: str) -> History:
    """The series in the server's tables. TensorBoard keeps float32; a W&B row has one time; MLflow's times are ms."""
    rows = MetricPoint.objects.filter(series__job=job).order_by("series__name", "step", "-attempt")
    found = rows.values_list("series__name", "step", "value", "at")
    latest = [next(same) for _, same in groupby(found, key=lambda row: row[:2])]
    newest_of_step: dict[int, float] = {}
    for _, step, _, at in latest:
        newest_of_step[step] = max(at.timestamp(), newest_of_step.get(step, 0.0))
    history: History = {}
    for name, step, value, at in latest:
        on_progress = newest_of_step[step] if tracker == "wandb" else at.timestamp()
        history.setdefault(name, []).append((step, value, on_progress))
    return history


def assert_same(found: History, expected: History) -> None:
    assert sorted(found) == sorted(expected)
    for name, line in expected.items():
        steps, values, times = zip(*found[name], strict=True)
        assert list(steps) == [step for step, _, _ in line], name
        assert list(values) == pytest.approx([value for _, value, _ in line], rel=1e-6), name
        assert list(times) == pytest.approx([at for _, _, at in line], abs=0.002), name


@pytest.mark.long
def test_what_is_exported_reads_back_point_by_point(shell: Shell, world: World, tmp_path: Path, tracker: str) -> None:
    job = finished(world, steps=30, tags=["a", "b"])
    on_progress = shell.json("export", job.pk, tracker, "--to", str(tmp_path / "runs"))
    found = READERS[tracker](tmp_path / "runs", job.pk)
    expected = truth(job, tracker=tracker)
    assert_same(found.history, expected)
    assert {"reward/mean", "train/loss", "evaluation/reward"} <= set(found.history)
    assert on_progress["series"] == len(expected) and on_progress["points"] == sum(map(len, expected.values()))
    assert on_progress["means"] == 0 and Path(on_progress["path"]).exists()


@pytest.mark.long_except("tensorboard")
def test_the_spec_is_there_as_parameters_and_the_outcome_too(
    client: Laminar, world: World, tmp_path: Path, tracker: str
) -> None:
    good, bad = finished(world, steps=2, tags=["a", "b"]), failed(world)
    for job, outcome in zip((good, bad), OUTCOMES[tracker], strict=True):
        client.jobs.export(job.pk, tracker, tmp_path)
        found = READERS[tracker](tmp_path, job.pk)
        assert found.outcome == outcome
        spec = client.jobs.show(job.pk).spec
        if tracker == "wandb":  # keeps nested values
            assert {name: found.parameters[name] for name in spec} == spec
        else:
            said = {name: str(value) for name, value in found.parameters.items()}
            wanted = {name: _said_by(tracker, value) for name, value in flat(spec).items()}
            assert said == wanted


def _said_by(tracker: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if tracker == "tensorboard":
        return str(value if isinstance(value, bool) else float(value))
    return json.dumps(value)


@pytest.mark.long
def test_a_second_export_of_a_job_is_refused_and_changes_nothing(
    shell: Shell, world: World, tmp_path: Path, tracker: str
) -> None:
    job, other = finished(world, steps=3), finished(world, steps=4)
    shell("export", job.pk, tracker, "--to", str(tmp_path))
    before = READERS[tracker](tmp_path, job.pk)
    refused = shell("export", job.pk, tracker, "--to", str(tmp_path), code=1)
    assert "already" in refused.stderr
    shell("export", other.pk, tracker, "--to", str(tmp_path))
    assert READERS[tracker](tmp_path, job.pk) == before
    assert_same(READERS[tracker](tmp_path, other.pk).history, truth(other, tracker=tracker))


@pytest.mark.long
def test_repeated_step_is_exported_once_from_later_attempt(
    client: Laminar, world: World, tmp_path: Path, tracker: str
) -> None:
    job = finished(world, steps=5)
    points(job, {step: 100.0 + step for step in (3, 4)}, "train/loss", attempt=2)
    client.jobs.export(job.pk, tracker, tmp_path)
    line = READERS[tracker](tmp_path, job.pk).history["train/loss"]
    assert [step for step, _, _ in line] == [1, 2, 3, 4, 5]
    assert [value for _, value, _ in line[2:4]] == [103.0, 104.0]


def test_windows_join_without_a_gap_or_a_repetition(client: Laminar, world: World, tmp_path: Path) -> None:
    """Just over two windows, points on both sides of each border, and a series that starts late."""
    job = finished(world, steps=2)
    width = steps_a_window(MetricSeries.objects.filter(job=job).count() + 2)
    steps = [1, 2, width - 1, width, width + 1, 2 * width - 1, 2 * width, 2 * width + 5]
    points(job, {step: float(step) for step in steps}, "dense/x")
    points(job, {2 * width + 4: 1.0}, "late/x")
    seen: list[tuple[int, int]] = []
    client.jobs.export(
        job.pk, "tensorboard", tmp_path, on_progress=lambda so_far, in_all: seen.append((so_far, in_all))
    )
    history = READERS["tensorboard"](tmp_path, job.pk).history
    assert [(step, value) for step, value, _ in history["dense/x"]] == [(step, float(step)) for step in steps]
    assert len(history["late/x"]) == 1
    end = 2 * width + 6
    assert seen[-1] == (end, end) and len(seen) == 3 and seen == sorted(seen)


@pytest.mark.parametrize("num_series", [0, 1, 12, 50, 499, 500, 20_000])
def test_a_window_is_whole_rollups_and_its_page_bounded(num_series: int) -> None:
    width = steps_a_window(num_series)
    assert width % ROLLUP == 0 and ROLLUP <= width <= 2_000
    assert width == ROLLUP or width * num_series <= 20_000


def test_of_a_job_kept_as_means_each_mean_is_there_once(client: Laminar, world: World, tmp_path: Path) -> None:
    job = finished(world, steps=2)
    points(job, {step: float(step) for step in range(5_000)}, "dense/x")
    assert reduce_old_series(keep=timedelta(0), now=datetime.now(UTC) + timedelta(days=1)) == 1
    kept = MetricPoint.objects.filter(series__job=job, series__name="dense/x").count()
    assert 0 < kept < 5_000
    made = client.jobs.export(job.pk, "tensorboard", tmp_path)
    line = READERS["tensorboard"](tmp_path, job.pk).history["dense/x"]
    means = line[: made.num_means]
    assert [step for step, _, _ in means] == list(range(15, 5_000 - kept, 16))
    assert [value for _, value, _ in means] == [step - 7.5 for step, _, _ in means]
    assert [step for step, _, _ in line[made.num_means :]] == list(range(5_000 - kept, 5_000))
    job.refresh_from_db()
    assert job.started_at is not None
    assert [at for _, _, at in means] == pytest.approx([job.started_at.timestamp()] * len(means), abs=0.002)


def test_a_job_that_goes_on_is_refused(shell: Shell, world: World, tmp_path: Path) -> None:
    job = running(world, steps_done=2)
    assert f"laminar wait {job.pk}" in shell("export", job.pk, "tensorboard", "--to", str(tmp_path), code=5).stderr
    assert not list(tmp_path.glob("runs*"))


def test_missing_library_error_has_install_command(
    shell: Shell, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    job = finished(world, steps=1)
    for name in [name for name in sys.modules if name.partition(".")[0] == tracker]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, tracker, None)
    refused = shell("export", job.pk, tracker, "--to", str(tmp_path / "runs"), code=2)
    assert f"pip install 'laminar-client[{tracker}]'" in refused.stderr
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_asyncio_exports_too(server: Server, world: World, key: str, tmp_path: Path) -> None:
    job = finished(world, steps=3)

    async def exported() -> int:
        async with AsyncLaminar(server.url, key) as client:
            return (await client.jobs.export(job.pk, "tensorboard", tmp_path)).num_points

    assert asyncio.run(exported()) == sum(map(len, truth(job, tracker="tensorboard").values()))


ODD = '{"cursor": 1, "more": false, "bands": {}, "times": %s, "series": {"a/b": [[1, NaN], [2, Infinity], [3, -1.5]]}}'
TIMES = '{"a/b": ["2026-01-05T12:00:01Z", "2026-01-05T12:00:02.250Z", null]}'
LARGEST = sys.float_info.max


def job_document(client: Laminar, job: Job) -> bytes:
    return json.dumps(dict(client.jobs.show(job.pk).raw)).encode()


@pytest.fixture
def odd_answers(client: Laminar, world: World) -> Iterator[tuple[str, list[Any]]]:
    """A server with NaN values: ours refuses them on ingest."""
    job = finished(world, steps=1)
    yield job.pk, [reply(body=job_document(client, job)), reply(body=(ODD % "{}").encode())]


@pytest.mark.long_except("tensorboard")
def test_nan_and_infinity_read_back_as_tracker_keeps_them(
    odd_answers: tuple[str, list[Any]], tmp_path: Path, tracker: str
) -> None:
    job_id, answers = odd_answers
    wire = ScriptedWire(answers=[*answers, reply(body=(ODD % TIMES).encode())])
    made = wire.run(export(job_id, tracker, tmp_path))
    assert (made.num_points, made.num_means) == (3, 1)
    line = READERS[tracker](tmp_path, job_id).history["a/b"]
    assert [step for step, _, _ in line] == [1, 2, 3]
    assert math.isnan(line[0][1]) and line[2][1] == -1.5
    assert line[1][1] == (LARGEST if tracker == "mlflow" else math.inf)
    times = [(BEGAN + timedelta(seconds=s)).timestamp() for s in (1, 2.25, 2.25)]
    assert [at for _, _, at in line] == pytest.approx(times, abs=0.002)


@pytest.mark.long_except("tensorboard")
def test_failed_export_leaves_nothing_and_can_be_repeated(
    odd_answers: tuple[str, list[Any]], tmp_path: Path, tracker: str
) -> None:
    job_id, answers = odd_answers
    with pytest.raises(ServerFault):
        ScriptedWire(answers=[*answers, problem(500)]).run(export(job_id, tracker, tmp_path))
    if tracker != "mlflow":
        assert not list(tmp_path.iterdir())
    ScriptedWire(answers=[*answers, reply(body=(ODD % TIMES).encode())]).run(export(job_id, tracker, tmp_path))
    assert len(READERS[tracker](tmp_path, job_id).history["a/b"]) == 3


@pytest.mark.long
def test_export_deletes_mlflow_run_of_killed_export(odd_answers: tuple[str, list[Any]], tmp_path: Path) -> None:
    job_id, answers = odd_answers
    page = reply(body=(ODD % TIMES).encode())
    ScriptedWire(answers=[*answers, page]).run(export(job_id, "mlflow", tmp_path))
    with sqlite3.connect(tmp_path / "mlflow.db") as db:  # the state that a killed process leaves
        db.execute("UPDATE runs SET status = 'RUNNING'")
    ScriptedWire(answers=[*answers, page]).run(export(job_id, "mlflow", tmp_path))
    assert len(READERS["mlflow"](tmp_path, job_id).history["a/b"]) == 3


def test_unknown_tracker_and_path_like_job_id_are_refused(
    client: Laminar, odd_answers: tuple[str, list[Any]], tmp_path: Path
) -> None:
    job_id, (shown, _) = odd_answers
    with pytest.raises(ValueError, match="one of mlflow, tensorboard, wandb, got 'neptune'"):
        ScriptedWire(answers=[]).run(export(job_id, "neptune", tmp_path))
    evil = reply(body=shown.body.replace(job_id.encode(), b"../x"))
    with pytest.raises(LaminarError, match="not a valid folder name"):
        ScriptedWire(answers=[evil]).run(export(job_id, "tensorboard", tmp_path))
    with pytest.raises(Conflict):
        going = reply(body=shown.body.replace(b'"state": "succeeded"', b'"state": "running"'))
        ScriptedWire(answers=[going]).run(export(job_id, "tensorboard", tmp_path))


def points(job: Job, values: dict[int, float], name: str, *, attempt: int = 1) -> None:
    with transaction.atomic():
        locked = locked_job(job.pk)
        on_progress = next_cursor(locked, count=len(values)) - len(values)
        rows = [
            NewPoint(name=name, step=step, at=BEGAN + timedelta(seconds=step), value=value, cursor=cursor)
            for cursor, (step, value) in enumerate(values.items(), start=on_progress + 1)
        ]
        store_points(locked, attempt, rows)
