"""Operator pages: changes go through the services, under the displayed version, and are in the audit log."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.test import Client

from backend.accounts.models import Invitation, Membership, Role, Team, User
from backend.accounts.signing_in.chains import SITE
from backend.audit.models import AuditEntry
from backend.jobs.models import JobState
from backend.jobs.queue.scheduling import schedule_pool
from backend.pools.clusters.probes import FAILING_AFTER, RayHost, note_away, note_found
from backend.pools.models import Budget, Maintenance, ResourcePool, TeamQuota
from backend.usage.models import PoolPrice
from tests.frontend.html_reading import text_of, words_of
from tests.frontend.seed import World, submitted

VERSION = re.compile(r'name="version" value="([^"]*)"')


@pytest.fixture
def operator(world: World) -> Client:
    person = User.objects.create_user("olga@example.org", "still-waters-run-deep", is_staff=True)
    client = Client()
    client.force_login(person)
    return client


@pytest.fixture
def pool(world: World) -> ResourcePool:
    return ResourcePool.objects.order_by("pk").first()  # type: ignore[return-value]


def versions(client: Client, pool: ResourcePool) -> list[str]:
    page = client.get(f"/operator/pools/{pool.pk}/").content.decode()
    return [found.replace("&quot;", '"') for found in VERSION.findall(page)]


def told(client: Client, path: str, form: dict[str, Any]) -> str:
    return words_of(client.post(path, form, follow=True))


def actions(team_id: str = SITE) -> list[str]:
    return list(AuditEntry.objects.filter(team_id=team_id).order_by("seq").values_list("action", flat=True))


@pytest.mark.parametrize("path", ["/operator/", "/operator/teams/", "/operator/people/"])
def test_for_others_there_is_no_such_page(world: World, owner: Client, path: str) -> None:
    assert owner.get(path).status_code == 404
    assert Client().get(path)["Location"] == f"/accounts/login/?next={path}"
    assert "Operator" not in text_of(owner.get("/jobs/"))


def test_a_pool_is_made_changed_and_closed(world: World, operator: Client) -> None:
    said = told(operator, "/operator/pools/new", {"name": "big", "flavor": "h100", "capacity": "8", "device_gb": "80"})
    assert "Pool big created" in said
    made = ResourcePool.objects.get(name="big")
    form = {"name": "big", "flavor": "h100", "capacity": "16", "version": versions(operator, made)[0]}
    assert "16 devices and is closed" in told(operator, f"/operator/pools/{made.pk}/change", form)
    made.refresh_from_db()
    assert (made.capacity, made.is_open, made.device_gb) == (16, False, None)
    assert actions() == ["pool.created", "pool.changed"]
    entry = AuditEntry.objects.get(action="pool.changed")
    assert entry.data["before"] == {"capacity": 8, "is_open": True, "device_gb": 80}
    unchanged = form | {"device_gb": "", "version": versions(operator, made)[0]}
    told(operator, f"/operator/pools/{made.pk}/change", unchanged)
    assert actions() == ["pool.created", "pool.changed"], "no change, so no audit entry"


def test_ray_and_labels_change_and_omitted_fields_stay(world: World, operator: Client, pool: ResourcePool) -> None:
    path, form = f"/operator/pools/{pool.pk}/change", {"name": pool.name, "flavor": "h100", "is_open": "yes"}
    form |= {"capacity": str(pool.capacity)}
    of_ray = {"device": "gpu", "labels": "accelerator=H100\n zone = in(a, b) \n", "autoscales": "yes"}
    of_ray |= {"ray_url": "http://10.0.0.7:8265/", "ray_token": "east"}
    told(operator, path, form | of_ray | {"version": versions(operator, pool)[0]})
    pool.refresh_from_db()
    assert pool.labels == {"accelerator": "H100", "zone": "in(a,b)"}
    assert (pool.device, pool.autoscales, pool.ray_url, pool.ray_token) == ("gpu", True, "http://10.0.0.7:8265", "east")
    page = operator.get(f"/operator/pools/{pool.pk}/").content.decode()
    assert 'value="http://10.0.0.7:8265"' in page and "accelerator=H100\nzone=in(a,b)</textarea>" in page
    data = AuditEntry.objects.get(action="pool.changed").data
    assert data["before"]["ray_url"] == "" and data["after"]["labels"] == pool.labels
    told(operator, path, form | {"flavor": "h200", "version": versions(operator, pool)[0]})
    pool.refresh_from_db()
    assert (pool.flavor, pool.ray_url, pool.labels["accelerator"]) == ("h200", "http://10.0.0.7:8265", "H100")


def test_ray_change_is_refused_while_jobs_run_unless_they_move(world: World, operator: Client) -> None:
    job = submitted(world, name="Runs")
    schedule_pool(job.pool_id, now=datetime.now(UTC))
    pool = job.pool
    path, form = f"/operator/pools/{pool.pk}/change", {"name": pool.name, "flavor": pool.flavor, "is_open": "yes"}
    form |= {"capacity": str(pool.capacity), "device": "", "ray_url": "http://ray.example.org:8265"}
    said = told(operator, path, form | {"version": versions(operator, pool)[0]})
    assert "Ray address: jobs hold" in said and ResourcePool.objects.get(pk=pool.pk).ray_url == ""
    told(operator, path, form | {"moves_running_jobs": "yes", "version": versions(operator, pool)[0]})
    assert ResourcePool.objects.get(pk=pool.pk).ray_url == "http://ray.example.org:8265"


def test_hosts_are_shown_as_of_the_last_probe(world: World, operator: Client, pool: ResourcePool) -> None:
    assert "Hosts not checked yet" in text_of(operator.get(f"/operator/pools/{pool.pk}/"))
    now = datetime.now(UTC)
    box = RayHost(id="a", name="10.0.0.7", labels={"zone": "a"}, cpus=float(pool.capacity) + 1, gpus=0)
    note_found([pool], [box], now=now)
    page = text_of(operator.get(f"/operator/pools/{pool.pk}/"))
    assert "10.0.0.7" in page and "zone=a" in page
    note_away([pool], "ConnectError: refused", now=now - FAILING_AFTER)
    note_away([pool], "ConnectError: refused", now=now)
    page = text_of(operator.get(f"/operator/pools/{pool.pk}/"))
    assert "Ray does not respond: ConnectError: refused" in page and "10.0.0.7" in page


def test_a_host_is_taken_out_and_given_back_and_a_job_makes_way(world: World, operator: Client) -> None:
    job = submitted(world, name="Runs")
    pool, now = job.pool, datetime.now(UTC)
    schedule_pool(pool.pk, now=now)
    note_found([pool], [RayHost(id="a", name="box-7", labels={}, cpus=float(pool.capacity), gpus=0)], now=now)
    path = f"/operator/pools/{pool.pk}/hosts"
    said = told(operator, path, {"act": "drain", "host": "box-7", "reason": "a fan"})
    assert "box-7 is draining" in said and "a fan" in said and "are draining" in said
    assert "had no host of this name" in told(operator, path, {"act": "drain", "host": "box-8"})
    assert "Choose an action" in told(operator, path, {"act": "burn", "host": "box-7"})
    assert "returns to its old queue position" in told(operator, f"/operator/pools/{pool.pk}/jobs/{job.pk}/back", {})
    assert "cannot be sent back" in told(operator, f"/operator/pools/{pool.pk}/jobs/{job.pk}/back", {})
    note_found([pool], [], now=now)
    assert ", and gone" in text_of(operator.get(f"/operator/pools/{pool.pk}/"))
    said = told(operator, path, {"act": "give_back", "host": "box-7"})
    assert "box-7 is back in the pool" in said and ", and gone" not in said


def test_of_two_operators_who_save_at_once_the_second_is_told(
    world: World, operator: Client, pool: ResourcePool
) -> None:
    seen = versions(operator, pool)[0]
    form = {"name": pool.name, "flavor": pool.flavor, "is_open": "yes", "version": seen}
    told(operator, f"/operator/pools/{pool.pk}/change", form | {"capacity": str(pool.capacity + 1)})
    said = told(operator, f"/operator/pools/{pool.pk}/change", form | {"capacity": str(pool.capacity + 2)})
    assert "This has changed since you read it" in said
    assert "This has changed since you read it" in told(
        operator, f"/operator/pools/{pool.pk}/quota", {"team": world.team.pk, "nominal": "1", "version": seen}
    )
    without = told(operator, f"/operator/pools/{pool.pk}/change", form | {"capacity": "99", "version": ""})
    assert "This has changed since you read it" in without, "a form that saw nothing overwrites nothing"
    assert ResourcePool.objects.get(pk=pool.pk).capacity == pool.capacity + 1


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"capacity": "0"}, "quotas promise"),
        ({"capacity": "-1"}, "enter a whole number"),
        ({"capacity": "2000000"}, "Devices: must be at most 1,000,000; got 2000000"),
        ({"capacity": ""}, "enter a whole number"),
        ({"name": ""}, "Name: 1 to 80 characters; got 0"),
        ({"name": "x" * 81}, "Name: 1 to 80 characters; got 81"),
        ({"flavor": ""}, "Kind of device: 1 to 40 characters; got 0"),
        ({"device_gb": "0"}, "Memory per device, GB: must be at least 1; got 0"),
        ({"device": "tpu"}, "Devices of its jobs: must be one of 'gpu' or 'cpu'; got tpu"),
        ({"device": "", "labels": "H100"}, "Host labels: one per line, such as accelerator=H100; got H100"),
        ({"device": "", "labels": "zone=a\nzone=b"}, "one per line"),
        ({"device": "", "labels": "zone=in("}, "Host labels: zone: must be a value"),
        ({"device": "", "ray_url": "http://me:secret@ray"}, "Ray address: must be the address"),
        ({"device": "gpu", "ray_url": "http://ray:8265", "ray_token": "../x"}, "Ray token file: must be the name"),
        ({"device": "", "autoscales": "yes"}, "Autoscales needs device"),
    ],
)
def test_a_wrong_pool_is_refused_with_what_would_be_right(
    world: World, operator: Client, pool: ResourcePool, typed: dict[str, str], said: str
) -> None:
    form = {"name": pool.name, "flavor": pool.flavor, "capacity": str(pool.capacity), "is_open": "yes"}
    form |= {"version": versions(operator, pool)[0]} | typed
    assert said in told(operator, f"/operator/pools/{pool.pk}/change", form)
    assert actions() == []


def test_quotas_fit_the_pool_and_are_changed_in_a_row(world: World, operator: Client, pool: ResourcePool) -> None:
    path = f"/operator/pools/{pool.pk}/quota"
    form = {"team": world.team.pk, "nominal": "1", "borrow_limit": "2", "lend_limit": "", "weight": "2"}
    assert "is 1" in told(operator, path, form | {"version": versions(operator, pool)[1]})
    row = TeamQuota.objects.get(pool=pool, team=world.team)
    assert (row.nominal, row.borrow_limit, row.lend_limit, row.weight) == (1, 2, None, 2.0)
    over = form | {"nominal": str(pool.capacity + 1), "version": versions(operator, pool)[1]}
    assert "ust be at most" in told(operator, path, over)
    assert "above 0" in told(operator, path, form | {"weight": "0", "version": versions(operator, pool)[1]})
    assert "quota.changed" in actions(world.team.pk)


def test_prices_are_set_per_hour_shown_per_second_and_withdrawn(
    world: World, operator: Client, owner: Client, pool: ResourcePool
) -> None:
    path, next_year = f"/operator/pools/{pool.pk}/prices", datetime.now(UTC).year + 1
    form = {"price": "2", "per": "hour", "currency": "eur", "version": '"0-0"'}
    assert "costs 0.000555555556 EUR" in told(operator, path, form)
    price = PoolPrice.objects.get()
    assert price.per_device_second == Decimal("0.000555555556")
    assert "This has changed since you read it" in told(operator, path, form), "the second operator gets an error"
    ahead = form | {"version": f'"1-{price.pk}"', "price": "3", "valid_from": f"{next_year}-01-01T00:00"}
    told(operator, path, ahead)
    later = PoolPrice.objects.exclude(pk=price.pk).get()
    assert later.valid_from == datetime(next_year, 1, 1, tzinfo=UTC)
    page = text_of(operator.get(f"/operator/pools/{pool.pk}/"))
    assert "2.00" in page and "not yet" in page
    assert "It had not taken effect" in told(operator, f"{path}/{later.pk}/withdraw", {"version": f'"2-{later.pk}"'})
    assert PoolPrice.objects.count() == 1
    wrong = {"version": f'"1-{price.pk}"', "per": "hour", "currency": "EUR"}
    assert "or later, within" in told(operator, path, wrong | {"price": "1", "valid_from": "2020-01-01T00:00"})
    assert "enter a number such as 2.50" in told(operator, path, wrong | {"price": "dear"})
    assert "is ambiguous" in told(operator, path, wrong | {"price": "2,500"}), "neither 2500 nor 2.5"
    assert "EUR" in text_of(owner.get("/usage/"))


def test_maintenance_is_announced_changed_and_ended(world: World, operator: Client, owner: Client) -> None:
    year = datetime.now(UTC).year + 1
    form = {"text": "New disks", "begins_at": f"{year}-02-01T14:00", "ends_at": f"{year}-02-01T16:00"}
    path = "/operator/maintenance/"
    said = told(operator, path + "new", form | {"stops_from": f"{year}-02-01T13:30"})
    assert f"Maintenance announced to all users until {year}-02-01 16:00 UTC" in said
    assert f'value="{year}-02-01T13:30"' in said, "as it was typed"
    notice = Maintenance.objects.get()
    assert notice.begins_at == datetime(year, 2, 1, 14, tzinfo=UTC)
    change = f"{path}{notice.pk}/change"
    assert "enter a date and time in UTC" in told(operator, path + "new", form | {"ends_at": "soon"})
    assert "This has changed" in told(operator, change, form | {"act": "change", "version": '"7"'})
    longer = form | {"act": "change", "ends_at": f"{year}-02-01T18:00"}
    assert "Announcement saved" in told(operator, change, longer | {"version": '"1"'})
    assert "Maintenance ended" in told(operator, change, {"act": "end", "version": '"2"'})
    assert operator.post(change, {"act": "end", "version": '"3"'}).status_code == 404
    assert actions() == ["maintenance.announced", "maintenance.changed", "maintenance.ended"]


def test_the_order_of_the_line_is_an_operators_to_change(world: World, operator: Client, pool: ResourcePool) -> None:
    job = submitted(world, name="Big one", rollout={"replicas": 63})
    assert job.state == JobState.QUEUED
    path = f"/operator/pools/{job.pool_id}/jobs/{job.pk}/priority"
    assert "waits with priority 7" in told(operator, path, {"priority": "7", "version": f'"{job.version}"'})
    assert "has changed" in told(operator, path, {"priority": "8", "version": f'"{job.version}"'})
    assert "from -100 to 100" in told(operator, path, {"priority": "101", "version": "*"})
    job.refresh_from_db()
    assert job.priority == 7 and "job.change" in actions(job.team_id)


def test_a_second_team_is_made_and_its_owner_comes_by_the_link(world: World, operator: Client) -> None:
    page = operator.post("/operator/teams/", {"name": "Bees", "owner": "Ida@example.org"})
    (link,) = re.findall(r"http\S+?/invitations/[\w-]+", page.content.decode())
    assert "no-store" in page["Cache-Control"]
    team = Team.objects.get(name="Bees")
    assert not Membership.objects.filter(team=team).exists() and team.projects.count() == 1
    assert Invitation.objects.get(team=team).role == Role.OWNER
    stranger = Client()
    password = "the-hive-is-full-of-honey"
    stranger.post(link[link.index("/invitations") :], {"password": password, "again": password})
    assert Membership.objects.get(team=team).role == Role.OWNER
    assert actions(team.pk)[:2] == ["team.created", "member.invited"]
    again = operator.post("/operator/teams/", {"name": "bees", "owner": "ida@example.org"})
    assert again.status_code == 409 and "already" in text_of(again)
    wrong = operator.post("/operator/teams/", {"name": "", "owner": "nobody"})
    assert wrong.status_code == 422 and "Use 1 to" in text_of(wrong) and "email address" in text_of(wrong)


def test_a_team_s_budget_is_set_and_taken_away(world: World, operator: Client) -> None:
    path = f"/operator/teams/{world.team.pk}/budget"
    assert "100 GPU-hours per month" in told(operator, path, {"hours": "100", "version": '"0"'})
    assert Budget.objects.get(team=world.team).gpu_seconds == 360_000
    assert "This has changed" in told(operator, path, {"hours": "7", "version": '"0"'})
    assert "enter a whole number" in told(operator, path, {"hours": "1.5", "version": '"1"'})
    assert "Budget of" in told(operator, path, {"hours": "", "version": '"1"'})
    assert not Budget.objects.filter(team=world.team).exists()


def test_an_account_is_closed_and_opened_again(world: World, operator: Client, owner: Client) -> None:
    path = f"/operator/people/{world.owner.public_id}/change"
    assert owner.get("/jobs/").status_code == 200
    assert "is closed" in told(operator, path, {"act": "close"})
    assert owner.get("/jobs/")["Location"].startswith("/accounts/login/")
    assert "is open again" in told(operator, path, {"act": "open"})
    assert User.objects.get(pk=world.owner.pk).is_active
    refusal_text = [action for action in actions(world.team.pk) if action.startswith("account.")]
    assert refusal_text == ["account.closed", "account.opened"]
    me = User.objects.get(email="olga@example.org")
    assert "close your own account" in told(operator, f"/operator/people/{me.public_id}/change", {"act": "close"})


def test_identity_is_disconnected(world: World, operator: Client, owner: Client) -> None:
    path = f"/operator/people/{world.owner.public_id}/change"
    assert owner.get("/jobs/").status_code == 200
    assert "Disconnect identity" not in operator.get("/operator/people/").content.decode()
    SocialAccount.objects.create(user=world.owner, provider="sso", uid="1")
    assert "Disconnect identity" in operator.get("/operator/people/").content.decode()
    assert "is disconnected" in told(operator, path, {"act": "disconnect"})
    assert owner.get("/jobs/")["Location"].startswith("/accounts/login/")
    assert "account.identity_disconnected" in actions(world.team.pk)
    assert not SocialAccount.objects.exists()


def test_password_link_is_shown_once_and_not_for_operators(world: World, operator: Client) -> None:
    page = operator.post(f"/operator/people/{world.owner.public_id}/reset", follow=True)
    (link,) = set(re.findall(r"/accounts/password/reset/[\w-]+/", page.content.decode()))
    assert link not in operator.get("/operator/people/").content.decode()
    assert AuditEntry.objects.filter(action="password.reset_asked", actor__startswith="user:").exists()
    other = User.objects.create_user("oskar@example.org", "still-waters-run-deep", is_staff=True)
    refused = operator.post(f"/operator/people/{other.public_id}/reset")
    assert refused.status_code == 409 and "/accounts/password/reset/" not in refused.content.decode()
