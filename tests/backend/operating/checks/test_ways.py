"""Ray, store, mail, addresses, disks, work and the site itself: each of their faults is found by name."""

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from backend.accounts.models import User
from backend.api.background_times import note_background
from backend.background_call import CallResult
from backend.clock import database_now
from backend.disks import Room
from backend.environment import Environment
from backend.jobs.models import OutboxMessage
from backend.operating.checks import address, disks, mail, ray, site, store, work
from backend.pools.models import ResourcePool
from backend.pulses import BEAT, CANARY
from backend.store.port import NotStored, StoreUnavailable
from tests.backend.operating.checks.conftest import Answers, faults
from tests.backend.operating.conftest import TOKEN, Broken, Dashboard

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[4]


# ── Ray ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_ray_with_what_the_pools_promise_is_well(with_ray: Environment) -> None:
    ResourcePool.objects.create(name="small", flavor="cpu", capacity=8)
    assert faults(ray.check_ray(with_ray)) == set()


def test_a_pool_that_promises_more_than_ray_has_is_found(with_ray: Environment) -> None:
    """Ten devices of a pool of CPUs share a core, as in placement."""
    ResourcePool.objects.create(name="large", flavor="cpu", capacity=80)
    assert faults(ray.check_ray(with_ray)) == set()
    ResourcePool.objects.create(name="one more", flavor="cpu", capacity=1)
    assert faults(ray.check_ray(with_ray)) == {"ray.too_few_devices"}
    ResourcePool.objects.update(autoscales=True, device="cpu")
    assert faults(ray.check_ray(with_ray)) == set(), "hosts are added when a job needs them"


def test_a_ray_without_devices_is_found(with_ray: Environment, dashboard: Dashboard) -> None:
    dashboard.has_nodes({"memory": 1.0})
    assert faults(ray.check_ray(with_ray)) == {"ray.no_devices"}


def test_ray_without_token_is_found(with_ray: Environment, dashboard: Dashboard) -> None:
    dashboard.token = ""
    assert faults(ray.check_ray(with_ray)) == {"ray.open"}


def test_a_token_that_ray_refuses_or_that_is_not_there_is_found(
    with_ray: Environment, dashboard: Dashboard, broken: Broken, tmp_path: Path
) -> None:
    dashboard.token = "another"
    assert faults(ray.check_ray(with_ray)) == {"ray.refused"}
    assert faults(ray.check_ray(broken(ray_url=dashboard.url, ray_token_file=tmp_path / "none"))) == {"ray.refused"}


def test_unreachable_ray_and_another_server_are_found(
    with_ray: Environment, broken: Broken, answering: Answers
) -> None:
    for url in ("http://127.0.0.1:9", answering(200)):
        strange = broken(ray_url=url, ray_token_file=with_ray.ray_token_file)
        assert faults(ray.check_ray(strange)) == {"ray.unreachable"}


def test_pools_own_ray_is_checked_with_its_token_and_named(
    with_ray: Environment, dashboard: Dashboard, tmp_path: Path
) -> None:
    (tmp_path / "tokens").mkdir()
    site = replace(with_ray, ray_url="http://127.0.0.1:9", ray_tokens_dir=str(tmp_path / "tokens"))
    pool = ResourcePool.objects.create(name="east", flavor="cpu", capacity=8, ray_url=dashboard.url, ray_token="east")
    findings = list(ray.check_ray(site))
    assert faults(findings) == {"ray.refused"} and dashboard.url in findings[0].observation, "its token is missing"
    (tmp_path / "tokens" / "east").write_text(TOKEN)
    assert faults(ray.check_ray(site)) == set(), "the site's own Ray is unused and not needed"
    ResourcePool.objects.create(name="here", flavor="cpu", capacity=8)
    findings = list(ray.check_ray(site))
    assert [each.observation.partition(":")[0] for each in findings if each.fault] == ["the site's own Ray"]
    pool.labels = {"zone": "a"}
    pool.save()
    [short] = [each for each in ray.check_ray(site) if each.fault == "ray.too_few_devices"]
    assert short.observation == "pool east: 0 devices on 0 nodes; 8 are promised"


def test_another_version_of_ray_is_a_warning(with_ray: Environment, dashboard: Dashboard) -> None:
    dashboard.answers["/api/version"] = {"ray_version": "2.48.0"}
    assert faults(ray.check_ray(with_ray)) == {"ray.other_version"}
    assert f"ray=={ray.OURS} " in (ROOT / "infra/locks/engine.txt").read_text()


