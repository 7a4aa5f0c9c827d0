"""A driver with a stuck loop is reported, ended and replaced, but never for an outage of our own."""

from datetime import timedelta
from itertools import count, repeat

import pytest
from django.test import Client

from backend.accounts.models import User
from backend.errors import Conflict
from backend.jobs.models import ReconcileLease
from backend.reconcile.judging import STALL_DEADLINE_S, STALL_LAST_DEADLINE_S, STALLED_AFTER_S
from backend.reconcile.round import reconcile
from tests.backend.conftest import Api
from tests.backend.reconcile.conftest import S, World

LONG_S = STALL_DEADLINE_S + 60


@pytest.fixture
def running(world: World) -> World:
    world.run()
    world.ray_says(S.RUNNING)
    world.beat(1)
    return world


def events(world: World) -> list[str]:
    return list(
        world.job.events.filter(type__in=["stalled", "moves_again"]).order_by("seq").values_list("type", flat=True)
    )


def is_stalled(world: World) -> bool:
    return world.job.stalled_since is not None


class TestStandstill:
    @pytest.mark.parametrize("is_heard", [True, False], ids=["beats on", "is silent"])
    def test_stuck_driver_is_reported_then_replaced(self, running: World, is_heard: bool) -> None:
        running.checkpoint(50)
        submission = running.attempt.submission_id
        turns = repeat(1) if is_heard else None
        running.rounds(STALLED_AFTER_S + 20, turns=turns)
        assert is_stalled(running) and events(running)[-1] == "stalled"
        assert running.ray.stopped == [], "the user has time to look first"
        running.rounds(STALL_DEADLINE_S - STALLED_AFTER_S, turns=turns)
        assert submission in running.ray.stopped
        running.ray_says(S.STOPPED)
        running.later(10)
        assert running.state() == ("starting", 2) and not is_stalled(running)
        assert (running.attempt.fence, running.attempt.resume_step) == (2, 50)
        lost = running.job.attempts.get(n=1)
        assert lost.failure_class == "infrastructure" and "had not moved for" in lost.message
        assert events(running).count("stalled") == 1

    def test_driver_that_ray_cannot_end_is_fenced_off(self, running: World) -> None:
        running.rounds(STALL_LAST_DEADLINE_S + 30, turns=None)
        assert running.state() == ("starting", 2)
        with pytest.raises(Conflict):
            running.beat(2, of=running.job.attempts.get(n=1))  # it resumes

    @pytest.mark.long
    def test_turning_loop_without_steps_is_left_alone(self, running: World) -> None:
        running.rounds(3_600, turns=count(2))
        assert running.state() == ("running", 1) and events(running) == []

    def test_old_driver_without_turns_needs_only_heartbeats(self, running: World) -> None:
        running.rounds(LONG_S, turns=repeat(None))
        assert running.state() == ("running", 1) and not is_stalled(running)

    def test_driver_moving_again_is_reported(self, running: World) -> None:
        running.rounds(STALLED_AFTER_S + 20, turns=repeat(1))
        running.rounds(30, turns=count(2))
        assert not is_stalled(running) and events(running) == ["stalled", "moves_again"]
        running.rounds(LONG_S, turns=count(9))
        assert running.state() == ("running", 1)


class TestTold:
    def test_page_and_api_show_a_stall_while_it_lasts(
        self, running: World, client: Client, api: Api, alice: User
    ) -> None:
        client.force_login(alice)
        sentence = "stalled: no progress from its driver since"
        assert sentence not in client.get(f"/jobs/{running.job.pk}/").content.decode()
        running.rounds(STALLED_AFTER_S + 20, turns=repeat(1))
        assert sentence in client.get(f"/jobs/{running.job.pk}/").content.decode()
        assert api.get(f"/jobs/{running.job.pk}").json()["stalled_since"] is not None
        [attempt] = api.get(f"/jobs/{running.job.pk}/attempts").json()["data"]
        assert attempt["moved_at"] < attempt["last_seen_at"], "it sends heartbeats and does not move"
        running.rounds(20, turns=count(2))
        assert api.get(f"/jobs/{running.job.pk}").json()["stalled_since"] is None


class TestOurOwnFault:
    def test_unreachable_site_blames_no_silent_driver(self, running: World) -> None:
        running.site_is_reachable = False
        running.rounds(LONG_S, turns=None)
        assert not is_stalled(running) and running.state() == ("running", 1)
        running.site_is_reachable = True
        running.rounds(STALLED_AFTER_S - 10, turns=None)
        assert not is_stalled(running), "its minute starts then"
        running.rounds(30, turns=None)
        assert is_stalled(running)

    def test_reconciler_outage_blames_no_driver(self, running: World) -> None:
        for _ in range(5):
            running.after_away(LONG_S)  # frozen, or without a worker, or the machine slept
        assert not is_stalled(running) and running.state() == ("running", 1)

    @pytest.mark.parametrize("ahead", [timedelta(milliseconds=1), timedelta(seconds=4)])
    def test_heartbeat_stored_after_the_round_began_is_no_silence(self, running: World, ahead: timedelta) -> None:
        """The site was reachable for longer than any deadline, so silence since then would end the driver."""
        turns = count(2)
        running.rounds(LONG_S + STALL_LAST_DEADLINE_S, turns=turns)
        for _ in range(10):
            running.now += timedelta(seconds=10)
            ReconcileLease.objects.update(listened_at=running.now)
            began = running.now
            running.now += ahead
            running.beat(next(turns))
            reconcile(running.ray, lambda: began, lambda: True)  # noqa: B023
        running.job.refresh_from_db()
        assert running.state() == ("running", 1) and events(running) == [] and running.ray.stopped == []

    @pytest.mark.parametrize("turns", [1, 2])
    def test_turn_after_the_verdict_saves_the_driver(self, running: World, turns: int) -> None:
        """A heartbeat alone does not: the loop has not turned."""
        running.rounds(STALL_DEADLINE_S - 10, turns=repeat(1))
        running.now += timedelta(seconds=20)
        running.round_with_beat(turns)
        is_saved = turns == 2
        assert (running.ray.stopped == []) is is_saved and running.state() == ("running", 1)

    def test_driver_is_named_before_it_is_ended(self, running: World) -> None:
        running.rounds(STALLED_AFTER_S - 10, turns=repeat(1))
        running.later(STALL_DEADLINE_S)
        assert running.ray.stopped and events(running) == ["stalled"]

    @pytest.mark.parametrize("hours", [1, -1])
    def test_clock_jump_ends_no_moving_job(self, running: World, hours: int) -> None:
        turns = count(2)
        running.rounds(60, turns=turns)
        running.now += timedelta(hours=hours)
        running.rounds(60, turns=turns)
        assert running.state() == ("running", 1) and events(running) == []

    @pytest.mark.parametrize("minutes", [30, -60])
    def test_clock_jump_restarts_count_of_stuck_job(self, running: World, minutes: int) -> None:
        running.rounds(STALLED_AFTER_S, turns=None)
        running.now += timedelta(minutes=minutes)
        running.rounds(STALLED_AFTER_S, turns=None)
        assert not is_stalled(running) and running.state() == ("running", 1)
        running.rounds(20, turns=None)
        assert is_stalled(running), "its loop is stuck"
