"""A restored database: no fence is given twice, and leftovers of the lost time are read once."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.conf import settings as django_settings
from pytest_django import DjangoCaptureOnCommitCallbacks

from backend.jobs.attempts.tokens import attempt_of_token, attempt_token
from backend.jobs.generation.left_behind import spool_of, submission_id
from backend.jobs.generation.mark import Mark, read_mark
from backend.jobs.generation.raising import Seen, keep_mark, present_generation, raise_generation, restore_reason
from backend.jobs.models import Generation, Job, JobState, OutboxMessage
from backend.pools.models import Reservation
from backend.reconcile.lease import reconcile_lease
from backend.reconcile.round import sweep_zombies
from backend.telemetry.intake.ingest import ingest_facts
from backend.telemetry.intake.left_facts import take_left_facts
from backend.telemetry.models import MetricPoint
from backend.usage.models import UsageSlice
from backend.usage.services import settle_reservations
from engine.sinks.spool import SEGMENT_BYTES, Spool
from engine.spec.control import FactBatch
from engine.spec.fact_segments import segment_name
from engine.spec.facts import Fact, FactBody, PipelineReady, RunFinished, StepTrained
from tests.backend.reconcile.conftest import S, World

READY = PipelineReady(num_replicas=2, num_parameters=1)
DONE = RunFinished(outcome="succeeded", ledger={"trained": 8})


def trained(step: int) -> StepTrained:
    return StepTrained(step=step, metrics={"reward/mean": step / 10})


@pytest.fixture(autouse=True)
def _own_folders(settings: LazySettings, tmp_path: Path) -> None:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, site_dir=tmp_path / "site", store_dir=tmp_path / "store")


def put_back() -> None:
    """As a snapshot does: old rows, and a mark with later pulses."""
    row = Generation.objects.get()
    keep(Mark(site=row.site, number=row.number, pulse=row.pulse + 7))


def keep(mark: Mark) -> None:
    path = Path(django_settings.ENVIRONMENT.site_dir) / "generation.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{{"site": "{mark.site}", "number": {mark.number}, "pulse": {mark.pulse}}}')


def leave(
    job: str, n: int, fence: int, at: datetime, bodies: Sequence[FactBody], *, segment_bytes: int = SEGMENT_BYTES
) -> list[Fact]:
    """Facts in an attempt's folder, as its driver writes them: one per second."""
    moments = iter(at + timedelta(seconds=index) for index in range(len(bodies)))
    spool = Spool(spool_of(job, n, fence), now=lambda: next(moments), segment_bytes=segment_bytes)
    facts = [spool.append(body) for body in bodies]
    spool.close()
    return facts


def send(world: World, facts: Sequence[Fact]) -> None:
    attempt = world.attempt
    batch = FactBatch(attempt=attempt.n, fence=attempt.fence, facts=list(facts))
    ingest_facts(attempt, batch, now=world.now)
    world.job.refresh_from_db()


def seen(pulse: int, *, cluster: str = "1/1/5", now: str = "1/1/5") -> Seen:
    return Seen(mark=Mark(site="here", number=0, pulse=pulse), cluster=cluster, cluster_now=now)


def test_missing_pulses_or_other_timeline_means_restore() -> None:
    ours = Mark(site="here", number=0, pulse=8)
    assert restore_reason(seen(7), ours)
    assert restore_reason(seen(9, now="1/2/5"), ours)  # a new timeline
    assert restore_reason(seen(9, now="3/1/5"), None)  # another server, without a mark


def test_unchanged_database_or_foreign_mark_means_no_restore() -> None:
    ours = Mark(site="here", number=0, pulse=8)
    assert not restore_reason(seen(8), ours)
    assert not restore_reason(seen(9), ours)
    assert not restore_reason(seen(9, cluster=""), None)
    assert not restore_reason(seen(1), Mark(site="there", number=5, pulse=99))


