"""The local Ray is reached from this machine only, with the token only, and runs next to other Rays. The control
plane's launcher starts, sees and stops jobs on it."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
from django.conf import settings

from backend.jobs.attempts.launcher import RayLauncher, SubmissionStatus
from backend.operating.checks.nodes import check_nodes
from backend.operating.ray_cluster import accepts_unauthenticated, dashboard_of, devices_of
from backend.pools.clusters.addresses import RayAddress
from backend.pools.clusters.dashboard import RayRefused
from engine.node import sandbox_here
from engine.spec.control import AttemptOrder
from engine.spec.environments.sandbox import SANDBOX_LABEL
from engine.spec.job import JobSpec
from infra.local.home import PROJECT, Home
from infra.local.ports import PortClaims
from infra.local.processes import belongings, end_belongings
from infra.local.services.site import Service, Site
from tests.waiting import eventually

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="a ray "))
    home = Home(folder / ".laminar")
    home.prepare()
    claims = PortClaims(home)
    site = Site(home=home, ports=claims.numbers)
    service = next(service for service in site.services() if service.name == "ray")
    try:
        _start(site, service)
        yield site
    finally:
        end_belongings(home, grace_s=5)
        shutil.rmtree(folder, ignore_errors=True)
        home.forget_alias()
        claims.close()


def _start(site: Site, service: Service) -> None:
    service.prepare()
    log_file = site.home.logs / "ray.log"
    with log_file.open("ab") as log:
        environment = site.marked(service) | {"LAMINAR_RAY_PYTHON": sys.executable}
        subprocess.Popen(service.command(), stdout=log, stderr=log, cwd=PROJECT, env=environment,
                         start_new_session=True)  # fmt: skip
    eventually(
        service.is_healthy, "Ray is healthy", within_s=service.starts_within_s, every_s=0.2,
        log=lambda: log_file.read_text()[-2000:],
    )  # fmt: skip


def _listening(home: Home) -> set[str]:
    """The addresses on which the home's processes, Ray's own workers included, accept connections."""
    addresses = set()
    for process in belongings(home):
        with suppress(psutil.Error):
            sockets = process.net_connections(kind="tcp")
            addresses |= {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN}
    return addresses


def _submit(site: Site, token: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.post(f"{site.ray.url}/api/jobs/", json={"entrypoint": "true"}, headers=headers, timeout=60)


@pytest.mark.long
def test_local_ray_needs_the_token_and_listens_on_loopback(site: Site) -> None:
    def submission() -> tuple[int, str]:
        response = _submit(site, site.home.secret("ray"))
        return response.status_code, response.text[-1000:]

    what = "Ray takes a job with the token"
    eventually(submission, what, until=lambda response: response[0] == 200, within_s=300, every_s=0.5)
    assert _listening(site.home) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.mark.long
def test_its_node_says_whether_the_sandbox_starts_there(site: Site) -> None:
    headers = {"Authorization": f"Bearer {site.home.secret('ray')}"}
    answer = httpx.get(f"{site.ray.url}/api/v0/nodes", headers=headers, timeout=30)
    [node] = answer.json()["data"]["result"]["result"]
    assert node["labels"][SANDBOX_LABEL] == sandbox_here()


@pytest.mark.long
@pytest.mark.parametrize("token", ["none", "guessed-but-well-formed-enough-to-be-one"])
def test_it_takes_nothing_without_the_token(site: Site, token: str) -> None:
    assert _submit(site, token).status_code in {401, 403}


ORDER = AttemptOrder(
    job="job_launcher", attempt=1, fence=1, spec=JobSpec(name="Sums"), control_url="http://127.0.0.1:1",
    token="lam_run_secret",
)  # fmt: skip


def _launcher(site: Site, entrypoint: str) -> RayLauncher:
    return RayLauncher(site.ray.url, site.home.secret("ray"), entrypoint=entrypoint)


def _settled(launcher: RayLauncher, submission: str) -> SubmissionStatus:
    return eventually(
        lambda: launcher.status(submission), f"{submission} ends", until=lambda status: not status.is_live,
        within_s=300, every_s=0.2,
    )  # fmt: skip


@pytest.mark.long
def test_the_order_arrives_as_a_file_and_our_interpreter_runs(site: Site) -> None:
    script = "import sys, engine.spec.control as c; print(sys.executable, c.AttemptOrder.model_validate_json"
    script += "(open('order.json').read()).token)"
    launcher = _launcher(site, f'exec "${{LAMINAR_RAY_PYTHON:-python}}" -c "{script}"')
    launcher.launch(ORDER, "job_arrives-1-1")
    assert _settled(launcher, "job_arrives-1-1") is SubmissionStatus.SUCCEEDED
    assert f"{sys.executable} lam_run_secret" in launcher.log_tail("job_arrives-1-1", 2_000)
    headers = {"Authorization": f"Bearer {site.home.secret('ray')}"}
    assert "lam_run_secret" not in httpx.get(f"{site.ray.url}/api/jobs/", headers=headers).text


@pytest.mark.long
def test_launching_twice_starts_once(site: Site, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    launcher = _launcher(site, f"echo run >> {trace}; sleep 2")
    for _ in range(3):
        launcher.launch(ORDER, "job_twice-1-1")
    assert _settled(launcher, "job_twice-1-1") is SubmissionStatus.SUCCEEDED
    launcher.launch(ORDER, "job_twice-1-1")
    assert trace.read_text() == "run\n"


@pytest.mark.long
def test_stop_ends_what_runs_and_leaves_the_rest_alone(site: Site) -> None:
    launcher = _launcher(site, "sleep 600")
    launcher.launch(ORDER, "job_stop-1-1")
    assert "job_stop-1-1" in launcher.live_submissions()
    eventually(
        lambda: launcher.status("job_stop-1-1"), "the job runs",
        until=lambda status: status is not SubmissionStatus.PENDING, within_s=300, every_s=0.2,
    )  # fmt: skip
    launcher.stop("job_stop-1-1")
    assert _settled(launcher, "job_stop-1-1") is SubmissionStatus.STOPPED
    assert "job_stop-1-1" not in launcher.live_submissions()
    launcher.stop("job_stop-1-1")
    launcher.stop("job_never-1-1")


@pytest.mark.long
def test_a_driver_that_fails_is_seen_with_its_last_words(site: Site) -> None:
    launcher = _launcher(site, "echo out of luck; exit 3")
    launcher.launch(ORDER, "job_fails-1-1")
    assert _settled(launcher, "job_fails-1-1") is SubmissionStatus.FAILED
    assert "out of luck" in launcher.log_tail("job_fails-1-1", 2_000)
    assert len(launcher.log_tail("job_fails-1-1", 5)) == 5


@pytest.mark.long
def test_an_unknown_id_is_missing(site: Site) -> None:
    launcher = _launcher(site, "true")
    assert launcher.status("job_unknown-1-1") is SubmissionStatus.MISSING
    assert launcher.log_tail("job_unknown-1-1", 10) == ""


@pytest.mark.long
def test_a_wrong_token_is_refused_and_not_worth_retrying(site: Site) -> None:
    launcher = RayLauncher(site.ray.url, "wrong")
    with pytest.raises(RayRefused) as refusal:
        launcher.status("job_x-1-1")
    assert not refusal.value.retryable
    with pytest.raises(RayRefused):
        launcher.launch(ORDER, "job_x-1-1")


@pytest.mark.long
@pytest.mark.django_db
def test_doctor_sees_rays_version_devices_and_nodes(site: Site) -> None:
    """Nothing listens where its drivers would report, and that alone is found, if this machine has a sandbox."""
    ours = replace(
        settings.ENVIRONMENT, ray_url=site.ray.url, ray_token_file=site.ray.token_file, store_dir=site.home.store,
        control_url="http://127.0.0.1:9",
    )  # fmt: skip
    ray = dashboard_of(RayAddress(), ours)
    assert f"ray=={ray.version()} " in (PROJECT / "infra/locks/engine.txt").read_text()
    assert devices_of(ray.hosts()) == (8, "cpu") and not accepts_unauthenticated(site.ray.url)
    findings = list(check_nodes(ours))
    assert {finding.fault for finding in findings} - {"nodes.sandbox"} == {"nodes.control"}, findings
    assert not list((site.home.store / "jobs").glob("doctor-*"))
    headers = {"Authorization": f"Bearer {site.home.secret('ray')}"}
    listed = httpx.get(f"{site.ray.url}/api/jobs/", headers=headers, timeout=60).json()
    assert not [row for row in listed if str(row["submission_id"]).startswith("doctor-")]
