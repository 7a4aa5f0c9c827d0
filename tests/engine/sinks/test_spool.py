"""The spool: durable when `append` returns, intact after a crash, bounded, small in memory."""

import errno
import json
import os
from pathlib import Path

import pytest

from engine.sinks import segments
from engine.sinks import spool as spools
from engine.sinks.jsonl import JsonlSink
from engine.sinks.spool import NotInSpool, Spool
from engine.spec import fact_segments
from engine.spec.fact_segments import first_seqs, has_segments, segment_name
from engine.spec.facts import Fact, PhaseChanged, StepTrained

BODY = PhaseChanged(phase="training")


def step(number: int) -> StepTrained:
    return StepTrained(step=number, metrics={"reward/mean": 0.5})


def seqs(lines: list[bytes]) -> list[int]:
    return [json.loads(line)["seq"] for line in lines]


def after(spool: Spool, seq: int) -> list[int]:
    return seqs(spool.lines_after(seq, max_facts=1_000, max_bytes=10**9))


def small(folder: Path, *, kept_bytes: int = 0) -> Spool:
    """Two facts a segment."""
    return Spool(folder, segment_bytes=100, kept_bytes=kept_bytes)


def filled(folder: Path, num_facts: int, *, kept_bytes: int = 0) -> Spool:
    spool = small(folder, kept_bytes=kept_bytes)
    for _ in range(num_facts):
        spool.append(BODY)
    return spool


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "attempt" / "facts"


@pytest.fixture
def path(folder: Path) -> Path:
    """The path of the first segment."""
    return folder / segment_name(1)


def test_facts_are_numbered_from_one_and_are_readable_as_facts(folder: Path) -> None:
    spool = Spool(folder)
    assert [spool.append(step(number)).seq for number in (1, 2, 3)] == [1, 2, 3]
    lines = spool.lines_after(1, max_facts=10, max_bytes=10_000)
    assert [Fact.model_validate_json(line).seq for line in lines] == [2, 3]


def test_a_fact_is_in_the_file_when_append_returns(folder: Path, path: Path) -> None:
    Spool(folder).append(BODY)
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("num_cut", [1, 5, 60])
def test_torn_line_is_cut_off_and_its_number_reused(folder: Path, path: Path, num_cut: int) -> None:
    spool = Spool(folder)
    spool.append(BODY)
    spool.append(BODY)
    spool.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-num_cut])
    reopened = Spool(folder)
    assert reopened.last_seq == 1
    assert reopened.append(BODY).seq == 2
    assert after(reopened, 0) == [1, 2]


def test_a_batch_is_bounded_by_number_and_bytes_but_never_empty(folder: Path) -> None:
    spool = Spool(folder)
    for number in range(1, 11):
        spool.append(step(number))
    assert seqs(spool.lines_after(0, max_facts=3, max_bytes=10_000)) == [1, 2, 3]
    assert seqs(spool.lines_after(3, max_facts=10, max_bytes=1)) == [4]
    assert seqs(spool.lines_after(9, max_facts=10, max_bytes=10_000)) == [10]
    assert spool.lines_after(10, max_facts=10, max_bytes=10_000) == []


def test_reading_may_go_back_also_across_segments(folder: Path) -> None:
    spool = filled(folder, 9)
    assert first_seqs(folder) == [1, 3, 5, 7, 9]
    assert [after(spool, seq) for seq in (4, 1, 8, 0, 9)] == [[*range(seq + 1, 10)] for seq in (4, 1, 8, 0, 9)]


def test_the_file_sink_shows_each_fact_and_keeps_one_file(tmp_path: Path) -> None:
    shown: list[Fact] = []
    sink = JsonlSink(tmp_path / "out" / "facts.jsonl", on_fact=shown.append)
    sink.record(BODY)
    sink.record(BODY)
    assert sink.close(timeout_s=0)
    assert [fact.seq for fact in shown] == [1, 2]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["facts.jsonl"]


# ── segments ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_unacknowledged_facts_are_never_discarded(folder: Path) -> None:
    spool = filled(folder, 20)
    spool.discard(0)
    assert after(spool, 0) == [*range(1, 21)]
    spool.discard(3)  # half of the second segment
    assert first_seqs(folder)[0] == 3
    assert after(spool, 3) == [*range(4, 21)]


def test_acknowledged_facts_are_kept_up_to_a_bound(folder: Path, path: Path) -> None:
    spool = filled(folder, 2, kept_bytes=0)
    segment_bytes = path.stat().st_size
    spool = small(folder, kept_bytes=3 * segment_bytes)
    for seq in range(3, 200):
        spool.discard(spool.append(BODY).seq - 1)
        kept = seq - first_seqs(folder)[0]
        assert kept >= min(seq - 1, 6), "a restored database may ask for these"
        assert kept <= 10
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 6 * segment_bytes


def test_acknowledged_facts_are_kept_during_a_long_outage(folder: Path) -> None:
    spool = filled(folder, 9, kept_bytes=200)
    spool.discard(8)
    oldest = first_seqs(folder)[0]
    for _ in range(100):
        spool.append(BODY)
        spool.discard(8)
    assert first_seqs(folder)[0] == oldest and after(spool, 8) == [*range(9, 110)]


def test_reading_a_discarded_fact_is_an_error(folder: Path) -> None:
    spool = filled(folder, 9)
    spool.discard(6)
    with pytest.raises(NotInSpool, match="fact 3 is not kept, the oldest that is kept is 7"):
        after(spool, 2)
    assert after(spool, 6) == [7, 8, 9]


def test_numbers_continue_after_segments_were_discarded(folder: Path) -> None:
    filled(folder, 9).discard(9)
    reopened = small(folder)
    assert reopened.last_seq == 9 and reopened.append(BODY).seq == 10
    assert after(reopened, 8) == [9, 10]


