"""The local Ray is reached from this machine only, with the token only, and beside other Rays."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from infra.local.home import PROJECT, Home
from infra.local.processes import belongings, end_belongings
from infra.local.services import Service, Site

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="a ray "))
    home = Home(folder / ".laminar")
    home.prepare()
    site = Site(home=home, ports=home.ports())
    service = next(service for service in site.services() if service.name == "ray")
    try:
        _start(site, service)
        yield site
    finally:
        end_belongings(home, grace_s=5)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(home.alias, ignore_errors=True)


def _start(site: Site, service: Service) -> None:
    service.prepare()
    log_file = site.home.logs / "ray.log"
    with log_file.open("ab") as log:
        subprocess.Popen(service.command(), stdout=log, stderr=log, cwd=PROJECT, env=site.marked(service),
                         start_new_session=True)  # fmt: skip
    deadline = time.monotonic() + service.starts_within_s
    while not service.is_healthy():
        assert time.monotonic() < deadline, log_file.read_text()[-2000:]
        time.sleep(0.2)


def _listening(home: Home) -> set[str]:
    """The addresses on which the home's processes, Ray's own workers included, accept connections."""
    found = set()
    for process in belongings(home):
        with suppress(psutil.Error):
            sockets = process.net_connections(kind="tcp")
            found |= {each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN}
    return found


def _submit(site: Site, token: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.post(f"{site.ray.url}/api/jobs/", json={"entrypoint": "true"}, headers=headers, timeout=60)


def test_it_takes_jobs_with_the_token_and_listens_on_loopback_only(site: Site) -> None:
    deadline = time.monotonic() + 60
    while (answer := _submit(site, site.home.secret("ray"))).status_code != 200:
        assert time.monotonic() < deadline, answer.text[-1000:]
        time.sleep(0.5)
    assert _listening(site.home) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.mark.parametrize("token", ["none", "guessed-but-well-formed-enough-to-be-one"])
def test_it_takes_nothing_without_the_token(site: Site, token: str) -> None:
    assert _submit(site, token).status_code in {401, 403}
