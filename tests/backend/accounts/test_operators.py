"""Django's admin is read-only, for every registered model and every user."""

from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.forms.models import model_to_dict
from django.test import Client
from django.urls import NoReverseMatch, reverse

from backend.accounts.models import User
from backend.pages.operator.admin_site import NOT_SHOWN, ReadOnlySite
from tests.backend.conftest import NOW
from tests.backend.tenant_world import make_world

pytestmark = pytest.mark.django_db
REGISTERED = sorted(admin.site._registry, key=lambda model: model._meta.label)


@pytest.fixture
def operator(db: None) -> User:
    return User.objects.create_superuser("root@example.org", "still-waters-run-deep")


@pytest.fixture
def browser(operator: User) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(operator)
    return client


def rows_of(model: type[Model]) -> list[dict[str, Any]]:
    return [model_to_dict(row) for row in model._default_manager.order_by("pk")]


def test_the_site_is_ours_and_shows_no_secrets() -> None:
    assert isinstance(admin.site, ReadOnlySite) and len(REGISTERED) >= 8
    assert not NOT_SHOWN & set(REGISTERED)


@pytest.mark.parametrize("model", REGISTERED, ids=lambda model: model._meta.label)
def test_the_admin_only_shows_a(model: type[Model], browser: Client) -> None:
    make_world(NOW)
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    shown = browser.get(reverse(f"{name}_changelist"))
    assert shown.status_code == 200 and "addlink" not in shown.content.decode()
    assert browser.get(reverse(f"{name}_add")).status_code == 403
    before, row = rows_of(model), model._default_manager.first()
    pages = [reverse(f"{name}_changelist"), reverse(f"{name}_add")]
    if row is not None:
        pk = quote(row.pk)  # quoted as in the admin's own links
        page = browser.get(reverse(f"{name}_change", args=[pk]))
        assert page.status_code == 200 and 'name="_save"' not in page.content.decode()
        assert browser.get(reverse(f"{name}_delete", args=[pk])).status_code == 403
        pages += [reverse(f"{name}_{act}", args=[pk]) for act in ("change", "delete")]
    marked = [] if row is None else [str(row.pk)]
    for address in pages:
        for form in ({"post": "yes"}, {"action": "delete_selected", "_selected_action": marked, "post": "yes"}):
            assert browser.post(address, form).status_code == 403, address
    assert rows_of(model)[: len(before)] == before, "the refusal may add a log entry"


def test_every_other_page_of_the_admin_refuses_to_change_as_well(browser: Client) -> None:
    def addresses() -> list[str]:
        paths = [f"/admin/{label}/" for label in {model._meta.app_label for model in apps.get_models()}]
        for page in ("index", "autocomplete", "jsi18n"):
            try:
                paths.append(reverse(f"admin:{page}"))
            except NoReverseMatch:
                continue
        return paths

    assert {browser.post(address).status_code for address in addresses()} <= {403, 404}


def test_operators_password_change_counts_guesses(browser: Client) -> None:
    answer = browser.get("/admin/password_change/")
    assert (answer.status_code, answer["Location"]) == (302, "/accounts/password/change/")
