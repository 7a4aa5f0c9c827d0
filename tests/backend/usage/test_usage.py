"""Usage of devices from submission to report, by reservations and the control plane's own clock."""

import csv
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any, get_args

import pytest

from backend.accounts.models import Project, Team, User
from backend.jobs.attempts.beginning import begin_attempt
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.lifecycle import change_state, locked_job
from backend.jobs.models import Job, JobAttempt, JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.pools.models import Reservation, ResourcePool
from backend.telemetry.intake.ingest import ingest_facts
from backend.usage.csv_table import csv_text
from backend.usage.models import UsageSlice
from backend.usage.report import GroupBy, usage_of, usage_of_job
from backend.usage.selectors import gpu_seconds_of
from backend.usage.services import settle_reservations
from backend.usage.split import Kinds
from engine.spec.causes import PlatformCause
from engine.spec.control import FactBatch
from engine.spec.facts import FailureClass
from tests.backend.checkpoint_addresses import checkpoint_address
from tests.backend.conftest import Api

pytestmark = pytest.mark.django_db

READY = {"type": "pipeline_ready", "num_replicas": 2, "num_parameters": 9}
SECOND = 10**6


class Life:
    """Drives one job; each call takes the seconds after submission at which it happens."""

    def __init__(self, job: Job, pool: ResourcePool, start: datetime) -> None:
        self.job, self.pool, self.start = job, pool, start
        self.sent: dict[int, int] = {}

    def at(self, second: float) -> datetime:
        return self.start + timedelta(seconds=second)

    @property
    def attempt(self) -> JobAttempt:
        return self.job.attempts.latest("n")

    def starts(self, second: float) -> None:
        assert schedule_pool(self.pool.pk, now=self.at(second)) == 1

    def says(self, second: float, *bodies: dict[str, Any]) -> None:
        attempt = self.attempt
        first = self.sent.get(attempt.n, 0) + 1
        facts = [
            {"seq": first + index, "at": "2020-01-01T00:00:00Z", "body": body} for index, body in enumerate(bodies)
        ]
        document = {"attempt": attempt.n, "fence": attempt.fence, "facts": facts}
        ingest_facts(attempt, FactBatch.model_validate(document), now=self.at(second))
        self.sent[attempt.n] = first + len(bodies) - 1

    def saves(self, second: float, step: int) -> None:
        uri = checkpoint_address(self.attempt, step)
        saved = {"step": step, "version": step, "uri": uri, "manifest_sha256": "a" * 64}
        self.says(second, {"type": "checkpoint_saved", "num_bytes": 1} | saved)

    def finishes(self, second: float, outcome: str = "succeeded", **more: Any) -> None:
        self.says(second, {"type": "run_finished", "outcome": outcome} | more)

    @property
    def kinds(self) -> Kinds:
        """Kinds of the whole job, in device-microseconds."""
        return sum((row.kinds for row in usage_of_job(self.job, now=self.at(10_000))), Kinds())


@pytest.fixture
def live(job: Job, pool: ResourcePool, now: datetime) -> Life:
    return Life(job, pool, now)


