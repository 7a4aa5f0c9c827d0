"""Webhooks: each subscribed event is delivered at least once, signed, with retries over days."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from backend.accounts.models import Team, User
from backend.audit.models import AuditEntry
from backend.jobs.control.cancelling import cancel_job
from backend.jobs.lifecycle import locked_job, record_event
from backend.jobs.models import Job
from backend.webhooks import background, transport
from backend.webhooks.addresses import GuardedNetwork
from backend.webhooks.fan_out import fan_out
from backend.webhooks.models import DeliveryState, PendingEvent, SenderLease, WebhookDelivery, WebhookEndpoint
from backend.webhooks.secret_box import new_secret, seal
from backend.webhooks.sending import CLAIM_LASTS, claim, send_due
from backend.webhooks.services import forget_old_deliveries
from backend.webhooks.settling import JITTER, RETRY_AFTER_S
from backend.webhooks.transport import Courier
from tests.backend.conftest import NOW
from tests.backend.webhooks.webhook_receiver import MOST_HUNG_S, Receiver, receiving

PATIENCE_S = 1.0


@pytest.fixture
def start() -> Iterator[Callable[..., Receiver]]:
    with ExitStack() as until_the_end:
        yield lambda *answers, **options: until_the_end.enter_context(receiving(*answers, **options))


@pytest.fixture
def listen(team: Team) -> Callable[..., WebhookEndpoint]:
    def make(url: str, *, events: tuple[str, ...] = ("*",), to: Team = team, **fields: Any) -> WebhookEndpoint:
        fields.setdefault("secret", seal(new_secret()))
        return WebhookEndpoint.objects.create(team=to, url=url, events=list(events), created_at=NOW, **fields)

    return make


def send(at: datetime = NOW, *, patience_s: float = PATIENCE_S) -> int:
    fan_out(now=at)
    courier = Courier(GuardedNetwork(allow_loopback=True), allow_loopback=True, patience_s=patience_s)
    return send_due(courier, clock=lambda: at)


def just_after(text: str) -> datetime:
    return datetime.fromisoformat(text) + timedelta(seconds=1)


def is_signed(headers: dict[str, str], body: str, secret: str) -> bool:
    """Verifies a signature as a receiver does, following the text of Standard Webhooks."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    message = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body}".encode()
    expected = "v1," + base64.b64encode(hmac.new(key, message, hashlib.sha256).digest()).decode()
    return expected in headers["webhook-signature"].split(" ")


class TestFanOut:
    def test_only_subscribed_endpoints_get_a_delivery(self, listen: Any, make_job: Any, other_team: Team) -> None:
        everything, states = listen("https://a.example"), listen("https://b.example", events=("job.cancelled",))
        listen("https://c.example", to=other_team)
        listen("https://d.example", disabled_at=NOW)
        job = make_job()
        cancel_job(job.pk, actor="user:1", now=NOW)
        fan_out(now=NOW)
        deliveries = WebhookDelivery.objects.values_list("endpoint_id", "type")
        assert {kind for who, kind in deliveries if who == everything.pk} >= {"job.submitted", "job.cancelled"}
        assert [kind for who, kind in deliveries if who == states.pk] == ["job.cancelled"]
        assert {who for who, _ in deliveries} == {everything.pk, states.pk}
        assert not PendingEvent.objects.exists()

    def test_team_without_webhooks_writes_no_pending_event(self, job: Job) -> None:
        assert not PendingEvent.objects.exists()

    def test_rolled_back_event_is_never_delivered(self, listen: Any, job: Job) -> None:
        listen("https://a.example")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            record_event(locked_job(job.pk), "moved", actor="user:1", now=NOW)
            raise ZeroDivisionError
        assert not PendingEvent.objects.exists()

    @pytest.mark.django_db(transaction=True)
    def test_late_committed_event_is_not_skipped(
        self, listen: Any, make_job: Any, in_own_connection: Callable[..., Any]
    ) -> None:
        """It has a lower id than events already fanned out."""
        first, second = make_job(), make_job()
        listen("https://a.example")

        def record(job: Job) -> None:
            with transaction.atomic():
                record_event(locked_job(job.pk), "moved", actor="user:1", now=NOW)

        with ThreadPoolExecutor(1) as elsewhere, transaction.atomic():
            record_event(locked_job(first.pk), "moved", actor="user:1", now=NOW)
            elsewhere.submit(in_own_connection(record), second).result()
            assert elsewhere.submit(in_own_connection(lambda: fan_out(now=NOW))).result() == 1
        fan_out(now=NOW)
        rows = WebhookDelivery.objects.filter(type="job.moved").order_by("created_at", "event_id")
        assert {row.event.job_id for row in rows if row.event} == {first.pk, second.pk}

    @pytest.mark.django_db(transaction=True)
    def test_concurrent_fan_outs_make_one_delivery_per_event(
        self, listen: Any, make_job: Any, in_own_connection: Callable[..., Any]
    ) -> None:
        listen("https://a.example", events=("job.submitted",))
        for _ in range(20):
            make_job()
        with ThreadPoolExecutor(8) as workers:
            list(workers.map(in_own_connection(lambda _: fan_out(now=NOW)), range(16)))
        assert WebhookDelivery.objects.count() == 20 and not PendingEvent.objects.exists()


