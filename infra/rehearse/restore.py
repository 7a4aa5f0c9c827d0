"""Backups in containers, and restores of the site while Ray and its jobs keep running.

two jobs run ─▶ backup ─▶ one ends, a third is submitted ─▶ restored ─▶ the first has ended as before, the second
                                                                       keeps running, the third is unknown
a job ends ─▶ a moment ─▶ another begins ─▶ restored to the moment ─▶ the first is complete, the other unknown
backup ─▶ every container and volume removed ─▶ restored ─▶ ended jobs are as before, and a new job runs
"""

from datetime import datetime
from typing import Any

import psycopg

from infra.rehearse.container_engine import compose
from infra.rehearse.jobs import FINISHED_WITHIN_S, SETTLED_WITHIN_S, customer, database, ended
from infra.rehearse.site import wait_until_healthy
from infra.rehearse.work import Work, stage
from infra.setup.terminal import Refusal
from tests.e2e.customer import Customer
from tests.e2e.ends import assert_nobodys_bill_is_wrong, lasting, spec

# All but Ray: its nodes, and the jobs on them, know nothing of a restore.
STOPPED = ("web", "worker", "beat", "wal", "postgres")
SHORTEST, SHORT, LONG = 12, 90, 350  # at more than a second a step the second outlasts a backup, the third a restore
APART_S = 30.0


def back_up(work: Work) -> None:
    with stage("a backup"):
        compose(work, "run", "--rm", "backup")


def run(work: Work) -> None:
    with customer(work) as person:
        short, long = (person.submit(**lasting(steps)) for steps in (SHORT, LONG))
        for job in (short, long):
            person.wait(job["id"], lambda job: job["step"] >= 3, within_s=FINISHED_WITHIN_S)
        back_up(work)
        _running(person, short)
        with stage("one of two jobs ends, a third begins"):
            short = ended(person, short)
            lost = person.submit(**lasting(SHORT))
            person.wait(lost["id"], lambda job: job["step"] >= 1, within_s=FINISHED_WITHIN_S)
        long = _running(person, long)
        with stage("put back to the backup"):
            put_back(work, "--as-backed-up")
        with stage("what ended in the lost minutes ends as it did"):
            _is_as_before(short, again := ended(person, short))
            if (apart_s := abs(_ended_at(again) - _ended_at(short))) > APART_S:
                raise Refusal(f"{short['id']} ended {apart_s:.0f} s apart from what it did")
        with stage("running jobs continue, lost jobs are unknown"):
            _is_as_before(long, ended(person, long))
            _is_unknown(person, lost)
        to_a_moment(work, person)
        onto_an_empty_server(work, person)
        with stage("all bills are correct"):
            assert_nobodys_bill_is_wrong(person, database=database(work), settled_within_s=SETTLED_WITHIN_S)


def to_a_moment(work: Work, person: Customer) -> None:
    """Between two backups: by what the service `wal` kept."""
    back_up(work)
    with stage("a job ends, and after a moment another begins"):
        kept = ended(person, person.submit_within(FINISHED_WITHIN_S, spec(SHORTEST)))
        with psycopg.connect(database(work)) as db:
            [(moment,)] = db.execute("SELECT clock_timestamp()").fetchall()
        lost = person.submit_within(FINISHED_WITHIN_S, spec(SHORT))
        person.wait(lost["id"], lambda job: job["step"] >= 1, within_s=FINISHED_WITHIN_S)
    with stage("put back to that moment"):
        put_back(work, "--to", moment.isoformat())
    _is_as_before(kept, ended(person, kept))
    _is_unknown(person, lost)


def onto_an_empty_server(work: Work, person: Customer) -> None:
    """What it has of the old one: .env, the bucket, the backups."""
    before = ended(person, person.submit_within(FINISHED_WITHIN_S, spec(SHORTEST)))
    back_up(work)
    key = _audit_key(work)
    with stage("every container and volume removed"):
        compose(work, "down", "--volumes")
    with stage("restored onto what is left"):
        compose(work, "run", "--rm", "--no-deps", "restore")
        compose(work, "up", "--detach", "--no-build")
        wait_until_healthy(work)
    with stage("what ended is as it was, and a new job runs"):
        _is_as_before(before, again := ended(person, before))
        if again["finished_at"] != before["finished_at"]:
            raise Refusal(f"{before['id']} ended at {again['finished_at']}, and before at {before['finished_at']}")
        if _audit_key(work) != key:
            raise Refusal("the audit log has another key, which does not vouch for the anchors of before")
        ended(person, person.submit_within(FINISHED_WITHIN_S, spec(SHORTEST)))


def _audit_key(work: Work) -> str:
    return compose(work, "exec", "-T", "web", "sha256sum", "/site/audit/signing_key.pem")


def put_back(work: Work, *to: str) -> None:
    compose(work, "stop", *STOPPED)
    compose(work, "run", "--rm", "--no-deps", "restore", "--replace", *to)
    compose(work, "up", "--detach", "--no-build", *STOPPED)
    wait_until_healthy(work)


def _running(person: Customer, job: dict[str, Any]) -> dict[str, Any]:
    if (job := person.get(f"/jobs/{job['id']}"))["state"] != "running":
        raise Refusal(f"{job['id']} is {job['state']}, so this would show nothing: give it more steps")
    return job


def _is_unknown(person: Customer, lost: dict[str, Any]) -> None:
    if (answer := person.client.get(f"/api/v1/jobs/{lost['id']}")).status_code != 404:
        raise Refusal(f"{lost['id']}, of the lost minutes: answered {answer.status_code}")


def _is_as_before(before: dict[str, Any], after: dict[str, Any]) -> None:
    """A machine with much other work may have lost an attempt; a restore begins none."""
    if before["attempt"] != after["attempt"]:
        raise Refusal(
            f"{before['id']} had to begin again: attempt {before['attempt']} before, {after['attempt']} after"
        )


def _ended_at(job: dict[str, Any]) -> float:
    return datetime.fromisoformat(job["finished_at"]).timestamp()
