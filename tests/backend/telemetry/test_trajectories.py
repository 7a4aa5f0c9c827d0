"""Trajectories: a row for lists, the full one in a file, the same before and after archiving."""

import io
import json
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.db import transaction

from backend.jobs.lifecycle import locked_job, next_cursor
from backend.jobs.models import Job
from backend.store.folder import FolderStore
from backend.store.port import StoreUnavailable
from backend.telemetry.models import Trajectory, TrajectoryFile, UnarchivedTrajectory
from backend.telemetry.trajectories.archive import (
    ARCHIVE_AFTER,
    ARCHIVE_AFTER_ROWS,
    MAX_ROWS_PER_FILE,
    archive_trajectories,
    jobs_to_archive,
)
from backend.telemetry.trajectories.search import Wanted, search_trajectories, the_trajectory, values_of, whole_of
from backend.telemetry.trajectories.storing import MOST_SHOWN, store_trajectories
from engine.spec.facts import TrajectoriesSampled, TrajectorySample


def sample(ordinal: int, index: int = 0, *, num_tokens: int = 5, **changes: Any) -> dict[str, Any]:
    trace = {
        "token_ids": list(range(num_tokens)),
        "logprobs": [-0.25 * at for at in range(num_tokens)],
        "versions": [3 if at < 2 else 4 for at in range(num_tokens)],
        "written": [at != 1 for at in range(num_tokens)],
    }
    row: dict[str, Any] = {
        "prompt_ordinal": ordinal,
        "sample": index,
        "version": 3,
        "staleness": 1,
        "num_tokens": num_tokens,
    }
    row |= {"reward": float(ordinal % 2), "advantage": 0.5, "prompt": f"prompt {ordinal}", "response": f"é {ordinal}"}
    return row | {"trace": trace} | changes


class Writer:
    def __init__(self, job: Job, now: datetime) -> None:
        self.job, self.now = job, now

    def write(self, step: int, *samples: dict[str, Any], attempt: int = 1) -> None:
        body = TrajectoriesSampled.model_validate({"step": step, "trajectories": list(samples)})
        with transaction.atomic():
            job = locked_job(self.job.pk)
            store_trajectories(job, attempt, body, cursor=next_cursor(job), now=self.now)


@pytest.fixture
def writer(job: Job, now: datetime) -> Writer:
    return Writer(job, now)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderStore:
    """The store that the API reads, too."""
    store = FolderStore(tmp_path)
    monkeypatch.setattr("backend.telemetry.trajectories.api.store", lambda: store)
    return store


def everything(job: Job, store: FolderStore) -> dict[str, TrajectorySample]:
    rows = Trajectory.objects.select_related("file").filter(job=job)
    return {row.trajectory_id: whole_of(row, store) for row in rows}