class TestSending:
    def test_message_is_signed_and_carries_the_event(self, start: Any, listen: Any, make_job: Any) -> None:
        receiver, secret = start(204), new_secret()
        listen(receiver.url, events=("job.submitted",), secret=seal(secret))
        job = make_job()
        assert send() == 1
        (got,) = receiver.received
        assert is_signed(got.headers, got.body, secret) and not is_signed(got.headers, got.body, new_secret())
        assert got.headers["webhook-timestamp"] == str(int(NOW.timestamp()))
        sent = json.loads(got.body)
        assert (sent["type"], sent["data"]["job_id"], sent["data"]["event"]["seq"]) == ("job.submitted", job.pk, 1)
        row = WebhookDelivery.objects.get()
        assert (row.state, row.num_attempts, row.attempts[0]["status"]) == ("delivered", 1, 204)
        assert send(NOW + timedelta(days=1)) == 0, "it is not sent again"

    @pytest.mark.parametrize("status", [301, 302, 400, 404, 500, 503])
    def test_non_2xx_is_retried_with_same_id_and_body(
        self, start: Any, listen: Any, make_job: Any, status: int
    ) -> None:
        receiver = start(status, 200)
        listen(receiver.url, events=("job.submitted",))
        make_job()
        send()
        row = WebhookDelivery.objects.get()
        assert row.state == "pending" and row.due_at is not None
        wait_s = (row.due_at - NOW).total_seconds()
        assert RETRY_AFTER_S[0] * (1 - JITTER) <= wait_s <= RETRY_AFTER_S[0] * (1 + JITTER)
        assert send(NOW + timedelta(seconds=1)) == 0, "not before it is due"
        assert send(NOW + timedelta(seconds=30)) == 1
        first, second = receiver.received
        assert (first.headers["webhook-id"], first.body) == (second.headers["webhook-id"], second.body)
        assert {got.path for got in receiver.received} == {"/hook"}, "redirects are not followed"
        row.refresh_from_db()
        assert row.state == "delivered" and [attempt["status"] for attempt in row.attempts] == [status, 200]

    def test_delivery_is_dead_after_days_and_endpoint_disabled(self, start: Any, listen: Any, make_job: Any) -> None:
        receiver = start(500)
        endpoint = listen(receiver.url, events=("job.submitted",))
        make_job()
        fan_out(now=NOW)
        now = NOW
        while (row := WebhookDelivery.objects.filter(state="pending").first()) is not None:
            now = max(now, row.due_at or now) + timedelta(minutes=11)
            send(now)
        assert len(receiver.received) == len(RETRY_AFTER_S) + 1 == 11
        assert timedelta(days=2) < now - NOW < timedelta(days=6)
        endpoint.refresh_from_db()
        assert endpoint.disabled_at is not None and "days" in endpoint.disabled_reason
        assert AuditEntry.objects.get(action="webhook.disabled").target == endpoint.pk

    def test_410_means_never_again(self, start: Any, listen: Any, make_job: Any) -> None:
        receiver = start(410)
        endpoint = listen(receiver.url, events=("job.submitted",))
        make_job(), make_job()
        send()
        endpoint.refresh_from_db()
        assert endpoint.disabled_at == NOW and "410" in endpoint.disabled_reason
        assert WebhookDelivery.objects.filter(state="dead").exists()
        make_job()
        sent = len(receiver.received)
        send(NOW + timedelta(days=1))
        assert len(receiver.received) == sent, "nothing is sent to a disabled endpoint"

    @pytest.mark.parametrize("path", ["/hang", "/drip"])
    def test_slow_receiver_times_out_and_is_paused(self, start: Any, listen: Any, make_job: Any, path: str) -> None:
        slow = start()
        listen(slow.url.replace("/hook", path), events=("job.submitted",))
        for _ in range(12):
            make_job()
        send()
        assert len(slow.received) <= 2, "then the endpoint pauses"
        tries = [row.attempts[0] for row in WebhookDelivery.objects.exclude(attempts=[])]
        assert tries and {one["error"] for one in tries} == {f"no response within {PATIENCE_S:g} s"}

    def test_slow_receiver_delays_no_other(
        self, start: Any, listen: Any, make_job: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It answers once the other receiver has everything, or gives up after a minute."""
        monkeypatch.setattr(transport, "LONGEST_TRY_S", 10 * MOST_HUNG_S)
        slow, fast = start(), start()
        listen(slow.url.replace("/hook", "/hang"), events=("job.submitted",))
        listen(fast.url, events=("job.submitted",))
        for _ in range(12):
            make_job()
        fast.on_request = lambda: slow.is_over.set() if len(fast.received) == 12 else None
        send(patience_s=10 * MOST_HUNG_S)
        assert slow.was_released and all(slow.was_released)
        assert WebhookDelivery.objects.filter(endpoint__url=fast.url, state="delivered").count() == 12

    def test_invalid_or_missing_receiver_is_an_outcome(self, start: Any, listen: Any, make_job: Any) -> None:
        receiver = start()
        listen(receiver.url.replace("/hook", "/nonsense"), events=("job.submitted",))
        listen("http://127.0.0.1:1/hook", events=("job.submitted",))
        make_job()
        send()
        errors = {row.attempts[0]["error"] for row in WebhookDelivery.objects.all()}
        assert "could not connect" in errors and len(errors) == 2

    def test_nothing_of_the_receivers_body_is_kept(self, start: Any, listen: Any, make_job: Any, api_all: Any) -> None:
        endpoint = listen(start(500).url, events=("job.submitted",))
        make_job()
        send()
        shown = api_all.get(f"/webhooks/{endpoint.pk}/deliveries").content.decode()
        assert "SECRET" not in shown and "SECRET" not in str(WebhookDelivery.objects.values().get())

    def test_claims_of_dead_sender_are_sent_by_the_next(self, start: Any, listen: Any, make_job: Any) -> None:
        receiver = start()
        listen(receiver.url, events=("job.submitted",))
        make_job()
        fan_out(now=NOW)
        assert len(claim(now=NOW, room=9)) == 1, "then the sender dies"
        assert send(NOW + CLAIM_LASTS / 2) == 0
        assert send(NOW + CLAIM_LASTS + timedelta(seconds=1)) == 1
        assert len(receiver.received) == 1

    def test_one_sender_runs_and_lease_of_dead_one_expires(self, start: Any, listen: Any, make_job: Any) -> None:
        listen(start().url, events=("job.submitted",))
        make_job()
        SenderLease.objects.create(slot=1, held_until=NOW + timedelta(seconds=30))
        assert send() == 0
        assert send(NOW + timedelta(seconds=31)) == 1

    @pytest.mark.django_db(transaction=True)
    def test_racing_claims_never_share_a_delivery(
        self, listen: Any, make_job: Any, in_own_connection: Callable[..., Any]
    ) -> None:
        for n in range(10):
            listen(f"https://{n}.example", events=("job.submitted",))
        make_job()
        fan_out(now=NOW)
        with ThreadPoolExecutor(8) as senders:
            claims = list(senders.map(in_own_connection(lambda _: claim(now=NOW, room=4)), range(16)))
        claims.append(claim(now=NOW, room=10))  # rows skipped while locked by another claim
        ids = [message.delivery_id for batch in claims for message in batch]
        assert len(ids) == len(set(ids)) == 10


@pytest.fixture
def api_all(api: Any, alice: User, make_key: Any) -> Any:
    api.key = make_key(alice, scopes=("webhooks:write", "audit:read"))
    return api


def test_background_task_fans_out_and_sends(start: Any, listen: Any, make_job: Any, settings: Any) -> None:
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, webhooks_to_loopback=True)
    receiver = start()
    listen(receiver.url, events=("job.submitted",))
    make_job()
    background.send()
    assert [json.loads(got.body)["type"] for got in receiver.received] == ["job.submitted"]
    background.send()
    assert len(receiver.received) == 1


class TestApi:
    def make(self, api_all: Any, **fields: Any) -> Any:
        return api_all.post("/webhooks", {"url": "https://example.org/hook"} | fields)

    def test_secret_is_shown_once_and_never_stored_or_logged(self, api_all: Any) -> None:
        created = self.make(api_all)
        document = created.json()
        assert created.status_code == 201 and document["secret"].startswith("whsec_")
        assert len(base64.b64decode(document["secret"].removeprefix("whsec_"))) == 32
        later = [api_all.get(f"/webhooks/{document['id']}"), api_all.get("/webhooks"), api_all.get("/audit-log")]
        with connection.cursor() as db:
            db.execute("SELECT (SELECT string_agg(e::text, '') FROM webhooks_webhookendpoint e)")
            stored = db.fetchone()[0]
        for text in [*(response.content.decode() for response in later), stored]:
            assert document["secret"].removeprefix("whsec_") not in text

    def test_both_secrets_sign_for_a_day_after_rotation(
        self, api_all: Any, start: Any, listen: Any, make_job: Any
    ) -> None:
        receiver, first = start(), new_secret()
        endpoint = listen(receiver.url, events=("job.submitted",), secret=seal(first))
        second = api_all.post(f"/webhooks/{endpoint.pk}/rotate-secret").json()["secret"]
        endpoint.refresh_from_db()
        assert endpoint.previous_until is not None
        for at in (endpoint.previous_until - timedelta(hours=1), endpoint.previous_until + timedelta(hours=1)):
            make_job()
            send(at)
        during, after = receiver.received
        assert is_signed(during.headers, during.body, first) and is_signed(during.headers, during.body, second)
        assert not is_signed(after.headers, after.body, first) and is_signed(after.headers, after.body, second)

    def test_unseen_change_is_not_overwritten(self, api_all: Any) -> None:
        created = self.make(api_all)
        address = f"/webhooks/{created.json()['id']}"
        tag = created["ETag"]

        def patch(body: Any, if_match: str | None) -> Any:
            headers = {"Authorization": f"Bearer {api_all.key}"} | ({"If-Match": if_match} if if_match else {})
            return api_all.client.patch(f"/api/v1{address}", body, content_type="application/json", headers=headers)

        changed = patch({"events": ["job.failed"]}, tag)
        assert changed.status_code == 200 and changed["ETag"] != tag
        stale = patch({"events": ["*"]}, tag)
        assert (stale.status_code, stale["ETag"]) == (412, changed["ETag"])
        assert api_all.get(address).json()["events"] == ["job.failed"]
        assert patch({"enabled": False}, None).json()["enabled"] is False

    def test_dead_letters_are_seen_and_sent_again(self, api_all: Any, start: Any, listen: Any, make_job: Any) -> None:
        receiver = start(500, 200)
        endpoint = listen(receiver.url, events=("job.submitted",))
        make_job()
        send()
        WebhookDelivery.objects.update(state=DeliveryState.DEAD, due_at=None, finished_at=NOW)
        (dead,) = api_all.get(f"/webhooks/{endpoint.pk}/deliveries", state="dead").json()["data"]
        again = api_all.post(f"/webhooks/{endpoint.pk}/deliveries/{dead['id']}/redeliver")
        assert (again.status_code, again.json()["state"]) == (202, "pending")
        send(just_after(again.json()["next_attempt_at"]))
        shown = api_all.get(f"/webhooks/{endpoint.pk}/deliveries/{dead['id']}").json()
        assert shown["state"] == "delivered" and json.loads(shown["body"])["type"] == "job.submitted"
        assert receiver.received[0].headers["webhook-id"] == receiver.received[1].headers["webhook-id"]

    def test_test_message_is_sent_like_any_other(self, api_all: Any, start: Any, listen: Any) -> None:
        receiver = start()
        endpoint = listen(receiver.url, events=("job.succeeded",))
        answer = api_all.post(f"/webhooks/{endpoint.pk}/test")
        assert answer.status_code == 202
        send(just_after(answer.json()["next_attempt_at"]))
        assert json.loads(receiver.received[0].body)["type"] == "webhook.test"
        WebhookEndpoint.objects.update(disabled_at=NOW)
        assert api_all.post(f"/webhooks/{endpoint.pk}/test").json()["code"] == "webhook_disabled"

    @pytest.mark.parametrize(
        "url",
        ["http://example.org/", "ftp://example.org/", "https://user:pw@example.org/", "https://127.0.0.1/",
         "https://[::1]/", "https://[::ffff:10.0.0.1]/", "https://10.0.0.1:8443/", "https://169.254.169.254/latest",
         "https://", "https://exa mple.org/", "https://example.org\\@127.0.0.1/", "https://example.org:0/",
         "https://example.org:99999/", "https://[64:ff9b::7f00:1]/", "https://éxample.org/", "javascript:alert(1)"],
    )  # fmt: skip
    def test_invalid_address_is_refused_at_once(self, api_all: Any, url: str) -> None:
        refused = self.make(api_all, url=url)
        assert refused.status_code == 422, refused.content
        assert refused.json()["errors"][0]["pointer"] == "/url"

    @pytest.mark.parametrize("events", [[], ["job.Succeeded"], ["checkpoint"], ["job."], "job.*", [1], ["*\0"]])
    def test_events_that_do_not_exist_are_refused(self, api_all: Any, events: Any) -> None:
        assert self.make(api_all, events=events).status_code == 422

    def test_number_of_webhooks_is_limited(self, api_all: Any, listen: Any) -> None:
        for n in range(20):
            listen(f"https://{n}.example")
        assert self.make(api_all).json()["code"] == "too_many_webhooks"

    def test_every_change_is_in_the_audit_log(self, api_all: Any) -> None:
        endpoint = self.make(api_all).json()["id"]
        api_all.post(f"/webhooks/{endpoint}/rotate-secret")
        assert api_all.request("DELETE", f"/webhooks/{endpoint}").status_code == 204
        written = api_all.get("/audit-log", target=endpoint).json()["data"]
        actions = [entry["action"] for entry in written]
        assert actions == ["webhook.deleted", "webhook.secret_rotated", "webhook.created"]
        assert {entry["ip"] for entry in written} == {"127.0.0.1"}
        assert len({entry["request_id"] for entry in written if entry["request_id"].startswith("req_")}) == 3


def test_deliveries_finished_a_month_ago_are_deleted(listen: Any) -> None:
    fields = {"message_id": "evt_1", "type": "job.x", "body": "{}", "created_at": NOW}
    endpoint = listen("https://a.example")
    WebhookDelivery.objects.create(endpoint=endpoint, state="dead", finished_at=NOW - timedelta(days=31), **fields)
    WebhookDelivery.objects.create(endpoint=endpoint, due_at=NOW - timedelta(days=31), **fields)
    assert forget_old_deliveries(now=NOW) == 1
    assert WebhookDelivery.objects.get().state == "pending"
