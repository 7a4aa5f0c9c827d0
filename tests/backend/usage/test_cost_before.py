"""The cost of a job before submission: at the current price, exact, and absent if the pool is free."""

from datetime import timedelta
from decimal import Decimal
from urllib.parse import urlencode

from django.test import Client

from backend.accounts.models import Project, User
from backend.clock import database_now
from backend.pages.new_job.forms import JobForm
from backend.pools.models import ResourcePool
from backend.usage.pricing.prices import PriceTerms, set_price
from engine.spec.job import JobSpec
from tests.backend.conftest import Api

SPEC = {"name": "Sums", "rollout": {"replicas": 3}, "placement": {"min_replicas": 1}, "max_runtime_s": 7_200}


def priced(pool: ResourcePool, price: str, *, later: timedelta = timedelta(0)) -> None:
    now = database_now()
    terms = PriceTerms(per_device_second=Decimal(price), valid_from=now + later, currency="EUR")
    set_price(pool, terms, actor="user:1", now=now)


def test_pool_with_only_a_future_price_is_free(api: Api, pool: ResourcePool) -> None:
    priced(pool, "0.5", later=timedelta(hours=1))
    assert api.post("/jobs:preview", {"spec": SPEC}).json()["cost"] is None


def test_hourly_and_maximum_cost_are_exact(api: Api, pool: ResourcePool) -> None:
    priced(pool, "0.000555555556")
    preview = api.post("/jobs:preview", {"spec": SPEC}).json()
    assert preview["devices"] == 4
    assert preview["cost"] == {
        "currency": "EUR",
        "an_hour": "8.0000000064",
        "an_hour_at_least": "4.0000000032",
        "at_most": "16.0000000128",
    }


def test_submit_form_shows_cost(pool: ResourcePool, project: Project, alice: User) -> None:
    priced(pool, "0.001")
    client = Client()
    client.force_login(alice, backend="allauth.account.auth_backends.AuthenticationBackend")
    form = JobForm.showing(JobSpec.model_validate(SPEC)).texts
    sent = urlencode({**form, "target": f"{project.pk}/{pool.pk}", "preview": "1"})
    page = client.post(
        "/jobs/new", sent, content_type="application/x-www-form-urlencoded", secure=True
    ).content.decode()
    told = (
        "Cost: 14.40 EUR per hour with all devices, 7.20 with the minimum to start; 28.80 EUR for the maximum runtime"
    )
    assert told in page