class TestFiling:
    def test_full_trajectory_is_the_same_after_archiving(
        self, job: Job, writer: Writer, store: FolderStore, now: datetime
    ) -> None:
        for step in range(1, 8):
            writer.write(step, *[sample(step * 10 + each, num_tokens=each + 1) for each in range(6)])
        writer.write(8, sample(1, trace=None), sample(2, outcome="cut", response="x" * (MOST_SHOWN + 50)))
        before = everything(job, store)
        assert len(before) == 44
        assert archive_trajectories(job.pk, store, now=now) == 44
        assert not UnarchivedTrajectory.objects.exists()
        assert everything(job, store) == before
        long = before["traj_1_8_2_0"]
        assert len(long.response) == MOST_SHOWN + 50 and long.outcome == "cut"
        assert len(Trajectory.objects.get(step=8, sample=0, prompt_ordinal=2).response) == MOST_SHOWN
        assert archive_trajectories(job.pk, store, now=now) == 0

    def test_any_parquet_reader_reads_the_file(
        self, job: Job, writer: Writer, store: FolderStore, now: datetime
    ) -> None:
        writer.write(1, sample(4), sample(5))
        archive_trajectories(job.pk, store, now=now)
        [kept] = store.list(f"jobs/{job.pk}/trajectories/")
        table = pq.read_table(io.BytesIO(store.get(kept.key)))
        assert table["response"].to_pylist() == ["é 4", "é 5"]
        assert table["versions"].to_pylist()[0] == [3, 3, 4, 4, 4]
        assert TrajectoryFile.objects.get().num_bytes == kept.num_bytes

    def test_repeated_fact_after_archiving_changes_nothing(
        self, job: Job, writer: Writer, store: FolderStore, now: datetime
    ) -> None:
        writer.write(1, sample(4))
        archive_trajectories(job.pk, store, now=now)
        before = list(Trajectory.objects.values())
        writer.write(1, sample(4, response="another"))
        assert list(Trajectory.objects.values()) == before and not UnarchivedTrajectory.objects.exists()

    def test_unreachable_store_loses_nothing(self, job: Job, writer: Writer, store: FolderStore, now: datetime) -> None:
        class Away(FolderStore):
            def put(self, key: str, content: bytes | Path) -> None:
                raise StoreUnavailable(key)

        writer.write(1, sample(4))
        before = everything(job, store)
        with pytest.raises(StoreUnavailable):
            archive_trajectories(job.pk, Away(Path("/nonexistent")), now=now)
        assert everything(job, store) == before
        assert archive_trajectories(job.pk, store, now=now) == 1

    def test_crash_after_writing_the_file_orphans_none(
        self, job: Job, writer: Writer, store: FolderStore, now: datetime
    ) -> None:
        writer.write(1, sample(4))
        with pytest.raises(RuntimeError), transaction.atomic():
            archive_trajectories(job.pk, store, now=now)
            raise RuntimeError("the process dies before its commit")
        writer.write(2, sample(5))
        before = everything(job, store)
        assert archive_trajectories(job.pk, store, now=now) == 2
        assert len(list(store.list(""))) == TrajectoryFile.objects.count() == 1
        assert everything(job, store) == before

    def test_file_size_is_bounded(self, job: Job, writer: Writer, store: FolderStore, now: datetime) -> None:
        for step in range(MAX_ROWS_PER_FILE // 32 + 1):
            writer.write(step + 1, *[sample(each, num_tokens=1) for each in range(32)])
        assert archive_trajectories(job.pk, store, now=now) == MAX_ROWS_PER_FILE
        assert archive_trajectories(job.pk, store, now=now) == 32
        assert TrajectoryFile.objects.count() == 2

    def test_waits_for_enough_rows_or_long_enough(self, job: Job, writer: Writer, now: datetime) -> None:
        writer.write(1, sample(4))
        assert jobs_to_archive(now) == []
        assert jobs_to_archive(now + ARCHIVE_AFTER + timedelta(seconds=1)) == [job.pk]
        for step in range(ARCHIVE_AFTER_ROWS // 32):
            writer.write(step + 2, *[sample(each, num_tokens=1) for each in range(32)])
        assert jobs_to_archive(now) == [job.pk]

    def test_single_row_is_read_without_the_whole_file(
        self, job: Job, writer: Writer, tmp_path: Path, now: datetime
    ) -> None:
        num_read = 0

        class Counting(FolderStore):
            def get_range(self, key: str, start: int, num_bytes: int) -> bytes:
                nonlocal num_read
                content = super().get_range(key, start, num_bytes)
                num_read += len(content)
                return content

        store, chance = Counting(tmp_path), random.Random(1)
        for step in range(1, 17):
            noise = [sample(each, response=chance.randbytes(2_000).hex()) for each in range(16)]
            writer.write(step, *noise)
        archive_trajectories(job.pk, store, now=now)
        [file] = TrajectoryFile.objects.all()
        row = the_trajectory(job, "traj_1_9_3_0")
        assert whole_of(row, store).prompt == "prompt 3"
        assert num_read < file.num_bytes / 2


class TestReading:
    def test_pages_neither_repeat_nor_skip(self, job: Job, writer: Writer) -> None:
        for step in (1, 3, 2, 5):
            writer.write(step, *[sample(each) for each in range(3)])
        seen, cursor = [], None
        while True:
            found, cursor = search_trajectories(job, Wanted(), cursor=cursor, limit=5)
            seen += [row.trajectory_id for row in found]
            if cursor is None:
                break
            writer.write(6, sample(len(seen)))  # new rows are newer, so pages do not shift
        assert [each.split("_")[2] for each in seen] == ["5"] * 3 + ["3"] * 3 + ["2"] * 3 + ["1"] * 3
        assert len(set(seen)) == 12

    def test_filters_by_step_outcome_and_reward(self, job: Job, writer: Writer, api_trajectories: Any) -> None:
        writer.write(1, sample(0), sample(1), sample(2, outcome="error", reward=0.0, remark="took longer than 5 s"))
        writer.write(2, sample(3))
        assert len(api_trajectories(step=1)["data"]) == 3
        assert [row["prompt_ordinal"] for row in api_trajectories(outcome="error")["data"]] == [2]
        assert {row["prompt_ordinal"] for row in api_trajectories(min_reward=0.5)["data"]} == {1, 3}
        assert {row["prompt_ordinal"] for row in api_trajectories(max_reward=0.5)["data"]} == {0, 2}
        first = api_trajectories(limit=3)
        assert first["has_more"] and len(api_trajectories(cursor=first["next_cursor"])["data"]) == 1

    @pytest.fixture
    def api_trajectories(self, job: Job, api: Any) -> Any:

        def get(**query: Any) -> Any:
            answer = api.get(f"/jobs/{job.pk}/trajectories", **query)
            assert answer.status_code == 200, answer.content
            return answer.json()

        return get

    def test_full_trajectory_has_every_token_with_its_author(
        self, job: Job, writer: Writer, store: FolderStore, api: Any, now: datetime
    ) -> None:
        writer.write(1, sample(4))
        waiting = api.get(f"/jobs/{job.pk}/trajectories/traj_1_1_4_0").json()
        archive_trajectories(job.pk, store, now=now)
        archived = api.get(f"/jobs/{job.pk}/trajectories/traj_1_1_4_0").json()
        assert waiting == archived
        untold: dict[str, list[object]] = {"texts": [], "trainer_logprobs": []}
        assert archived["trace"] == json.loads(json.dumps(sample(4)["trace"])) | untold

    @pytest.mark.parametrize("id", ["traj_1_1_5_0", "traj_9_1_4_0", "x", "traj_1_1_4_0_0", "traj_-1_1_4_0", "%00"])
    def test_missing_trajectory_is_404(self, job: Job, writer: Writer, api: Any, id: str) -> None:
        writer.write(1, sample(4))
        assert api.get(f"/jobs/{job.pk}/trajectories/{id}").status_code == 404

    def test_trajectory_of_another_job_is_404(self, make_job: Any, job: Job, writer: Writer, api: Any) -> None:
        writer.write(1, sample(4))
        other = make_job()
        with pytest.raises(Exception, match="Trajectory not found in this job"):
            the_trajectory(other, "traj_1_1_4_0")

    @pytest.mark.parametrize(
        "query", [{"cursor": "x"}, {"cursor": "1.2.3"}, {"outcome": "great"}, {"min_reward": "nan"}]
    )
    def test_a_bad_query_is_a_problem(self, job: Job, api: Any, query: Any) -> None:
        assert api.get(f"/jobs/{job.pk}/trajectories", **query).status_code == 422


class TestDistributions:
    def test_distribution_is_of_newest_step_and_latest_attempt(self, job: Job, writer: Writer) -> None:
        assert values_of(job, "reward", None) == (None, ())
        writer.write(1, *[sample(each) for each in range(4)])
        writer.write(2, sample(7, num_tokens=9, staleness=3))
        writer.write(1, sample(9, num_tokens=2), attempt=2)
        assert values_of(job, "length", None) == (2, [9.0])
        assert values_of(job, "staleness", 2) == (2, [3.0])
        assert values_of(job, "reward", 1) == (1, [1.0])
        assert values_of(job, "advantage", 1) == (1, [0.5])
