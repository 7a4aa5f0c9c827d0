"""Data's log: appended records are read back unchanged, wherever the file's end is torn."""

import random
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.live.data.frames import HEAD, entry_of, frame, frames
from engine.live.data.journal_file import JournalFile
from engine.live.data.recovery import LogLost, read_journal
from engine.live.data.snapshots import WORTH_ITS_FILE
from engine.pipeline.failure_counts import FailureCounts
from engine.pipeline.journal import (
    BatchMade,
    CheckpointKept,
    DataSnapshot,
    Record,
    StepTrained,
    TrainerForked,
    TrajectoryTaken,
)
from engine.pipeline.packed import Bytes, Floats, Ints, Marks
from engine.pipeline.records import (
    DataProgress,
    GroupKey,
    SampleKey,
    Trajectory,
    TrajectoryContent,
    Utterance,
    VersionRun,
)
from engine.policy.lineage import Lineage, WeightsId
from engine.progress import LoopProgress

TRAJECTORY = Trajectory(
    key=SampleKey(group=GroupKey(ordinal=3, evaluation=None), sample=1),
    weights=WeightsId(1, 4),
    runs=(VersionRun(weights=WeightsId(1, 4), num_tokens=1), VersionRun(weights=WeightsId(1, 5), num_tokens=1)),
    reward=0.1 + 0.2,
    num_tokens=2,
    content=TrajectoryContent(
        prompt_ids=Ints.of([1, 2]),
        response_ids=Ints.of([3, 4]),
        logprobs=Floats.of([-0.1, -1.0 / 3.0]),
        written=Marks.of([True, False]),
        prompt_text="ask",
        response_text='say "it"\n\udce9',
        remark="",
    ),
)
RECORDS: list[Record] = [
    TrajectoryTaken(trajectory=TRAJECTORY),
    BatchMade(step=1, ordinals=(3,)),
    StepTrained(step=1),
    CheckpointKept(step=1),  # the same fields as StepTrained, but another type
    TrainerForked(epoch=2, step=1, progress=DataProgress(ended=((0, 4),), ledger=(("trained", 4),))),
]
SNAPSHOT = DataSnapshot(
    progress=DataProgress(ended=((0, 2), (3, 4))),
    num_rolled_back=0,
    trained_version=1,
    checkpointed=1,
    lineage=Lineage(((2, 1),)),
    first_version=0,
    unfinished=((TRAJECTORY,),),
    ready=(),
    batch=None,
    history=(),
    evaluations=(),
    reports=(),
    is_over=False,
    failures=FailureCounts(num_samples=2, num_groups=1),
    num_ended_groups=3,
    num_filtered_in_a_row=0,
)


def written(folder: Path) -> None:
    journal = JournalFile(folder)
    journal.append(RECORDS[:2])
    journal.append(RECORDS[2:])
    journal.close()


def test_appended_records_are_read_back_unchanged(tmp_path: Path) -> None:
    written(tmp_path)
    assert read_journal(tmp_path) == (None, RECORDS)


def test_folder_without_a_log_reads_as_an_empty_log(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "nothing") == (None, [])


@pytest.mark.long
def test_records_before_a_torn_end_are_read(tmp_path: Path) -> None:
    written(tmp_path)
    [file] = tmp_path.glob("*.journal")
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        _, records = read_journal(tmp_path)
        assert records == RECORDS[: len(records)]
        assert len(records) < len(RECORDS)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_writing_continues_after_a_torn_end(tmp_path: Path, cut: int) -> None:
    written(tmp_path)
    [file] = tmp_path.glob("*.journal")
    file.write_bytes(file.read_bytes()[:-cut])
    journal = JournalFile(tmp_path)
    journal.append([StepTrained(step=9)])
    journal.close()
    assert read_journal(tmp_path) == (None, [*RECORDS[:-1], StepTrained(step=9)])


def test_flipped_bit_ends_the_log(tmp_path: Path) -> None:
    written(tmp_path)
    [file] = tmp_path.glob("*.journal")
    content = bytearray(file.read_bytes())
    content[20] ^= 1
    file.write_bytes(content)
    assert read_journal(tmp_path) == (None, [])


