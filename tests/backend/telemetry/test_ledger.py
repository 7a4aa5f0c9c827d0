"""The sample ledger: pages and programs get the engine's own counts, as of its last report."""

from typing import Any

from backend.jobs.models import Job, JobAttempt
from backend.telemetry.ledger import store_ledger
from engine.pipeline.data.ledger import Ledger
from engine.pipeline.records import DataProgress
from tests.backend.conftest import Api
from tests.backend.telemetry.test_ingest import FINISHED, READY, Driver, step

GROUP = 4


def ledger_out(api: Api, job: Job) -> Any:
    answer = api.get(f"/jobs/{job.pk}/ledger")
    assert answer.status_code == 200
    return answer.json()


def test_ledger_equals_the_engines_after_each_step_and_end(attempt: JobAttempt, job: Job, api: Api) -> None:
    driver, ledger = Driver(attempt), Ledger(DataProgress())
    assert ledger_out(api, job) == {"attempt": None, "step": None, "at": None, "is_final": False, "counts": {}}
    driver.say(READY, step(1))
    assert ledger_out(api, job)["counts"] == {}, "an earlier release reports no ledger"
    for number in range(2, 6):
        ledger.end(3 * number, "trained", num_samples=GROUP)
        ledger.end(3 * number + 1, "filtered", num_samples=GROUP)
        counts = ledger.counts(num_open=GROUP)
        driver.say(step(number) | {"ledger": {"trained": 0}}, step(number + 10) | {"ledger": counts})
        answer = ledger_out(api, job)
        assert (answer["attempt"], answer["step"], answer["is_final"]) == (attempt.n, number + 10, False)
        assert answer["counts"] == counts
    ledger.take_back(6, num_samples=GROUP)
    ledger.end(100, "failed", num_samples=GROUP)
    driver.say(FINISHED | {"ledger": ledger.counts(num_open=0)})
    answer = ledger_out(api, job)
    assert answer["is_final"] and answer["counts"] == ledger.counts(num_open=0)
    assert answer["counts"]["rolled_back"] == GROUP


def test_next_attempt_replaces_the_ledger(job: Job, api: Api, now: Any) -> None:
    store_ledger(job, 1, {"trained": 8}, at=now, is_final=True)
    store_ledger(job, 2, {}, at=now)
    assert (ledger_out(api, job)["attempt"], ledger_out(api, job)["is_final"]) == (1, True)
    store_ledger(job, 2, {"trained": 4, "rolled_back": 4}, at=now)
    answer = ledger_out(api, job)
    assert (answer["attempt"], answer["is_final"], answer["counts"]["rolled_back"]) == (2, False, 4)
