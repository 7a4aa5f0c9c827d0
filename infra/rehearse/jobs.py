"""Jobs by REST with an API key: the demo's, checkpoints in the bucket; its own code in the sandbox; one of vLLM."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from infra.local.home import PROJECT
from infra.rehearse.container_engine import containers
from infra.rehearse.first_minute import visitor
from infra.rehearse.site import STORE, list_bucket, value_of
from infra.rehearse.work import Work, stage
from infra.setup.terminal import Refusal, say
from tests.e2e.customer import Customer
from tests.e2e.ends import assert_it_ended_once_and_well, assert_nobodys_bill_is_wrong, spec

STEPS = 40
FINISHED_WITHIN_S = 900.0
PATIENCE_S = 300.0
SETTLED_WITHIN_S = 120.0
VLLM = {"engine": "vllm", "replicas": 1, "max_batch": 16, "max_new_tokens": 60, "kv_tokens": 4096}
EXAMPLE = PROJECT / "engine" / "environments" / "README.md"


def run(work: Work) -> None:
    with customer(work) as person:
        with stage(f"a job of {STEPS} steps"):
            ended(person, person.submit(**spec(STEPS)))
        with stage("its checkpoints are in the bucket"):
            if not (found := objects(work)):
                raise Refusal(f"no object of a checkpoint in {STORE['LAMINAR_STORE_URL']}")
        say(f"  ({len(found)} objects)")
        with stage("a job whose environment is its own code"):
            own = {"name": "custom", "code": code_of(EXAMPLE.read_text())}
            ended(person, person.submit(**spec(3), environment=own))
        with stage("a job whose replica is vLLM"):
            ended(person, person.submit(**(spec(3) | {"rollout": VLLM})))
        with stage("all bills are correct"):
            assert_nobodys_bill_is_wrong(person, database=database(work), settled_within_s=SETTLED_WITHIN_S)


@contextmanager
def customer(work: Work) -> Iterator[Customer]:
    """The first person, with the key that the first minute made."""
    customer_file = json.loads(work.customer.read_text())
    with visitor(work, {"Authorization": f"Bearer {customer_file['key']}"}) as client:
        yield Customer(client=client, project=customer_file["project"], patience_s=PATIENCE_S)


def ended(person: Customer, job: dict[str, Any]) -> dict[str, Any]:
    job = person.finish(job["id"], within_s=FINISHED_WITHIN_S)
    assert_it_ended_once_and_well(person, job)
    return job


def database(work: Work) -> str:
    [network] = containers(work)["postgres"]["NetworkSettings"]["Networks"].values()
    return f"postgresql://laminar:{value_of(work, 'POSTGRES_PASSWORD')}@{network['IPAddress']}:5432/laminar"


def objects(work: Work) -> list[str]:
    listing = list_bucket(work, "GET", **{"list-type": "2"})
    return re.findall(r"<Key>([^<]*checkpoint[^<]*)</Key>", listing.text)


def code_of(document: str) -> str:
    """The example of a custom environment, as it is documented."""
    [code] = re.findall(r"^## custom$.*?^```python\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
    return str(code)