class Killed(BaseException):
    """The process ends at this line."""


@pytest.mark.parametrize("num_cut", [0, 1, 30])
@pytest.mark.parametrize("dies_in", ["open", "sync_folder", "append_through", "unlink"])
def test_kill_at_any_line_loses_and_doubles_no_fact(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str, num_cut: int
) -> None:
    """Kills the driver before or after each call that changes the disk, and counts facts at a control plane."""
    owners = {"open": Path, "unlink": Path, "sync_folder": segments, "append_through": segments}
    real = getattr(owners[dies_in], dies_in)
    stored: list[int] = []
    lives = 0

    for at in range(1, 13):
        calls = 0

        def mortal(*arguments: object, at: int = at, **more: object) -> object:
            nonlocal calls
            calls += 1
            if calls == at and at % 2:
                raise Killed
            done = real(*arguments, **more)
            if calls == at:
                raise Killed
            return done

        monkeypatch.setattr(owners[dies_in], dies_in, mortal)
        last_seq = stored[-1] if stored else 0
        try:
            spool = small(folder, kept_bytes=150)
            for _ in range(12):
                last_seq = spool.append(BODY).seq
                stored += after(spool, len(stored))
                spool.discard(len(stored))
        except Killed:
            lives += 1
        monkeypatch.setattr(owners[dies_in], dies_in, real)
        last = folder / segment_name(first_seqs(folder)[-1]) if first_seqs(folder) else None
        if num_cut and last is not None:  # half of the next line is on disk
            last.open("ab").write(b'{"seq":' + b"9" * num_cut)
        reopened = small(folder, kept_bytes=150)
        assert reopened.last_seq >= last_seq, "a fact whose append had returned is lost"
        stored += after(reopened, len(stored))
        assert stored == [*range(1, reopened.last_seq + 1)]
        reopened.close()
    assert lives >= 6


@pytest.mark.parametrize("num_removed", [0, 1, 2])
def test_kill_between_two_removals_leaves_no_hole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, num_removed: int
) -> None:
    left, real = num_removed, Path.unlink

    def mortal(path: Path, *, missing_ok: bool) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        real(path, missing_ok=missing_ok)

    spool = filled(folder, 9)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Path, "unlink", mortal)
        spool.discard(8)
    oldest = first_seqs(folder)[0]
    assert oldest == 1 + 2 * num_removed
    assert after(small(folder), oldest - 1) == [*range(oldest, 10)]


def test_segment_restored_from_a_backup_of_files_is_harmless(folder: Path) -> None:
    spool = filled(folder, 6)
    half = (folder / segment_name(1)).read_bytes().splitlines(keepends=True)[0]
    spool.discard(4)
    (folder / segment_name(1)).write_bytes(half)  # as in the backup
    reopened = small(folder)
    assert reopened.last_seq == 6 and after(reopened, 4) == [5, 6] and after(reopened, 0) == [1]
    with pytest.raises(NotInSpool, match="fact 2 is not kept"):
        after(reopened, 1)
    reopened.discard(4)
    assert first_seqs(folder) == [5]


def test_a_segment_that_cannot_be_removed_does_not_end_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **more: object) -> None:
        raise PermissionError(errno.EACCES, "no")

    spool = filled(folder, 9)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        spool.discard(4)
    assert after(spool, 4) == [5, 6, 7, 8, 9]
    small(folder).discard(4)
    assert first_seqs(folder)[0] == 5


def test_a_new_spools_folder_survives_a_power_cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose folder was never synced is gone with the folder, however often it was synced itself."""
    synced: list[Path] = []
    monkeypatch.setattr(spools, "sync_folder", synced.append)
    monkeypatch.setattr(segments, "sync_folder", synced.append)
    small(folder).close()
    assert synced == [folder.parent, folder]


def test_a_folder_filled_by_a_hostile_node_is_not_read_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    monkeypatch.setattr(fact_segments, "MOST_ENTRIES", 3)
    for name in ("a", "b", "c"):
        (folder / name).touch()
    assert first_seqs(folder) == [] and not has_segments(folder)
    (folder / "d").touch()
    with pytest.raises(ValueError, match="more than 3 entries"):
        first_seqs(folder)
    assert has_segments(folder)


def test_without_room_for_a_new_segment_the_last_one_grows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    spool = filled(folder, 2)
    with monkeypatch.context() as patched:
        patched.setattr(segments, "sync_folder", full)
        spool.append(BODY)
        assert first_seqs(folder) == [1]
    spool.append(BODY)
    assert first_seqs(folder) == [1, 4] and after(spool, 0) == [1, 2, 3, 4]
    spool.close()
    assert after(small(folder), 0) == [1, 2, 3, 4]


def test_partial_line_on_a_full_disk_is_cut_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_half(file: object, data: bytes) -> None:
        os.write(file.fileno(), data[:20])  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    spool = Spool(folder)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
        patched.setattr(segments, "append_through", write_half)
        spool.append(BODY)
    assert spool.append(BODY).seq == 1 and after(spool, 0) == [1]


def test_reading_costs_one_segment_however_long_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(folder, 200, kept_bytes=10**9).close()
    opened: list[Path] = []
    real = Path.open

    def noted(path: Path, *arguments: object, **more: object) -> object:
        opened.append(path)
        return real(path, *arguments, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", noted)
    spool = small(folder, kept_bytes=10**9)
    assert {path.name for path in opened} == {segment_name(199)}
    opened.clear()
    assert seqs(spool.lines_after(100, max_facts=2, max_bytes=10_000)) == [101, 102]
    assert {path.name for path in opened} == {segment_name(101)}
