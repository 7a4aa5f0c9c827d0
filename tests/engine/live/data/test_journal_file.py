"""Data's log: what was appended is read back as it was, whatever is left of the file's end."""

import json
import random
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from engine.live.data.journal_file import JournalFile, _frames, read_journal
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
from engine.pipeline.records import DataProgress, GroupKey, SampleKey, Trajectory, TrajectoryContent, VersionRun
from engine.policy.lineage import Lineage, WeightsId
from engine.signs import Signs

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
        routes=Bytes(bytes(range(256))),
    ),
)
RECORDS: list[Record] = [
    TrajectoryTaken(trajectory=TRAJECTORY),
    BatchMade(step=1, ordinals=(3,)),
    StepTrained(step=1),
    CheckpointKept(step=1),  # the same fields as the one before: it must not be taken for it
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
    num_failed_groups=0,
    num_ended_groups=3,
    num_filtered_in_a_row=0,
)


def written(folder: Path) -> None:
    journal = JournalFile(folder)
    journal.append(RECORDS[:2])
    journal.append(RECORDS[2:])
    journal.close()


def test_what_was_appended_is_read_back_as_it_was(tmp_path: Path) -> None:
    written(tmp_path)
    assert read_journal(tmp_path) == (None, RECORDS)


def test_a_folder_without_a_log_is_an_empty_one(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "nothing") == (None, [])


def test_whatever_is_left_of_the_end_the_records_before_it_stand(tmp_path: Path) -> None:
    written(tmp_path)
    [file] = tmp_path.glob("*.journal")
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        _, records = read_journal(tmp_path)
        assert records == RECORDS[: len(records)]
        assert len(records) < len(RECORDS)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_writing_goes_on_behind_a_torn_end(tmp_path: Path, cut: int) -> None:
    written(tmp_path)
    [file] = tmp_path.glob("*.journal")
    file.write_bytes(file.read_bytes()[:-cut])
    journal = JournalFile(tmp_path)
    journal.append([StepTrained(step=9)])
    journal.close()
    assert read_journal(tmp_path) == (None, [*RECORDS[:-1], StepTrained(step=9)])


def test_a_flipped_bit_ends_the_log_there(tmp_path: Path) -> None:
    written(tmp_path)
    [file] = tmp_path.glob("*.journal")
    content = bytearray(file.read_bytes())
    content[20] ^= 1
    file.write_bytes(content)
    assert read_journal(tmp_path) == (None, [])


def test_a_snapshot_takes_the_place_of_everything_before_it(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path)
    journal.append(RECORDS)
    journal.begin_anew(SNAPSHOT)
    journal.append([StepTrained(step=2)])
    journal.close()
    assert read_journal(tmp_path) == (SNAPSHOT, [StepTrained(step=2)])
    assert len(list(tmp_path.iterdir())) == 1


def test_a_snapshot_gives_a_sign_of_life_for_each_trajectory_written_and_read(tmp_path: Path) -> None:
    many = replace(SNAPSHOT, unfinished=((TRAJECTORY,) * 30, (TRAJECTORY,) * 20))
    signs = Signs(clock=lambda: 0.0)
    with signs.heard_here():
        JournalFile(tmp_path).begin_anew(many)
        num_written = signs.piece.serial
        assert read_journal(tmp_path) == (many, [])
    assert num_written >= 50 and signs.piece.serial - num_written >= 50
    [file] = tmp_path.glob("*.journal")
    longest = max(len(body) for body, _ in _frames(file.read_bytes()))
    assert longest < 1_000 + 50 * 40, "no frame but the last grows with their number, and that by a number each"


def test_a_snapshot_that_was_not_finished_does_not_count(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "00000002.new").write_bytes(b"half of it")
    assert read_journal(tmp_path) == (None, RECORDS)
    JournalFile(tmp_path).begin_anew(SNAPSHOT)
    assert read_journal(tmp_path) == (SNAPSHOT, [])


def test_a_log_whose_tokens_are_lists_of_numbers_is_read_as_well(tmp_path: Path) -> None:
    """As those of earlier releases are, which know nothing of routes."""
    body = json.dumps(
        {
            "TrajectoryTaken": {
                "trajectory": {
                    "key": {"group": {"ordinal": 3, "evaluation": None}, "sample": 1},
                    "weights": {"epoch": 1, "version": 4},
                    "reward": 0.30000000000000004,
                    "num_tokens": 2,
                    "runs": [
                        {"weights": {"epoch": 1, "version": 4}, "num_tokens": 1},
                        {"weights": {"epoch": 1, "version": 5}, "num_tokens": 1},
                    ],
                    "content": {
                        "prompt_ids": [1, 2],
                        "response_ids": [3, 4],
                        "logprobs": [-0.1, -1.0 / 3.0],
                        "prompt_text": "ask",
                        "response_text": 'say "it"\n\udce9',
                        "remark": "",
                        "written": [True, False],
                    },
                }
            }
        }
    ).encode()
    (tmp_path / "00000001.journal").write_bytes(struct.pack("<II", len(body), zlib.crc32(body)) + body)
    assert TRAJECTORY.content is not None
    without = replace(TRAJECTORY, content=replace(TRAJECTORY.content, routes=Bytes()))
    assert read_journal(tmp_path) == (None, [TrajectoryTaken(trajectory=without)])


def test_a_token_takes_a_dozen_bytes_of_the_log(tmp_path: Path) -> None:
    assert TRAJECTORY.content is not None
    rng = random.Random(0)
    content = replace(
        TRAJECTORY.content,
        response_ids=Ints.of([rng.randrange(150_000) for _ in range(4_096)]),
        logprobs=Floats.of([-rng.random() for _ in range(4_096)]),
        written=Marks.of([True] * 4_096),
    )
    journal = JournalFile(tmp_path)
    journal.append([TrajectoryTaken(trajectory=replace(TRAJECTORY, content=content))])
    journal.close()
    [file] = tmp_path.glob("*.journal")
    assert file.stat().st_size < 13 * 4_096
