"""Pulls of a page: no gaps and no duplicates, whatever is written in between."""

from datetime import datetime
from typing import Any

import pytest
from django.db import transaction

from backend.checkpoints.models import Checkpoint
from backend.jobs.attempts.beginning import begin_attempt
from backend.jobs.lifecycle import change_state, locked_job, record_event
from backend.jobs.models import Job, JobAttempt, JobState
from backend.telemetry.intake.ingest import ingest_facts
from backend.telemetry.live.pulls import MOST_EVENTS, live_delta
from backend.telemetry.representations import LiveDelta
from backend.telemetry.selectors import MOST_POINTS, metrics_since, series_of, trajectories
from backend.telemetry.series.drawing import ends_of_series
from backend.telemetry.series.thinned import thinned_metrics
from engine.spec.control import FactBatch
from tests.backend.conftest import MakeCheckpoint


class Engine:
    """Ingests facts directly, below the HTTP layer."""

    def __init__(self, attempt: JobAttempt, now: datetime) -> None:
        self.attempt, self.now, self.seq = attempt, now, 0

    def say(self, *bodies: dict[str, Any]) -> None:
        for at in range(0, len(bodies), 200):
            facts = []
            for body in bodies[at : at + 200]:
                self.seq += 1
                facts.append({"seq": self.seq, "at": self.now, "body": body})
            batch = {"attempt": self.attempt.n, "fence": self.attempt.fence, "facts": facts}
            ingest_facts(self.attempt, FactBatch.model_validate(batch), now=self.now)


def step(n: int, value: float | None = None, *, num_metrics: int = 1) -> dict[str, Any]:
    metrics = {f"m{index}": float(n) if value is None else value for index in range(num_metrics)}
    return {"type": "step_trained", "step": n, "metrics": metrics}


def sampled(n: int, count: int = 2) -> dict[str, Any]:
    row = {
        "version": n,
        "staleness": 0,
        "num_tokens": 4,
        "reward": 1.0,
        "advantage": 0.5,
        "prompt": "1",
        "response": "2",
    }
    rows = [row | {"prompt_ordinal": n, "sample": index} for index in range(count)]
    return {"type": "trajectories_sampled", "step": n, "trajectories": rows}


@pytest.fixture
def engine(attempt: JobAttempt, now: datetime) -> Engine:
    return Engine(attempt, now)


def pull_all(job: Job, after: int = 0) -> list[LiveDelta]:
    answers = []
    while True:
        answers.append(live_delta(job, after))
        assert answers[-1].cursor > after or not answers[-1].more
        after = answers[-1].cursor
        if not answers[-1].more:
            return answers


def test_news_are_pulled_once(engine: Engine, job: Job) -> None:
    engine.say({"type": "pipeline_ready", "num_replicas": 2, "num_parameters": 9}, step(1), sampled(1), step(2))
    [answer] = pull_all(job)
    assert [event.type for event in answer.events] == ["submitted", "state_changed", "state_changed"]
    assert answer.series == {"m0": [(1, 1.0), (2, 2.0)]}
    assert answer.sampled_step == 1
    assert (answer.job.state, answer.job.step) == ("running", 2)
    again = live_delta(job, answer.cursor)
    assert (again.events, again.series, again.sampled_step, again.more) == ([], {}, None, False)
    assert again.cursor == answer.cursor


def test_pulling_in_pieces_equals_pulling_at_once(engine: Engine, job: Job) -> None:
    seen: dict[str, list[tuple[int, float]]] = {}
    events, cursor = [], 0
    for n in range(1, 30):
        engine.say(step(n), *([sampled(n)] if n % 7 == 0 else []))
        answer = live_delta(job, cursor)
        cursor = answer.cursor
        events += answer.events
        for name, line in answer.series.items():
            seen.setdefault(name, []).extend(line)
    [whole] = pull_all(job)
    assert seen == whole.series and events == whole.events


def test_long_absence_is_caught_up_in_bounded_answers(engine: Engine, job: Job) -> None:
    engine.say(*[step(n, num_metrics=40) for n in range(1, 401)])  # 16,000 points
    answers = pull_all(job)
    assert len(answers) == 4
    assert all(sum(len(line) for line in answer.series.values()) <= MOST_POINTS for answer in answers)
    line = [point for answer in answers for point in answer.series["m7"]]
    assert line == [(n, float(n)) for n in range(1, 401)]


@pytest.mark.long
def test_many_events_are_bounded_too(engine: Engine, job: Job, now: datetime) -> None:
    with transaction.atomic():
        locked = locked_job(job.pk)
        for _ in range(MOST_EVENTS + 20):
            record_event(locked, "fault_detected", actor="engine:1", now=now)
    engine.say(step(1))
    first, second = pull_all(job)
    assert len(first.events) == MOST_EVENTS and first.series == {}
    seqs = [event.seq for event in first.events + second.events]
    assert seqs == list(range(1, MOST_EVENTS + 23)) and second.series == {"m0": [(1, 1.0)]}


def test_delta_names_newest_trajectory_step_without_texts(engine: Engine, job: Job) -> None:
    long = sampled(10, count=8)
    for row in long["trajectories"]:
        row |= {"prompt": "p" * 8_000, "response": "r" * 8_000}
    engine.say(*[sampled(n, count=8) for n in range(1, 10)], long)
    [answer] = pull_all(job)
    assert answer.sampled_step == 10 and len(answer.model_dump_json()) < 10_000


