"""Webhook pages: secrets shown once, deliveries, and access only for admins and owners."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.test import Client

from backend.audit.models import AuditEntry
from backend.webhooks.models import WebhookDelivery, WebhookEndpoint
from backend.webhooks.secret_box import unseal
from tests.frontend.html_reading import words_of
from tests.frontend.seed import World

SECRET = re.compile(r"whsec_[A-Za-z0-9+/]{20,}={0,2}")
URL = "https://hooks.example.org/laminar"


def make(client: Client, **typed: Any) -> Any:
    return client.post("/webhooks/", {"url": URL, "everything": "yes"} | typed, follow=True)


@pytest.fixture
def endpoint(world: World, owner: Client) -> WebhookEndpoint:
    make(owner)
    return WebhookEndpoint.objects.get()


def delivery(endpoint: WebhookEndpoint, number: int = 1, **fields: Any) -> WebhookDelivery:
    now = datetime.now(UTC)
    made = {"body": '{"type": "job.failed"}', "state": "dead", "finished_at": now, "num_attempts": 2, "attempts": [
        {"at": now.isoformat(), "status": 500, "error": "", "ms": 12},
        {"at": now.isoformat(), "status": None, "error": "timed out", "ms": 15_000},
    ]}  # fmt: skip
    return WebhookDelivery.objects.create(
        endpoint=endpoint, message_id=f"evt_{number}", type="job.failed",
        created_at=now, **(made | fields),
    )  # fmt: skip


def test_the_secret_is_shown_once_and_is_the_one_that_signs(world: World, owner: Client) -> None:
    made = make(owner, description="Chat")
    (secret,) = set(SECRET.findall(words_of(made)))
    endpoint = WebhookEndpoint.objects.get()
    assert "no-store" in made["Cache-Control"] and unseal(endpoint.secret) == secret
    for path in ("/webhooks/", f"/webhooks/{endpoint.pk}/"):
        page = words_of(owner.get(path))
        assert URL in page and "Chat" in page and not SECRET.search(page)
    assert not any(secret in str(row.get_decoded()) for row in Session.objects.all()), "not in the session either"
    assert not any(secret in str(entry.data) for entry in AuditEntry.objects.all())


def test_new_secret_is_shown_once_and_old_one_signs_for_a_day(owner: Client, endpoint: WebhookEndpoint) -> None:
    before = unseal(endpoint.secret)
    page = words_of(owner.post(f"/webhooks/{endpoint.pk}/secret", follow=True))
    (secret,) = set(SECRET.findall(page))
    endpoint.refresh_from_db()
    assert secret != before and unseal(endpoint.secret) == secret and unseal(endpoint.previous_secret) == before
    assert "are also signed with the previous secret" in page
    assert not SECRET.search(words_of(owner.get(f"/webhooks/{endpoint.pk}/")))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"url": ""}, "Enter a URL"),
        ({"url": "http://example.org/x"}, "https"),
        ({"url": "https://127.0.0.1/x"}, "127.0.0.1"),
        *(
            ({"url": f"https://{host}/x"}, "not on the public internet")
            for host in ("localhost", "LocalHost.:8443", "a.localhost", "127.1", "2130706433", "0x7f.0.0.1", "[::1]")
        ),
        ({"url": "https://10.1/x"}, "not on the public internet"),
        ({"url": "https://ada:pw@example.org/"}, "must not contain a user name"),
        ({"everything": ""}, "Choose at least one event"),
        ({"everything": "", "events": ["job.failed", "weather"]}, "Choose at least one event"),
        ({"description": "x" * 201}, "200 characters"),
    ],
)
def test_invalid_webhook_form_shows_errors_and_keeps_input(
    world: World, owner: Client, typed: dict[str, Any], said: str
) -> None:
    answer = make(owner, **({"description": "kept"} | typed))
    assert answer.status_code == 422 and said in words_of(answer)
    assert not WebhookEndpoint.objects.exists()
    if "description" not in typed:
        assert 'value="kept"' in words_of(answer)


def test_only_chosen_messages(world: World, owner: Client) -> None:
    make(owner, everything="", events=["job.failed", "job.succeeded", "job.failed"])
    assert WebhookEndpoint.objects.get().events == ["job.failed", "job.succeeded"]


def test_what_came_of_each_message_is_told(owner: Client, endpoint: WebhookEndpoint) -> None:
    delivery(endpoint)
    now = datetime.now(UTC)
    delivery(endpoint, 2, state="pending", finished_at=None, due_at=now, attempts=[], num_attempts=0)
    page = words_of(owner.get(f"/webhooks/{endpoint.pk}/"))
    assert "dead" in page and "2 attempts" in page and "no response" in page and "timed out" in page and "500" in page
    assert '{"type": "job.failed"}' in page and "not sent yet" in page
    assert page.count("Redeliver<") == 1, "a pending delivery is not sent twice"
    only = words_of(owner.get(f"/webhooks/{endpoint.pk}/?state=pending"))
    assert "evt_2" in only and "evt_1" not in only
    assert "No delivered deliveries" in words_of(owner.get(f"/webhooks/{endpoint.pk}/?state=delivered"))


def test_a_message_is_sent_again_and_it_stands_in_the_log(owner: Client, endpoint: WebhookEndpoint) -> None:
    row = delivery(endpoint)
    answer = owner.post(f"/webhooks/{endpoint.pk}/deliveries/{row.pk}/redeliver", follow=True)
    assert "Redelivery started" in words_of(answer)
    row.refresh_from_db()
    assert (row.state, row.num_attempts) == ("pending", 0)
    assert AuditEntry.objects.filter(action="webhook.redelivered", target=endpoint.pk).count() == 1


def test_test_disable_enable_and_delete(owner: Client, endpoint: WebhookEndpoint) -> None:
    def press(act: str) -> str:
        return words_of(owner.post(f"/webhooks/{endpoint.pk}/change", {"act": act}, follow=True))

    assert "Test message sent" in press("test") and WebhookDelivery.objects.get().type == "webhook.test"
    assert "No messages are sent" in press("disable")
    assert "Enable it first" in press("test") and WebhookDelivery.objects.count() == 1
    assert "Webhook enabled" in press("enable")
    assert "Choose an action" in press("dance")
    assert "deliveries deleted" in press("delete") and not WebhookEndpoint.objects.exists()
    assert owner.post(f"/webhooks/{endpoint.pk}/change", {"act": "delete"}).status_code == 404


def test_deliveries_come_in_pages(owner: Client, endpoint: WebhookEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.pages.team.webhook_views.DELIVERIES_A_PAGE", 2)
    for number in range(3):
        delivery(endpoint, number)
    first = words_of(owner.get(f"/webhooks/{endpoint.pk}/"))
    found = re.search(r'rel="next" href="([^"]+)"', first)
    assert found
    second = words_of(owner.get(f"/webhooks/{endpoint.pk}/{found[1]}"))
    ids = [set(re.findall(r"<code>(evt_\d)</code>", page)) for page in (first, second)]
    assert ids == [{"evt_2", "evt_1"}, {"evt_0"}]
    assert owner.get(f"/webhooks/{endpoint.pk}/?cursor=nonsense").status_code == 404


def test_viewers_are_told_whose_it_is_and_see_no_tab(viewer: Client, endpoint: WebhookEndpoint) -> None:
    answer = viewer.get("/webhooks/")
    assert answer.status_code == 403 and "admins and owners" in words_of(answer) and URL not in words_of(answer)
    assert "/webhooks/" not in words_of(viewer.get("/members/"))
    for path in ("change", "secret"):
        assert viewer.post(f"/webhooks/{endpoint.pk}/{path}", {"act": "delete"}).status_code == 403
    assert viewer.post("/webhooks/", {"url": URL, "everything": "yes"}).status_code == 403
    assert WebhookEndpoint.objects.count() == 1


def test_another_teams_webhook_does_not_exist(outsider: Client, world: World, endpoint: WebhookEndpoint) -> None:
    row = delivery(endpoint)
    assert outsider.get(f"/webhooks/{endpoint.pk}/").status_code == 404
    for path in ("change", "secret", f"deliveries/{row.pk}/redeliver"):
        assert outsider.post(f"/webhooks/{endpoint.pk}/{path}", {"act": "delete"}).status_code == 404
    assert URL not in words_of(outsider.get("/webhooks/"))
    row.refresh_from_db()
    assert row.state == "dead" and WebhookEndpoint.objects.exists()


def test_without_the_forms_token_nothing_is_done(world: World, endpoint: WebhookEndpoint) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(world.owner)
    assert strict.post(f"/webhooks/{endpoint.pk}/change", {"act": "delete"}).status_code == 403
    assert WebhookEndpoint.objects.exists()


def test_a_hostile_webhook_is_text(world: World, owner: Client) -> None:
    hostile = '"><script>alert(1)</script>'
    make(owner, description=hostile)
    endpoint = WebhookEndpoint.objects.get()
    delivery(endpoint, body=hostile)
    for path in ("/webhooks/", f"/webhooks/{endpoint.pk}/"):
        assert "<script>alert" not in str(owner.get(path).content, "utf-8")


def test_an_empty_page_says_what_to_do(world: World, owner: Client) -> None:
    assert "No webhooks yet" in words_of(owner.get("/webhooks/"))
    make(owner)
    endpoint = WebhookEndpoint.objects.get()
    assert "No deliveries yet" in words_of(owner.get(f"/webhooks/{endpoint.pk}/"))


def test_strangers_are_sent_to_sign_in(db: None) -> None:
    assert Client().get("/webhooks/")["Location"] == "/accounts/login/?next=/webhooks/"