def test_a_token_that_others_could_read_on_its_way_is_a_warning() -> None:
    assert faults(ray.judge_way("http://ray.example.org:8265")) == {"ray.plain"}
    assert (
        faults(ray.judge_way("https://ray.example.org:8265")) == faults(ray.judge_way("http://ray-head:8265")) == set()
    )


# ── the store ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Careless:
    """A store that accepts everything, and fails at everything else."""

    def __init__(self, *, gives: bytes | Exception, forgets: bool) -> None:
        self._gives, self._forgets, self._kept = gives, forgets, b""

    def put(self, key: str, content: bytes | Path) -> None:
        if isinstance(self._gives, StoreUnavailable):
            raise self._gives
        self._kept = bytes(content) if isinstance(content, bytes) else b""

    def get(self, key: str) -> bytes:
        if isinstance(self._gives, Exception):
            raise self._gives
        return self._gives or self._kept

    def delete(self, key: str) -> None:
        if self._forgets:
            self._gives = NotStored(key)


@pytest.mark.parametrize(
    ("careless", "found"),
    [
        (Careless(gives=b"", forgets=True), set()),
        (Careless(gives=b"another", forgets=True), {"store.reads_not"}),
        (Careless(gives=b"", forgets=False), {"store.deletes_not"}),
        (Careless(gives=StoreUnavailable("503"), forgets=True), {"store.writes_not"}),
    ],
)
def test_faulty_store_is_found(
    careless: Careless, found: set[str], broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "store", lambda: careless)
    assert faults(store.check_store(broken())) == found


def test_the_store_of_the_tests_is_well(broken: Broken) -> None:
    assert faults(store.check_store(broken())) == set()


# ── mail ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def posting(settings: Any, smtp_port: int, broken: Broken) -> Environment:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", smtp_port
    settings.EMAIL_HOST_USER = settings.EMAIL_HOST_PASSWORD = ""
    settings.EMAIL_USE_TLS = settings.EMAIL_USE_SSL = False
    return broken(email_url=f"smtp://127.0.0.1:{smtp_port}", email_from="laminar@example.org")


def test_mail_that_goes_out_is_well_and_a_letter_arrives(posting: Environment) -> None:
    assert faults(mail.check_mail(posting)) == set()
    assert faults(mail.check_mail(posting, send_to="ada@example.org")) == set()


def test_a_mail_server_that_is_away_is_found(posting: Environment, settings: Any) -> None:
    settings.EMAIL_PORT = 9
    assert faults(mail.check_mail(posting)) == {"mail.unreachable"}


def test_a_mail_server_that_refuses_our_name_is_found(posting: Environment, settings: Any) -> None:
    settings.EMAIL_HOST_USER, settings.EMAIL_HOST_PASSWORD = "laminar", "hunter2"
    findings = list(mail.check_mail(posting))
    assert faults(findings) == {"mail.login"} and "hunter2" not in str(findings)


@pytest.mark.parametrize("way", ["EMAIL_USE_TLS", "EMAIL_USE_SSL"])
def test_a_mail_server_without_tls_is_found_where_tls_is_wanted(posting: Environment, settings: Any, way: str) -> None:
    setattr(settings, way, True)
    assert faults(mail.check_mail(posting)) == {"mail.tls"}


def test_letters_that_others_could_read_on_their_way_are_found(posting: Environment, broken: Broken) -> None:
    elsewhere = broken(email_url="smtp://mail.example.org", email_from="laminar@example.org")
    assert faults(mail.check_mail(elsewhere)) == {"mail.plain"}


def test_a_letter_that_is_refused_is_found(posting: Environment) -> None:
    assert faults(mail.check_mail(posting, send_to="nobody@example.org")) == {"mail.refused"}


def test_a_site_without_mail_is_well(broken: Broken) -> None:
    assert faults(mail.check_mail(broken(email_url=""))) == set()


# ── addresses ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_addresses_that_answer_are_well(broken: Broken, answering: Answers) -> None:
    public = answering(200)
    site_of_ours = broken(public_url=public, control_url=answering(401), allowed_hosts=("127.0.0.1",))
    assert faults(address.check_addresses(site_of_ours)) == set()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"public_url": "http://laminar.invalid"}, {"address.plain", "address.elsewhere"}),
        ({"public_url": "https://laminar.invalid"}, {"address.elsewhere", "address.no_proxies"}),
        ({"allowed_hosts": ("other.example.org",)}, {"address.not_allowed"}),
        ({"allowed_hosts": ("*",)}, {"address.any_host"}),
        ({"control_url": "http://127.0.0.1:9"}, {"address.control"}),
    ],
)
def test_each_wrong_address_is_found(
    changes: dict[str, Any], found: set[str], broken: Broken, answering: Answers
) -> None:
    well = {"public_url": answering(200), "control_url": answering(401)}
    names = {"allowed_hosts": ("127.0.0.1", "laminar.invalid")}
    assert faults(address.check_addresses(broken(**(well | names | changes)))) == found


