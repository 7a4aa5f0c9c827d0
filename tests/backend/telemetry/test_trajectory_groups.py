"""Groups: the samples of a step by question and by end, each in full with its turns and tokens."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from backend.jobs.models import Job
from backend.store.folder import FolderStore
from backend.telemetry.trajectories.archive import archive_trajectories
from backend.telemetry.trajectories.groups import ends_of_step, groups_of_step, samples_of_group
from backend.telemetry.trajectories.search import the_trajectory, values_of, whole_of
from engine.spec.facts import TrajectorySample
from tests.backend.telemetry.test_trajectories import Writer, sample

TOLD: dict[str, Any] = {
    "end": "filtered",
    "reason": "all samples of its group have the same reward",
    "group_size": 4,
    "parts": {"format": 0.25, "answer": 0.75},
    "turns": [
        {"author": "model", "text": "let me see", "first_token": 0, "num_tokens": 3, "tool": "sum", "arguments": "[1]"},
        {"author": "environment", "text": "1", "first_token": 3, "num_tokens": 2, "tool": "sum", "seconds": 0.5},
    ],
}


@pytest.fixture
def writer(job: Job, now: datetime) -> Writer:
    return Writer(job, now)


def told(ordinal: int = 4) -> dict[str, Any]:
    trace = sample(ordinal)["trace"] | {"texts": ["a", "é", "\n", "�", ""], "trainer_logprobs": [-0.5] * 5}
    return sample(ordinal, **TOLD) | {"trace": trace}


def test_step_is_grouped_by_question_for_latest_attempt(job: Job, writer: Writer) -> None:
    writer.write(3, sample(1, 0, reward=5.0, group_size=1))
    whole = [sample(1, each, reward=float(each), group_size=3, end="trained") for each in range(3)]
    failed = sample(2, 0, outcome="error", reward=0.0, end="failed", reason="no answer", group_size=3)
    writer.write(3, *whole, failed, sample(2, 1, reward=0.5, end="failed", group_size=3), attempt=2)
    first, second = groups_of_step(job, 3)
    assert (first.prompt_ordinal, first.prompt, first.num_reported, first.is_whole) == (1, "prompt 1", 3, True)
    assert (first.reward_min, first.reward_mean, first.reward_max) == (0.0, 1.0, 2.0)
    assert first.ends == {"trained": 3}
    assert (second.num_reported, second.group_size, second.is_whole, second.ends) == (2, 3, False, {"failed": 2})
    assert second.reward_mean == 0.5, "an error is not a reward of 0"
    assert [row.trajectory_id for row in samples_of_group(job, 3, 1)] == [f"traj_2_3_1_{each}" for each in range(3)]
    assert [(each.end, each.reason, each.num_reported) for each in ends_of_step(job, 3)] == [
        ("trained", "", 3), ("failed", "no answer", 1), ("failed", "", 1)
    ]  # fmt: skip
    assert (groups_of_step(job, 4), samples_of_group(job, 3, 9), ends_of_step(job, 4)) == ([], [], [])


def test_turns_tokens_and_parts_survive_archiving_and_api(
    job: Job, writer: Writer, tmp_path: Path, api: Any, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)
    monkeypatch.setattr("backend.telemetry.trajectories.api.store", lambda: store)
    writer.write(1, told(), sample(5))
    waiting = [api.get(f"/jobs/{job.pk}/trajectories/traj_1_1_{each}_0").json() for each in (4, 5)]
    archive_trajectories(job.pk, store, now=now)
    archived = [api.get(f"/jobs/{job.pk}/trajectories/traj_1_1_{each}_0").json() for each in (4, 5)]
    assert waiting == archived
    whole = TrajectorySample.model_validate(told())
    assert whole_of(the_trajectory(job, "traj_1_1_4_0"), store) == whole
    row, plain = archived
    assert row["turns"] == [turn.model_dump() for turn in whole.turns]
    assert (row["num_turns"], row["end"], row["parts"]) == (2, "filtered", TOLD["parts"])
    assert row["trace"]["texts"] == ["a", "é", "\n", "�", ""]
    assert (plain["end"], plain["turns"], plain["parts"], plain["group_size"]) == ("trained", [], {}, 0)


def test_distributions_cover_trained_samples(job: Job, writer: Writer) -> None:
    writer.write(1, sample(1, reward=1.0), sample(2, reward=9.0, end="dropped_stale"))
    assert values_of(job, "reward", 1) == (1, [1.0])
