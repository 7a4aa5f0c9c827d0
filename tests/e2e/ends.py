"""What is right at the end, whatever happened on the way: each job ended once, trained every sample once, and is billed
for what it held, once.
"""

from typing import Any, Final

import psycopg

from tests.e2e.customer import Customer
from tests.waiting import eventually

GROUPS, GROUP = 4, 4

_NOT_BILLED_SO: Final = """
SELECT * FROM (
    SELECT held.id, sum(slice.held_us) AS billed_us,
           round(extract(epoch FROM held.released_at - held.created_at) * 1e6) * held.devices AS held_us
    FROM pools_reservation held LEFT JOIN usage_usageslice slice ON slice.reservation_id = held.id
    GROUP BY held.id
) AS bills WHERE held_us IS DISTINCT FROM billed_us
"""
_OVERSOLD: Final = """
SELECT one.id FROM pools_reservation one JOIN pools_reservation other
ON other.pool_id = one.pool_id AND other.created_at <= one.created_at AND other.released_at > one.created_at
JOIN pools_resourcepool pool ON pool.id = one.pool_id
GROUP BY one.id, pool.capacity HAVING sum(other.devices) > pool.capacity
"""


def spec(steps: int) -> dict[str, Any]:
    return {
        "evaluation": {"prompts": 16},
        "training": {"steps": steps, "checkpoint_every": 10, "prompts_per_step": GROUPS},
        "algorithm": {"group_size": GROUP},
        "rollout": {"replicas": 1},
    }


def lasting(steps: int) -> dict[str, Any]:
    """A spec with which a step takes longer than a second anywhere, so that the job outlasts what is done meanwhile."""
    waits = {"name": "tool_sums", "params": {"waits": "constant", "wait_mean_s": 0.7, "turns": 2}}
    return spec(steps) | {"environment": waits, "schedule": {"name": "sync"}}


def assert_it_ended_once_and_well(stack: Customer, job: dict[str, Any]) -> None:
    steps = job["steps"]
    assert job["state"] == "succeeded", f"{job['id']}: {job['failure_class']} {job['message']}"
    assert {step for step, _ in stack.series(job["id"])["reward/mean"]} == set(range(1, steps + 1))
    events = stack.events(job["id"])
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    [last] = [event["data"]["ledger"] for event in events if event["reason"] == "succeeded"]
    assert (last["trained"], last["open"]) == (steps * GROUPS * GROUP, 0), last


def assert_nobodys_bill_is_wrong(stack: Customer, *, database: str, settled_within_s: float) -> None:
    with psycopg.connect(database, autocommit=True) as db:

        def unsettled() -> list[tuple[Any, ...]]:
            rows = db.execute(_NOT_BILLED_SO).fetchall()
            are_over = all(billed is None and held is not None for _, billed, held in rows)
            assert are_over, f"reservation, billed, held: {rows}"
            return rows

        if settled_within_s:
            what = "every reservation is billed by a later tick"
            eventually(unsettled, what, until=lambda rows: not rows, within_s=settled_within_s, every_s=1)
        else:
            unsettled()
        assert db.execute(_OVERSOLD).fetchall() == []
    assert stack.get("/pools")["data"][0]["reserved"] == 0
