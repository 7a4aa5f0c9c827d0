"""A silent attempt: Ray is queried before anything is concluded."""

from datetime import timedelta

import pytest

from backend.jobs.attempts.launcher import SubmissionStatus
from backend.jobs.control_requests import ask_driver
from backend.telemetry.intake.ingest import ingest_facts
from engine.spec.control import FactBatch
from tests.backend.reconcile.conftest import S, World, topics


class TestSilence:
    def test_sending_driver_is_left_alone(self, world: World) -> None:
        world.run()
        world.ray_says(S.FAILED)  # Ray is not queried
        for _ in range(5):
            world.later(10)
            world.hear()
        assert world.state() == ("running", 1)

    @pytest.mark.parametrize("status", [S.RUNNING, S.PENDING])
    def test_silent_driver_that_ray_runs_is_kept(self, world: World, status: SubmissionStatus) -> None:
        world.run()
        world.ray_says(status)
        for _ in range(20):
            world.later(60)
        assert world.state() == ("running", 1)

    def test_ray_away_for_an_hour_changes_nothing(self, world: World) -> None:
        world.run()
        world.ray.away = True
        for _ in range(20):
            world.later(120)
        assert world.state() == ("running", 1)

    @pytest.mark.parametrize("status", [S.FAILED, S.STOPPED, S.MISSING, S.SUCCEEDED])
    def test_lost_driver_gets_another_attempt_after_the_grace(self, world: World, status: SubmissionStatus) -> None:
        world.run()
        world.checkpoint(50)
        world.checkpoint(100)
        world.ray_says(status)
        world.later(20)
        assert world.state() == ("running", 1), "its last facts may be on their way"
        world.later(11)
        assert world.state() == ("starting", 2)
        assert (world.attempt.fence, world.attempt.resume_from) == (2, "file:///store/1-100")
        first = world.job.attempts.get(n=1)
        assert first.outcome == "lost" and "last words" in first.message
        assert first.evidence["log_tail"] == "last words, lam_run_… and Bearer …" and "secret" not in first.message
        assert sorted(topics()) == ["launch", "stop"]
        assert world.job.reservations.filter(released_at=None).count() == 2

    def test_facts_during_the_grace_count(self, world: World) -> None:
        world.run()
        world.ray_says(S.SUCCEEDED)
        world.later(20)
        fact = {"seq": 1, "at": world.now, "body": {"type": "run_finished", "outcome": "succeeded"}}
        batch = FactBatch.model_validate({"attempt": 1, "fence": 1, "facts": [fact]})
        ingest_facts(world.attempt, batch, now=world.now)
        world.later(60)
        assert world.state() == ("succeeded", 1)

    def test_first_retry_keeps_devices_later_ones_wait(self, world: World) -> None:
        world.lose()
        assert world.state() == ("starting", 2)
        for n, backoff_s in ((2, 15), (3, 30)):
            queued_at = world.job.queued_at
            world.lose()
            assert world.state() == ("queued", n) and not world.job.reservations.filter(released_at=None).exists()
            assert world.job.not_before == world.now + timedelta(seconds=backoff_s)
            assert world.job.queued_at == queued_at, "the job keeps its place"
            assert world.schedule(backoff_s - 1) == 0 and world.schedule(2) == 1
        world.lose()
        assert world.state() == ("failed", 4)
        assert world.job.failure_class == "infrastructure" and "attempt 4 of 4" in world.job.message
        assert not world.job.reservations.filter(released_at=None).exists()
        assert not world.job.attempts.filter(ended_at=None).exists()

    def test_attempt_with_progress_resets_the_count(self, world: World) -> None:
        world.lose()
        world.run()
        world.checkpoint(10)
        world.ray_says(S.FAILED)
        world.later(31)
        assert world.state() == ("starting", 3) and world.attempt.resume_step == 10

    def test_requests_to_lost_attempt_do_not_carry_over(self, world: World) -> None:
        world.run()
        ask_driver(world.job, "resize", replicas=1, now=world.now)
        world.ray_says(S.FAILED)
        world.later(31)
        assert world.state() == ("starting", 2)
        assert not world.job.requests.filter(acknowledged_at=None).exists()

    def test_newest_checkpoint_is_the_later_attempts(self, world: World) -> None:
        world.run()
        world.checkpoint(100)
        world.ray_says(S.FAILED)
        world.later(31)
        world.run()
        world.checkpoint(40)  # it fell back to an earlier one
        world.ray_says(S.FAILED)
        world.later(31)
        assert world.attempt.resume_from == "file:///store/2-40"

    def test_driver_that_gave_up_is_replaced(self, world: World) -> None:
        world.run()
        failure = {"failure_class": "infrastructure", "cause": "node_lost", "message": "node lost"}
        body = {"type": "run_finished", "outcome": "failed"} | failure
        batch = FactBatch.model_validate(
            {"attempt": 1, "fence": 1, "facts": [{"seq": 1, "at": world.now, "body": body}]}
        )
        ingest_facts(world.attempt, batch, now=world.now)
        world.later(3)
        assert world.state() == ("starting", 2) and "node lost" in world.job.message
