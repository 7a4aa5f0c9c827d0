"""A starved sender does not charge its own absence to a receiver."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from backend.accounts.models import Team
from backend.webhooks.addresses import GuardedNetwork
from backend.webhooks.models import WebhookDelivery, WebhookEndpoint
from backend.webhooks.secret_box import new_secret, seal
from backend.webhooks.settling import RETRY_AFTER_S, settle
from backend.webhooks.transport import LONGEST_TRY_S, Courier, Message, Outcome
from tests.backend.conftest import NOW
from tests.backend.webhooks.webhook_receiver import Receiver, receiving

BUSY = Outcome(status=None, error="server overloaded, will retry", ms=500, is_ours=True)


class LateLoop(asyncio.SelectorEventLoop):
    """A clock that jumps while the process does not run."""

    slept_s = 0.0

    def time(self) -> float:
        return super().time() + self.slept_s


Starve = Callable[[LateLoop, Receiver], Coroutine[Any, Any, None]]


def carry(receiver: Receiver, starve: Starve, *, path: str = "/hook") -> Outcome:
    message = Message(
        delivery_id="whd_1", endpoint_id="whk_1", url=receiver.url.replace("/hook", path), message_id="evt_1",
        body="{}", secrets_in_use=[new_secret()],
    )  # fmt: skip
    loop = LateLoop()
    network = GuardedNetwork(allow_loopback=True)
    courier = Courier(network, allow_loopback=True, patience_s=10.0, clock=loop.time)

    async def run() -> Outcome:
        starved = asyncio.create_task(starve(loop, receiver))
        outcome = await courier.carry(message, at=NOW)
        starved.cancel()
        return outcome

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(run())


async def sleep_through_the_answer(loop: LateLoop, receiver: Receiver) -> None:
    while not receiver.received:
        await asyncio.sleep(0.001)
    assert receiver.has_answered.wait(60)
    loop.slept_s += 3_600


async def sleep_again_and_again(loop: LateLoop, receiver: Receiver) -> None:
    while True:
        await asyncio.sleep(0.001)
        loop.slept_s += 5


def test_answer_that_waits_in_our_socket_is_in_time() -> None:
    with receiving(204) as receiver:
        outcome = carry(receiver, sleep_through_the_answer)
    assert (outcome.status, outcome.error, outcome.is_ours) == (204, "", False)
    assert outcome.ms < 1_000, "the hour was ours"


def test_starved_sender_blames_no_silent_receiver() -> None:
    with receiving() as receiver:
        outcome = carry(receiver, sleep_again_and_again, path="/hang")
    assert outcome.is_ours and outcome.status is None and "overloaded" in outcome.error
    assert outcome.ms < 1_000 * LONGEST_TRY_S / 2


@pytest.fixture
def delivery(team: Team) -> WebhookDelivery:
    endpoint = WebhookEndpoint.objects.create(
        team=team, url="https://a.example", events=["*"], secret=seal(new_secret()), created_at=NOW
    )
    fields = {"message_id": "evt_1", "type": "job.x", "body": "{}", "due_at": NOW, "created_at": NOW}
    return WebhookDelivery.objects.create(endpoint=endpoint, num_attempts=1, **fields)


def test_try_of_a_busy_server_leaves_the_endpoint_alone(delivery: WebhookDelivery) -> None:
    settle(delivery.pk, BUSY, now=NOW, rng=random.Random(0))
    delivery.refresh_from_db()
    endpoint = WebhookEndpoint.objects.get()
    assert (delivery.state, endpoint.num_failures, endpoint.not_before) == ("pending", 0, None)
    assert delivery.due_at is not None and delivery.due_at > NOW, "it is sent again"


def test_busy_server_disables_no_endpoint(delivery: WebhookDelivery) -> None:
    WebhookDelivery.objects.update(num_attempts=len(RETRY_AFTER_S) + 1)
    settle(delivery.pk, BUSY, now=NOW)
    delivery.refresh_from_db()
    assert delivery.state == "dead" and WebhookEndpoint.objects.get().disabled_at is None
