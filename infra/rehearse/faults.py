"""Each service's main process killed in the middle of a job, in turn: the job ends once, its ledger exact."""

from infra.rehearse.container_engine import containers, docker
from infra.rehearse.enclosure import within
from infra.rehearse.jobs import FINISHED_WITHIN_S, SETTLED_WITHIN_S, customer, database, ended
from infra.rehearse.site import wait_until_healthy
from infra.rehearse.work import Work, stage, until
from infra.setup.terminal import say
from tests.e2e.customer import Customer
from tests.e2e.ends import assert_nobodys_bill_is_wrong, spec

STRUCK = ("web", "proxy", "worker", "beat", "valkey", "postgres", "wal", "ray-worker", "ray-head")
STEPS = 25


def run(work: Work) -> None:
    with customer(work) as person:
        for service in STRUCK:
            with stage(f"a job, and {service} killed in the middle of it"):
                attempts = strike(work, person, service)
            say(f"  ({attempts} attempt{'s' if attempts > 1 else ''})")
        with stage("all bills are correct"):
            assert_nobodys_bill_is_wrong(person, database=database(work), settled_within_s=SETTLED_WITHIN_S)


def strike(work: Work, person: Customer, service: str) -> int:
    """How many attempts the job took."""
    job = person.submit_within(FINISHED_WITHIN_S, spec(STEPS))
    person.wait(job["id"], lambda job: job["step"] >= 3, within_s=FINISHED_WITHIN_S)
    kill(work, service)
    attempts: int = ended(person, job)["attempt"]
    wait_until_healthy(work)
    return attempts


def kill(work: Work, service: str) -> None:
    """As a fault does it: `docker kill` counts as a manual stop, after which nothing starts again."""
    before = containers(work)[service]
    work.run([*within(work), "sh", "-c", f"kill -9 {before['State']['Pid']}"])
    name, restarts = before["Id"], before["RestartCount"]
    count = "{{.RestartCount}}"
    until(
        lambda: "" if int(docker(work, "inspect", "--format", count, name)) > restarts else "not started again",
        within_s=120,
        what=f"{service}, killed",
    )
