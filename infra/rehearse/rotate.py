"""Every secret changed by the commands of infra/OPERATING.md while a job runs; then the old values are refused.

signing key, resealed ─▶ database ─▶ broker ─▶ metrics' token ─▶ the job is still in its first attempt
Ray's token ─▶ its second attempt resumes from the checkpoint ─▶ the old key is removed
"""

import secrets
from collections.abc import Callable

import httpx
import psycopg
import redis

from infra.rehearse.container_engine import compose, containers, manage
from infra.rehearse.jobs import FINISHED_WITHIN_S, SETTLED_WITHIN_S, customer, database, ended
from infra.rehearse.site import set_values, value_of, wait_until_healthy
from infra.rehearse.upgrade import is_beyond
from infra.rehearse.work import Work, stage
from infra.setup.terminal import Refusal
from tests.e2e.ends import assert_nobodys_bill_is_wrong, lasting

STEPS = 400
CONTROL_PLANE = ("web", "worker", "beat")


def run(work: Work) -> None:
    with customer(work) as person:
        job = person.submit_within(FINISHED_WITHIN_S, lasting(STEPS))
        for title, rotate in WHILE_IT_TRAINS.items():
            job = person.wait(job["id"], is_beyond(job["step"]), within_s=FINISHED_WITHIN_S)
            with stage(f"{title}, changed"):
                rotate(work)
        job = person.wait(job["id"], is_beyond(job["step"]), within_s=FINISHED_WITHIN_S)
        if job["attempt"] != 1:
            raise Refusal(f"{job['id']} had to begin again: attempt {job['attempt']}")
        with stage("Ray's token, changed"):
            rotate_ray_token(work)
        with stage("the job resumes from a checkpoint, and ends"):
            attempts = ended(person, job)["attempt"]
            if attempts != 2 or not (step := _resumed_after(work, job["id"])):
                raise Refusal(f"{job['id']}: attempt {attempts}, which is not the second from a checkpoint")
            if step < job["step"] - 20:
                raise Refusal(f"{job['id']} was at step {job['step']}, and resumed after {step}")
        with stage("the old key, removed"):
            set_values(work, LAMINAR_SECRET_KEYS_OF_BEFORE="")
            replace(work, *CONTROL_PLANE)
            manage(work, "doctor", "--no-nodes")
        with stage("all bills are correct"):
            assert_nobodys_bill_is_wrong(person, database=database(work), settled_within_s=SETTLED_WITHIN_S)


def replace(work: Work, *services: str) -> None:
    """None of Ray's: what came up by itself, Compose replaces at the next `up` of all."""
    compose(work, "up", "--detach", "--no-build", "--no-deps", *services)
    wait_until_healthy(work)


def rotate_signing_key(work: Work) -> None:
    before = value_of(work, "LAMINAR_SECRET_KEY")
    set_values(work, LAMINAR_SECRET_KEY=secrets.token_hex(24), LAMINAR_SECRET_KEYS_OF_BEFORE=before)
    replace(work, *CONTROL_PLANE)
    manage(work, "reseal_secrets")


def rotate_database_password(work: Work) -> None:
    before, new = database(work), secrets.token_hex(24)
    said = f"ALTER ROLE laminar PASSWORD '{new}'"
    compose(work, "exec", "-T", "postgres", "psql", "--username=laminar", "--dbname=laminar", "--command", said)
    set_values(work, POSTGRES_PASSWORD=new)
    replace(work, *CONTROL_PLANE, "wal")
    _is_refused("database", lambda: psycopg.connect(before, connect_timeout=10), psycopg.OperationalError)
    psycopg.connect(database(work), connect_timeout=10).close()


def rotate_broker_password(work: Work) -> None:
    before, new = value_of(work, "VALKEY_PASSWORD"), secrets.token_hex(24)
    set_values(work, VALKEY_PASSWORD=new)
    replace(work, "valkey", *CONTROL_PLANE)
    address = _address(work, "valkey")
    _is_refused("broker", lambda: redis.Redis(address, password=before).ping(), redis.AuthenticationError)
    redis.Redis(address, password=new).ping()


def rotate_metrics_token(work: Work) -> None:
    """Twice: at first there was none."""
    tokens = [secrets.token_hex(24), secrets.token_hex(24)]
    for token in tokens:
        set_values(work, LAMINAR_METRICS_TOKEN=token)
        replace(work, "web")
    page = f"http://{_address(work, 'web')}:8000/metrics"
    _answers(page, is_known=dict(zip(tokens, (False, True), strict=True)))


def rotate_ray_token(work: Work) -> None:
    before, new = value_of(work, "LAMINAR_RAY_TOKEN"), secrets.token_hex(24)
    set_values(work, LAMINAR_RAY_TOKEN=new)
    compose(work, "up", "--detach", "--no-build", "--force-recreate", "ray-head", "ray-worker")
    replace(work, "--force-recreate", *CONTROL_PLANE)
    _answers(f"http://{_address(work, 'ray-head')}:8265/api/version", is_known={before: False, new: True})


WHILE_IT_TRAINS: dict[str, Callable[[Work], None]] = {
    "the signing key": rotate_signing_key,
    "the database's password": rotate_database_password,
    "the broker's password": rotate_broker_password,
    "the token of /metrics": rotate_metrics_token,
}


def _answers(page: str, *, is_known: dict[str, bool]) -> None:
    for token, wanted in is_known.items():
        headers = {"Host": "web", "Authorization": f"Bearer {token}"}
        status = httpx.get(page, headers=headers, timeout=60).status_code
        if (status == 200) != wanted:
            raise Refusal(f"{page} answers {status} to the {'new' if wanted else 'former'} token")


def _is_refused(what: str, connect: Callable[[], object], refusal: type[Exception]) -> None:
    try:
        connect()
    except refusal:
        return
    raise Refusal(f"the {what} still takes the password of before")


def _address(work: Work, service: str) -> str:
    networks = containers(work)[service]["NetworkSettings"]["Networks"]
    return str(networks["laminar_default"]["IPAddress"])


def _resumed_after(work: Work, job: str) -> int:
    """The step."""
    with psycopg.connect(database(work)) as db:
        found = db.execute(
            "SELECT resume_step FROM jobs_jobattempt WHERE job_id = %s ORDER BY n DESC LIMIT 1", [job]
        ).fetchone()
    return int(found[0]) if found else 0
