"""Every action on a page has a visible result: a message on the next page, or something that this page shows once."""

from urllib.parse import urlencode

import pytest
from django.contrib.messages import get_messages
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, reverse

from backend.pages import urls as page_urls
from backend.pages.shown_once import MADE
from tests.backend.conftest import NOW
from tests.backend.tenant_callers import World
from tests.backend.tenant_world import PAGES, make_world

pytestmark = pytest.mark.django_db

FORM = "application/x-www-form-urlencoded"
POSTED = [each for each in page_urls.urlpatterns if each.name in PAGES and PAGES[each.name].method == "POST"]


@pytest.mark.long
def test_every_act_is_answered() -> None:
    world = make_world(NOW)
    silent = [complaint for pattern in POSTED if (complaint := _silence(world, pattern))]
    assert not silent, "\n".join(silent)


def _silence(world: World, pattern: URLPattern) -> str:
    assert pattern.name is not None
    page = PAGES[pattern.name]
    address = reverse(pattern.name, kwargs={name: world.ids[name] for name in pattern.pattern.converters})
    browser = Client()
    browser.force_login(world.people["operator" if page.may == frozenset({"operator"}) else "owner"])
    with transaction.atomic():
        answer = browser.post(address, urlencode(page.form(world) if page.form else {}), FORM)
        told = [str(message) for message in get_messages(answer.wsgi_request)]
        transaction.set_rollback(True)
    if answer.status_code == 302 and (told or f"{MADE}=" in answer.headers["Location"]):
        return ""
    if answer.status_code != 302 and (b'role="alert"' in answer.content or b"shown-once" in answer.content):
        return ""  # the page itself shows the error or the new object
    return f"{pattern.name}: {answer.status_code}, and nothing is said"