def per_device(kinds: Kinds, devices: int = 3) -> Kinds:
    return Kinds(**{name: getattr(kinds, name) // devices // SECOND for name in Kinds.__slots__})


def test_queueing_is_free_and_startup_ends_when_ready(live: Life) -> None:
    live.starts(100)
    live.says(130, READY)
    live.finishes(180)
    assert per_device(live.kinds) == Kinds(startup=30, useful=50)


def test_engine_clock_is_ignored(live: Life) -> None:
    """Its facts carry the year 2020; only their arrival counts."""
    live.starts(0)
    live.says(10, READY)
    live.finishes(20)
    assert live.kinds.held == 3 * 20 * SECOND


def test_work_lost_after_checkpoint_is_fault_and_credited(live: Life, team: Team) -> None:
    live.starts(0)
    live.says(10, READY)
    live.saves(40, 5)
    live.finishes(60, "failed", failure_class="infrastructure", cause="node_lost", message="a node went away")
    live.job.refresh_from_db()
    assert live.job.state == JobState.RECOVERING
    begin_attempt(locked_job(live.job.pk), now=live.at(70))
    live.says(80, READY)
    live.finishes(100)
    assert per_device(live.kinds) == Kinds(startup=10, useful=30 + 20, fault=40, credited=40)
    settle_reservations()
    assert per_device(live.kinds) == Kinds(startup=10, useful=50, fault=40, credited=40)
    spent = gpu_seconds_of(team.pk, datetime(2026, 1, 1, tzinfo=UTC), now=live.at(1_000))
    assert spent == 3 * (100 - 40), "a budget is not charged for the platform's faults"


@pytest.mark.parametrize("failure_class", sorted({*get_args(FailureClass)} - {"timeout", "budget"}))
def test_failure_without_named_cause_is_not_credited(live: Life, failure_class: str) -> None:
    live.starts(0)
    live.says(10, READY)
    live.finishes(50, "failed", failure_class=failure_class, message="every rollout was lost and not replaced")
    assert live.kinds.credited == 0 and per_device(live.kinds).fault >= 50


@pytest.mark.parametrize("cause", PlatformCause)
def test_named_cause_of_the_platform_is_credited(live: Life, cause: PlatformCause) -> None:
    live.starts(0)
    live.says(10, READY)
    live.finishes(50, "failed", failure_class="infrastructure", cause=cause.value, message="it broke")
    assert live.kinds.credited == live.kinds.fault and per_device(live.kinds).fault >= 50


def test_samples_too_old_to_be_trained_on_take_their_share(live: Life) -> None:
    live.starts(0)
    live.says(0, READY)
    live.finishes(100, ledger={"trained": 70, "filtered": 5, "dropped_stale": 20, "failed": 5, "open": 400})
    assert per_device(live.kinds) == Kinds(useful=80, stale=20)


def test_stopping_job_is_idle_until_release(live: Life) -> None:
    live.starts(0)
    live.says(10, READY)
    cancel_job(live.job.pk, actor="user:1", now=live.at(50))
    live.finishes(55, "cancelled")
    assert per_device(live.kinds) == Kinds(startup=10, useful=40, idle=5)


def test_settling_changes_no_figure_and_happens_once(live: Life, team: Team, now: datetime) -> None:
    live.starts(0)
    live.says(10, READY)
    live.finishes(86_400 * 2)
    days: Any = {"first": now.date(), "last": (now + timedelta(days=3)).date(), "now": now + timedelta(days=3)}
    before = usage_of(team, GroupBy.DAY, **days)
    assert settle_reservations() == 2
    assert settle_reservations() == 0
    assert UsageSlice.objects.count() == 2 * 3
    assert usage_of(team, GroupBy.DAY, **days) == before
    assert sum(group.kinds.held for group in before) == 3 * 86_400 * 2 * SECOND


def test_running_job_counts_up_to_now_and_is_not_settled(live: Life, team: Team, now: datetime) -> None:
    live.starts(0)
    live.says(10, READY)
    assert settle_reservations() == 0
    for second in (20, 30):
        (group,) = usage_of(team, GroupBy.JOB, first=now.date(), last=now.date(), now=live.at(second))
        assert per_device(group.kinds) == Kinds(startup=10, useful=second - 10)


def test_released_replica_is_settled_after_its_attempt_ends(live: Life) -> None:
    """Before that it is open whether the replica's work is kept."""
    live.starts(0)
    live.says(10, READY)
    Reservation.objects.filter(job=live.job, role="rollout").update(released_at=live.at(50))
    assert settle_reservations() == 0
    live.finishes(100, "failed", failure_class="user_code", message="gone")
    assert settle_reservations() == 2
    assert live.kinds.fault == (100 + 2 * 50) * SECOND


def test_every_grouping_has_the_same_total_and_right_labels(
    live: Life, team: Team, project: Project, alice: User, now: datetime
) -> None:
    live.starts(0)
    live.says(10, READY)
    live.finishes(33)
    settle_reservations()
    for group_by, key in {
        GroupBy.TEAM: team.pk,
        GroupBy.PROJECT: project.pk,
        GroupBy.USER: str(alice.pk),
        GroupBy.JOB: live.job.pk,
        GroupBy.DAY: "2026-01-05",
        GroupBy.KEY: "",
    }.items():
        (group,) = usage_of(team, group_by, first=now.date(), last=now.date(), now=now)
        assert (group.group, group.kinds.held) == (key, 3 * 33 * SECOND)
        assert group.label


def test_key_pays_for_its_own_jobs(make_key: Any, alice: User, pool: ResourcePool, project: Project) -> None:
    text = make_key(alice, scopes=("jobs:write", "jobs:read", "usage:read"))
    api = Api(text)
    answer = api.post("/jobs", {"project": project.pk, "spec": {"name": "Sums"}})
    assert answer.status_code == 202, answer.content
    assert schedule_pool(pool.pk, now=datetime.now(UTC)) == 1
    (row,) = api.get("/usage", group_by="key").json()["data"]
    assert row["group"].startswith("key_") and row["label"] == "test"


class TestRest:
    @pytest.fixture
    def reader(self, make_key: Any, alice: User) -> Any:
        return Api(make_key(alice, scopes=("usage:read",)))

    def test_kinds_add_up_and_pages_follow_each_other(self, reader: Any, live: Life, make_job: Any) -> None:
        jobs = [live.job, make_job(devices=2)]
        assert schedule_pool(live.pool.pk, now=live.at(0)) == 2
        for job in jobs:
            change_state(locked_job(job.pk), JobState.STOPPING, actor="test", now=live.at(7), target_state="cancelled")
            change_state(locked_job(job.pk), JobState.CANCELLED, actor="test", now=live.at(9))
        query = {"group_by": "job", "from": "2026-01-01", "to": "2026-01-31", "limit": 1}
        first = reader.get("/usage", **query).json()
        second = reader.get("/usage", **query, after=first["next_after"]).json()
        assert [len(first["data"]), first["has_more"], len(second["data"]), second["has_more"]] == [1, True, 1, False]
        assert {first["data"][0]["group"], second["data"][0]["group"]} == {job.pk for job in jobs}
        total = first["total"]
        assert total["held"] == (3 + 2) * 9
        assert sum(total[kind] for kind in ("startup", "useful", "stale", "fault", "idle")) == total["held"]
        assert total["billed"] == total["held"] - total["credited"]

    @pytest.mark.parametrize("how", [{"query": {"format": "csv"}}, {"headers": {"Accept": "text/csv"}}])
    def test_csv_has_the_same_rows_without_formulas(
        self, how: dict[str, dict[str, str]], reader: Any, live: Life, project: Project
    ) -> None:
        Project.objects.filter(pk=project.pk).update(name='=HYPERLINK("http://evil")')
        live.starts(0)
        live.finishes(10)
        query = {"group_by": "project", "from": "2026-01-01", "to": "2026-01-31"} | how.get("query", {})
        headers = {"Authorization": f"Bearer {reader.key}"} | how.get("headers", {})
        answer = reader.client.get("/api/v1/usage", query, headers=headers)
        assert answer["Content-Type"].startswith("text/csv") and "attachment" in answer["Content-Disposition"]
        (row,) = csv.DictReader(StringIO(answer.content.decode()))
        assert (row["project"], row["label"]) == (project.pk, '\'=HYPERLINK("http://evil")')
        assert float(row["held_gpu_seconds"]) == 30

    def test_usage_of_a_job_lists_its_reservations(self, reader: Any, live: Life) -> None:
        live.starts(0)
        live.says(10, READY)
        live.finishes(20)
        answer = reader.get(f"/jobs/{live.job.pk}/usage").json()
        assert answer["total"]["held"] == 60
        assert sorted((row["role"], row["devices"], row["seconds"]["useful"]) for row in answer["data"]) == [
            ("rollout", 2, 20.0),
            ("trainer", 1, 10.0),
        ]

    def test_another_teams_use_is_not_shown(self, live: Life, make_key: Any, charlie: User) -> None:
        live.starts(0)
        outsider = Api(make_key(charlie, scopes=("usage:read",)))
        assert outsider.get("/usage", **{"from": "2026-01-01", "to": "2026-01-31"}).json()["data"] == []
        assert outsider.get(f"/jobs/{live.job.pk}/usage").status_code == 404

    @pytest.mark.parametrize(
        "query",
        [
            {"from": "2026-02-01", "to": "2026-01-01"},
            {"from": "2020-01-01", "to": "2026-01-01"},
            {"from": "yesterday"},
            {"group_by": "colour"},
            {"to": "9999-12-31"},
            {"from": "0001-01-01", "to": "0001-01-02"},
        ],
    )
    def test_invalid_range_is_refused(self, reader: Any, query: dict[str, str]) -> None:
        assert reader.get("/usage", **query).status_code == 422


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@x", "\t=1", "  =1", "\r=1", "＝1"])
def test_no_csv_cell_is_a_formula(cell: str) -> None:
    (row,) = list(csv.reader(StringIO(csv_text(["name"], [[cell]]), newline="")))[1:]
    assert row[0].startswith("'")


def test_numbers_stay_numbers() -> None:
    assert csv_text(["a", "b"], [[-1, 2.5]]).splitlines()[1] == "-1,2.5"
