"""A site without users explains the bootstrap; afterwards checking for users costs nothing."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from backend.accounts.models import User
from backend.accounts.signing_in.first_person import FirstPerson

pytestmark = pytest.mark.django_db
COMMANDS = (
    b"<code>python manage.py bootstrap</code>",
    b"<code>docker compose exec web python manage.py bootstrap</code>",
)


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.pages.templatetags.account_pages.first_person", FirstPerson())


def test_sign_in_page_of_empty_site_explains_bootstrap() -> None:
    page = Client().get("/accounts/login/").content
    assert all(command in page for command in COMMANDS)


def test_service_account_alone_is_no_first_user() -> None:
    User.objects.create_user("robot@service.invalid", is_service=True)
    assert b"manage.py bootstrap" in Client().get("/accounts/login/").content


def test_explanation_disappears_with_the_first_user() -> None:
    Client().get("/accounts/login/")
    User.objects.create_user("ada@example.org")
    assert b"manage.py bootstrap" not in Client().get("/accounts/login/").content


def test_existing_user_saves_further_queries() -> None:
    first = FirstPerson()
    assert not first.is_there()
    User.objects.create_user("ada@example.org")
    assert first.is_there()
    with CaptureQueriesContext(connection) as queries:
        assert first.is_there()
    assert not queries.captured_queries