def test_snapshot_replaces_everything_before_it(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    journal.append([StepTrained(step=7)])
    journal.start_snapshot(replace(SNAPSHOT, unfinished=()))
    journal.append([StepTrained(step=2)])
    journal.close()
    assert read_journal(tmp_path) == (replace(SNAPSHOT, unfinished=()), [StepTrained(step=2)])
    assert {file.name for file in tmp_path.iterdir()} == {"00000002.journal", "00000002.snapshot"}


def large(ordinal: int) -> Trajectory:
    assert TRAJECTORY.content is not None
    content = replace(TRAJECTORY.content, logprobs=Floats(random.Random(ordinal).randbytes(4 * 10_000)))
    return replace(TRAJECTORY, key=SampleKey(group=GroupKey(ordinal=ordinal), sample=0), content=content)


def taken(journal: JournalFile, trajectories: Sequence[Trajectory]) -> None:
    journal.append([TrajectoryTaken(trajectory=each) for each in trajectories])


def snapshot_of(trajectories: Sequence[Trajectory]) -> DataSnapshot:
    return replace(SNAPSHOT, unfinished=tuple((each,) for each in trajectories))


def test_trajectory_in_many_snapshots_is_written_once(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    held = [large(ordinal) for ordinal in range(20)]
    for upto in (10, 20):
        taken(journal, held[upto - 10 : upto])
        journal.start_snapshot(snapshot_of(held[:upto]))
        journal.finish_snapshot()
        assert read_journal(tmp_path) == (snapshot_of(held[:upto]), [])
    journal.close()
    size_of_one = 4 * 10_000
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 20 * size_of_one * 1.1
    assert sum(file.stat().st_size for file in tmp_path.glob("*.snapshot")) < size_of_one


def test_log_stays_within_a_multiple_of_its_live_content(tmp_path: Path) -> None:
    """One sample of each file outlives all the others in it."""
    journal = JournalFile(tmp_path)
    kept: list[Trajectory] = []
    for turn in range(8):
        fresh = [large(10 * turn + at) for at in range(10)]
        taken(journal, fresh)
        kept.append(fresh[0])
        journal.start_snapshot(snapshot_of(kept))
        journal.finish_snapshot()
    journal.close()
    assert read_journal(tmp_path) == (snapshot_of(kept), [])
    num_bytes = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert num_bytes < (1 / WORTH_ITS_FILE + 1) * len(kept) * 4 * 10_000


def test_second_trajectory_of_a_sample_is_written_too(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    first = large(1)
    taken(journal, [first])
    second = replace(first, reward=9.0)
    journal.start_snapshot(snapshot_of([second]))
    journal.close()
    assert read_journal(tmp_path) == (snapshot_of([second]), [])


def test_records_appended_during_a_snapshot_follow_it(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    held = [large(ordinal) for ordinal in range(50)]
    taken(journal, held)
    journal.start_snapshot(snapshot_of(held))
    journal.append([StepTrained(step=2)])
    journal.start_snapshot(snapshot_of(held))  # skipped if the first is still being written
    journal.append([StepTrained(step=3)])
    journal.close()
    snapshot, records = read_journal(tmp_path)
    assert snapshot == snapshot_of(held) and records in (
        [StepTrained(step=2), StepTrained(step=3)],
        [StepTrained(step=3)],
    )


def test_reopened_log_keeps_its_content_and_continues(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    held = [large(ordinal) for ordinal in range(3)]
    taken(journal, held)
    journal.start_snapshot(snapshot_of(held))
    journal.close()
    snapshot, _ = read_journal(tmp_path)
    assert snapshot is not None
    journal = JournalFile(tmp_path)
    journal.append([StepTrained(step=2)])
    journal.start_snapshot(snapshot)
    journal.close()
    assert read_journal(tmp_path) == (snapshot_of(held), [])


def test_failed_snapshot_raises_in_finish_and_append(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    (tmp_path / "00000002.new").mkdir()
    journal.start_snapshot(SNAPSHOT)
    with pytest.raises(IsADirectoryError):
        journal.finish_snapshot()
    with pytest.raises(IsADirectoryError):
        journal.append([StepTrained(step=2)])


def test_snapshot_reports_progress_per_trajectory(tmp_path: Path) -> None:
    many = snapshot_of([large(ordinal) for ordinal in range(50)])
    progress = LoopProgress()
    with progress.attached():
        journal = JournalFile(tmp_path)
        journal.start_snapshot(many)
        journal.close()
        [beside] = progress.worker_pieces
        assert beside.serial >= 50
        before = progress.piece.serial
        assert read_journal(tmp_path) == (many, [])
    assert progress.piece.serial - before >= 50
    longest = max(len(body) for file in tmp_path.iterdir() for body, _ in frames(file.read_bytes()))
    assert longest < 2 * 4 * 10_000, "only the last frame grows with their number, by one offset each"


def test_unfinished_snapshot_is_ignored(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "00000002.journal").touch()
    (tmp_path / "00000002.new").write_bytes(b"half of it")
    assert read_journal(tmp_path) == (None, RECORDS)
    journal = JournalFile(tmp_path)
    journal.append([StepTrained(step=9)])
    journal.close()
    assert read_journal(tmp_path) == (None, [*RECORDS, StepTrained(step=9)])


def test_lost_snapshot_is_an_error_not_an_empty_log(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    journal.append([TrajectoryTaken(trajectory=TRAJECTORY)])
    journal.start_snapshot(SNAPSHOT)
    journal.close()
    for file in (tmp_path / "00000001.journal", tmp_path / "00000002.snapshot"):
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        with pytest.raises(LogLost, match=file.name):
            read_journal(tmp_path)
        file.write_bytes(whole)
    assert read_journal(tmp_path) == (SNAPSHOT, [])


def test_token_of_model_text_takes_eight_bytes_in_the_log(tmp_path: Path) -> None:
    assert TRAJECTORY.content is not None
    rng = random.Random(0)
    content = replace(
        TRAJECTORY.content,
        response_ids=Ints.of([rng.randrange(150_000) for _ in range(4_096)]),
        logprobs=Floats.of([-rng.random() for _ in range(4_096)]),
    )
    journal = JournalFile(tmp_path)
    journal.append([TrajectoryTaken(trajectory=replace(TRAJECTORY, content=content))])
    journal.close()
    [file] = tmp_path.glob("*.journal")
    assert file.stat().st_size < 8.2 * 4_096


def test_mixture_costs_the_log_no_more_than_a_dense_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes on disk, and in bytes that data's thread deflates. Its routes are unknown after a recovery."""
    assert TRAJECTORY.content is not None
    num_deflated: list[int] = []
    compress = zlib.compress

    def counting(data: bytes, level: int) -> bytes:
        num_deflated.append(len(data))
        return compress(data, level)

    monkeypatch.setattr(zlib, "compress", counting)
    dense = frame(TrajectoryTaken(trajectory=TRAJECTORY))
    of_dense = [*num_deflated]
    num_deflated.clear()
    routes = Bytes(random.Random(0).randbytes(336 * 4_096))
    mixture = replace(TRAJECTORY, content=replace(TRAJECTORY.content, routes=routes))
    assert frame(TrajectoryTaken(trajectory=mixture)) == dense
    assert num_deflated == of_dense
    entry = entry_of(dense[HEAD.size :], resolve=[].__getitem__)
    assert entry == TrajectoryTaken(trajectory=TRAJECTORY), "without routes"


def test_utterances_and_reward_parts_are_read_unchanged() -> None:
    asked = Utterance(is_own=True, start=0, num_letters=4, first_token=0, num_tokens=1, tool="it", arguments="a" * 99)
    seen = Utterance(is_own=False, start=4, num_letters=5, first_token=1, num_tokens=1, seconds=0.1 + 0.2)
    assert TRAJECTORY.content is not None
    content = replace(TRAJECTORY.content, utterances=(asked, seen), parts=(("bytes", 0.1 + 0.2),))
    trajectory = replace(TRAJECTORY, content=content)
    assert entry_of(frame(trajectory)[HEAD.size :], resolve=lambda lies: TRAJECTORY) == trajectory