@pytest.mark.django_db
def test_each_tick_writes_a_mark_that_is_not_ahead(
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    for _ in range(2):
        with django_capture_on_commit_callbacks(execute=True):
            keep_mark()
    row = Generation.objects.get()
    assert read_mark() == Mark(site=row.site, number=0, pulse=row.pulse)
    assert present_generation().number == 0 and row.cluster.count("/") == 2


@pytest.mark.django_db
def test_two_restores_of_one_backup_get_different_generations() -> None:
    keep_mark()
    Generation.objects.update(pulse=3)
    first = raise_generation("restored")
    Generation.objects.update(number=0, pulse=3)  # the same backup restored again
    keep(first)
    assert present_generation().number > first.number > 28_000_000


def test_restore_repeats_no_fence_and_no_token(world: World) -> None:
    world.run()
    lost = attempt_token(world.job.pk, 2, 2)  # of the attempt begun in the lost time, whose driver runs
    put_back()
    world.ray_says(S.FAILED)
    world.later(31)
    assert world.state() == (JobState.STARTING, 2)
    assert world.attempt.fence >= Generation.objects.get().number > 28_000_000
    assert attempt_of_token(lost) is None


def test_fences_count_up_by_one_without_a_restore(world: World) -> None:
    keep_mark()
    world.run()
    world.ray_says(S.FAILED)
    world.later(31)
    assert (world.attempt.n, world.attempt.fence) == (2, 2)


@pytest.mark.django_db
def test_reconciler_of_lost_time_loses_its_lease() -> None:
    with reconcile_lease() as lease:
        assert lease is not None and lease.fence == 1
    number = raise_generation("restored").number
    with reconcile_lease() as lease:
        assert lease is not None and lease.fence > number


def test_run_ended_in_lost_time_is_billed_to_its_end(world: World) -> None:
    world.run()
    at = world.now
    facts = leave(world.job.pk, 1, 1, at, [READY, *map(trained, range(1, 6)), DONE])
    send(world, facts[:3])  # the database is restored to this point
    put_back()
    world.ray_says(S.SUCCEEDED)
    raise_generation("restored")
    world.later(3600)
    assert world.state() == (JobState.SUCCEEDED, 1) and world.job.step == 5
    assert MetricPoint.objects.filter(series__job=world.job, series__name="reward/mean").count() == 5
    assert settle_reservations() == Reservation.objects.count()
    assert set(Reservation.objects.values_list("released_at", flat=True)) == {at + timedelta(seconds=6)}
    assert sum(UsageSlice.objects.values_list("held_us", flat=True)) == world.job.devices * 6_000_000


def test_left_facts_are_stored_once(world: World) -> None:
    world.run()
    leave(world.job.pk, 1, 1, world.now, [READY, trained(1), trained(2)])
    assert take_left_facts(world.attempt, world.now)
    assert not take_left_facts(world.attempt, world.now)
    assert MetricPoint.objects.filter(series__job=world.job).count() == 2


def test_folder_is_not_read_without_a_restore(world: World) -> None:
    """A node may write anything there."""
    world.run()
    leave(world.job.pk, 1, 1, world.now, [READY, DONE])
    world.ray_says(S.FAILED)
    world.later(31)
    assert world.state() == (JobState.STARTING, 2)


def test_left_facts_are_read_from_missing_segment_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run()
    facts = leave(world.job.pk, 1, 1, world.now, [READY, *map(trained, range(1, 8))], segment_bytes=1)
    send(world, facts[:4])
    opened: list[str] = []
    real = os.open

    def noted(path: Any, *arguments: Any, **more: Any) -> int:
        opened.append(Path(path).name)
        return real(path, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", noted)
        assert take_left_facts(world.attempt, world.now)
    assert [name for name in opened if name.endswith(".jsonl")] == [segment_name(seq) for seq in range(5, 9)]
    world.job.refresh_from_db()
    assert world.job.step == 7 and world.attempt.acked_seq == 8


@pytest.mark.parametrize("lost", [2, 5])
def test_facts_behind_a_hole_are_not_stored(world: World, caplog: pytest.LogCaptureFixture, lost: int) -> None:
    """The driver discarded fact 2, which the backup lacks; a restore of files left half of fact 5's segment."""
    world.run()
    facts = leave(world.job.pk, 1, 1, world.now, [READY, *map(trained, range(1, 8))], segment_bytes=1)
    send(world, facts[:1])
    spool = spool_of(world.job.pk, 1, 1)
    if lost == 2:
        (spool / segment_name(1)).unlink()
        (spool / segment_name(2)).unlink()
    else:
        (spool / segment_name(5)).write_bytes(b'{"seq":')
    assert not take_left_facts(world.attempt, world.now)
    world.attempt.refresh_from_db()
    assert world.attempt.acked_seq == 1
    assert "left facts refused" in caplog.text and ("backup is too old" in caplog.text) == (lost == 2)


def test_job_with_too_old_backup_gets_another_attempt(world: World) -> None:
    world.run()
    leave(world.job.pk, 1, 1, world.now, [READY, *map(trained, range(1, 8)), DONE], segment_bytes=1)
    for seq in range(1, 6):
        (spool_of(world.job.pk, 1, 1) / segment_name(seq)).unlink()
    put_back()
    raise_generation("restored")
    world.ray_says(S.FAILED)
    world.later(31)
    assert world.state() == (JobState.STARTING, 2) and world.job.step == 0


@pytest.mark.parametrize("linked", ["attempt", "spool", "segment"])
def test_links_in_a_nodes_folder_are_not_followed(world: World, tmp_path: Path, linked: str) -> None:
    world.run()
    leave(world.job.pk, 1, 1, world.now, [READY])
    spool = spool_of(world.job.pk, 1, 1)
    link = {"attempt": spool.parent, "spool": spool, "segment": spool / segment_name(1)}[linked]
    link.rename(tmp_path / "elsewhere")
    link.symlink_to(tmp_path / "elsewhere")
    assert not take_left_facts(world.attempt, world.now)
    link.unlink()
    (tmp_path / "elsewhere").rename(link)
    assert take_left_facts(world.attempt, world.now)


def test_invalid_fact_lines_are_ignored(world: World) -> None:
    world.run()
    facts = leave(world.job.pk, 1, 1, world.now, [READY])
    segment = spool_of(world.job.pk, 1, 1) / segment_name(1)
    segment.write_bytes(b'{"seq": 1}\n' + facts[0].model_dump_json().encode() + b"\n")
    assert not take_left_facts(world.attempt, world.now)


def test_attempt_of_lost_time_is_adopted_not_begun_twice(world: World) -> None:
    """Attempt 1 died in the lost time, and 2 has trained since. Its driver continues with the same token."""
    world.run()
    facts = leave(world.job.pk, 2, 2, world.now, [READY, trained(1)])
    put_back()
    raise_generation("restored")
    world.ray_says(S.FAILED)
    world.later(31)
    taken_up = world.attempt
    assert (taken_up.n, taken_up.fence, taken_up.submitted_at) == (2, 2, world.now)
    assert not OutboxMessage.objects.filter(topic="launch").exists()
    assert attempt_of_token(attempt_token(world.job.pk, 2, 2)) == taken_up
    send(world, facts)
    assert world.job.state == JobState.RUNNING


def test_attempt_possibly_begun_by_ray_is_not_relaunched(world: World) -> None:
    """Restored to between its row and its launch; Ray was restarted since, and does not know it."""
    leave(world.job.pk, 1, 1, world.now, [READY])
    raise_generation("restored")
    world.launch()
    assert world.ray.orders == [] and world.attempt.submitted_at == world.now
    world.later(31)
    assert world.job.step == 0 and world.state() == (JobState.RUNNING, 1)  # by its facts
    world.later(31)
    assert world.state() == (JobState.STARTING, 2) and world.attempt.fence > 28_000_000


def test_orphaned_drivers_are_stopped_and_foreign_ones_stay(world: World) -> None:
    world.run()
    site, job = Generation.objects.get().site, world.job.pk
    may_be_taken_up = submission_id(job, 2, 2, site=site)
    unknown = submission_id("job_lost", 1, 1, site=site)
    foreign = ["job_lost-1-1-ffffffff", "job_lost-1-1", "somebody's own"]
    for name in (unknown, may_be_taken_up, *foreign):
        world.ray.known[name] = S.RUNNING
    sweep_zombies(world.ray)
    assert world.ray.stopped == []  # no restore
    raise_generation("restored")
    sweep_zombies(world.ray)
    assert world.ray.stopped == [unknown]
    Job.objects.update(fence=Generation.objects.get().number, num_attempts=2)  # by another attempt since
    sweep_zombies(world.ray)
    assert may_be_taken_up in world.ray.stopped and not set(foreign) & set(world.ray.stopped)