def test_redirecting_or_foreign_control_address_is_found(broken: Broken, answering: Answers) -> None:
    for status, fault in ((301, "address.control_redirects"), (404, "address.control")):
        control = answering(status, "https://elsewhere.example.org/")
        assert fault in faults(address.check_addresses(broken(control_url=control)))


def test_a_proxy_that_hides_that_people_come_by_https_is_found(broken: Broken, answering: Answers) -> None:
    looping = answering(301, "itself")
    assert "address.loops" in faults(address.check_addresses(broken(public_url=looping)))
    assert "address.elsewhere" in faults(address.check_addresses(broken(public_url=answering(301, "https://x"))))


# ── disks, work, the site ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_disk_that_is_full_or_nearly_is_found(
    broken: Broken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for free, fault in ((10**6, "disk.full"), (10**10, "disk.low"), (5 * 10**11, "")):
        room = Room(free_bytes=free, num_bytes=10**12, may_write=True)
        with monkeypatch.context() as here:
            here.setattr(disks, "room_at", lambda folder, room=room: CallResult(last=room))
            names = [finding.fault for finding in disks.check_disks(broken(store_dir=tmp_path, site_dir=tmp_path))]
        assert names[:2] == [fault, fault]
    assert "disk.away" in faults(disks.check_disks(broken(store_dir=tmp_path / "none")))
    assert "disk.away" not in faults(disks.check_disks(broken(store_dir=tmp_path, site_dir=tmp_path)))


def _heard_of(name: str, *, s_ago: float) -> None:
    note_background(name, 0.0)
    with connection.cursor() as db:
        ago = "UPDATE api_backgroundtime SET last_at = clock_timestamp() - %s * interval '1 second' WHERE name = %s"
        db.execute(ago, [s_ago, name])


def test_stalled_work_is_found(broken: Broken) -> None:
    assert faults(work.check_work(broken())) == {"work.beat", "work.worker"}
    _heard_of(BEAT, s_ago=1)
    _heard_of(CANARY, s_ago=1)
    assert faults(work.check_work(broken())) == set()
    _heard_of(CANARY, s_ago=100)
    assert faults(work.check_work(broken())) == {"work.worker"}


def test_undelivered_outbox_is_found(broken: Broken) -> None:
    _heard_of(BEAT, s_ago=1)
    _heard_of(CANARY, s_ago=1)
    now = database_now()
    long_ago = now - timedelta(minutes=10)
    OutboxMessage.objects.create(topic="schedule", key="pool_x", created_at=long_ago, attempts=7, not_before=now)
    assert faults(work.check_work(broken())) == {"work.behind"}


def test_a_backup_that_is_old_or_was_never_taken_is_found(broken: Broken) -> None:
    _heard_of(BEAT, s_ago=1)
    _heard_of(CANARY, s_ago=1)
    someone = User.objects.create_user("ada@example.org")
    assert faults(work.check_work(broken())) == set(), "a new site has none yet"
    User.objects.filter(pk=someone.pk).update(date_joined=database_now() - timedelta(days=3))
    assert faults(work.check_work(broken())) == {"work.backup_old"}
    _heard_of("backup", s_ago=20 * 3600)
    assert faults(work.check_work(broken())) == set()
    _heard_of("backup", s_ago=40 * 3600)
    assert faults(work.check_work(broken())) == {"work.backup_old"}


GOOD_SECRET = os.urandom(32).hex()


def test_site_without_bootstrap_is_found(broken: Broken) -> None:
    names = faults(site.check_site(broken(secret_key=GOOD_SECRET, metrics_token="")))
    assert names == {"site.nobody", "site.no_pool"}


def test_a_site_s_own_faults_are_found(broken: Broken) -> None:
    User.objects.create_superuser("ada@example.org")
    ResourcePool.objects.create(name="small", flavor="cpu", capacity=8)
    bad = broken(secret_key="changeme" * 8, debug=True, metrics_token="abc")
    findings = list(site.check_site(bad))
    assert faults(findings) == {"site.debug", "site.short_secret", "site.no_second_factor"}
    [message] = [finding.observation for finding in findings if finding.fault == "site.short_secret"]
    assert "LAMINAR_SECRET_KEY" in message and "LAMINAR_METRICS_TOKEN" in message and "changeme" not in message