def next_attempt(job: Job, now: datetime) -> Engine:
    with transaction.atomic():
        locked = locked_job(job.pk)
        change_state(locked, JobState.RECOVERING, actor="reconcile", now=now)
        return Engine(begin_attempt(locked, now=now), now)


def test_later_attempt_replaces_repeated_steps(
    engine: Engine, job: Job, make_checkpoint: MakeCheckpoint, now: datetime
) -> None:
    engine.say(*[step(n, 1.0) for n in range(1, 6)])
    before = live_delta(job, 0).cursor
    make_checkpoint(job, step=2)
    next_attempt(job, now).say(*[step(n, 2.0) for n in range(3, 5)])
    assert live_delta(job, before).series == {"m0": [(3, 2.0), (4, 2.0)]}
    every = [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 1.0)]
    assert metrics_since(job, 0).series == {"m0": every}
    assert thinned_metrics(job, 100).series == {"m0": every[:4]}, "step 5 was not trained again yet"


def test_series_ends_where_the_run_is_after_a_rollback(
    engine: Engine, job: Job, make_checkpoint: MakeCheckpoint, now: datetime
) -> None:
    engine.say(*[step(n) for n in range(1, 10)])
    make_checkpoint(job, step=6)
    second = next_attempt(job, now)

    def ends() -> set[int]:
        [named] = series_of(job)
        [tile], [drawn], [pulled] = (
            ends_of_series(job, ["m0"], num_last=1).values(),
            thinned_metrics(job, 100).series.values(),
            live_delta(job, 0).series.values(),
        )
        return {named.step, tile.newest[-1][0], drawn[-1][0], pulled[-1][0]}

    assert ends() == {6}
    second.say(step(7))
    assert ends() == {7}
    make_checkpoint(job, step=3, attempt=2)  # the newer one was found corrupt
    Checkpoint.objects.filter(step=6).delete()
    next_attempt(job, now)
    assert ends() == {3}, "later steps of both former attempts"


def test_restarted_run_draws_nothing(engine: Engine, job: Job, now: datetime) -> None:
    engine.say(step(1), step(2))
    next_attempt(job, now)
    assert not thinned_metrics(job, 100).series and not live_delta(job, 0).series
    assert not ends_of_series(job, ["m0"], num_last=1) and not series_of(job)


def test_sampling_keeps_means_and_extremes(engine: Engine, job: Job) -> None:
    engine.say(*[step(n, 100.0 if n == 500 else 1.0) for n in range(1, 1_001)])
    page = thinned_metrics(job, 100, ["m0"])
    line, band = page.series["m0"], page.bands["m0"]
    assert len(line) == len(band) == 100
    assert sum(page.counts["m0"]) == 1_000 and set(page.counts["m0"][:-1]) <= {9, 10, 11}
    [(end, low, _)] = [each for each in band if each[2] == 100.0]
    assert 500 <= end < 511 and low == 1.0 and dict(line)[end] == pytest.approx(1 + 99 / 10, abs=1)
    assert line[-1] == (1_000, 1.0) and page.counts["m0"][-1] == 1, "the newest point alone"
    assert metrics_since(job, page.cursor).series == {}
    few = thinned_metrics(job, 1_000, ["m0"])
    assert len(few.series["m0"]) == 1_000 and few.bands == {}
    assert thinned_metrics(job, 100, ["nothing"]).series == {}


def test_rest_answers_the_same(engine: Engine, job: Job, api: Any, charlie: Any, api_of: Any) -> None:
    engine.say(step(1, num_metrics=2), sampled(1), step(2, num_metrics=2))
    path = f"/jobs/{job.pk}/metrics"
    answer = api.get(path).json()
    assert answer["series"] == {"m0": [[1, 1.0], [2, 2.0]], "m1": [[1, 1.0], [2, 2.0]]}
    assert api.get(path, after=answer["cursor"]).json()["series"] == {}
    assert list(api.get(path, names="m1").json()["series"]) == ["m1"]
    assert api.get(path, max_points=2).json()["more"] is False
    assert api.get(f"/jobs/{job.pk}/trajectories", step=1, limit=1).json()["data"][0]["response"] == "2"
    assert api.get(f"/jobs/{job.pk}/checkpoints").json()["data"] == []
    for name in ("metrics", "trajectories", "logs", "timeline", "checkpoints"):
        assert api_of(charlie).get(f"/jobs/{job.pk}/{name}").status_code == 404


@pytest.mark.parametrize(
    "query",
    [{"after": -1}, {"after": 2**63}, {"after": "x"}, {"names": "\0"}, {"max_points": 0}, {"max_points": 10**9}],
)
def test_a_bad_query_is_a_problem(job: Job, api: Any, query: dict[str, Any]) -> None:
    answer = api.get(f"/jobs/{job.pk}/metrics", **query)
    assert answer.status_code == 422 and answer["Content-Type"] == "application/problem+json"


def test_newest_trajectories_come_first(engine: Engine, job: Job) -> None:
    engine.say(sampled(1), sampled(2))
    assert [(row.step, row.sample) for row in trajectories(job)] == [(2, 0), (2, 1), (1, 0), (1, 1)]
    assert [row.step for row in trajectories(job, step=1, limit=1)] == [1]
