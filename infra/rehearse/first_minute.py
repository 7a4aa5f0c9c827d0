"""The first minute of an empty site: `bootstrap`, its link, a password, a session, a key; then `doctor`.

All of it by the public address, through the proxy, as a browser does it: that key is whose jobs are run from here on.
"""

import json
import re
import secrets
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from infra.local.home import write_private
from infra.rehearse.container_engine import manage
from infra.rehearse.site import value_of
from infra.rehearse.work import Work, stage
from infra.setup.terminal import Refusal, say

EMAIL = "ada@example.org"
INSIDE = ("/internal/engine/facts", "/metrics", "/healthz", "/readyz")
SCOPES = ["jobs:read", "jobs:write", "checkpoints:read"]


def run(work: Work) -> None:
    if not work.customer.exists():
        with stage("manage.py bootstrap"):
            begun = json.loads(manage(work, "bootstrap", "--email", EMAIL, "--json").splitlines()[-1])
        with stage("its link, a password, a session, a key"):
            key = first_key(work, begun["link"])
        write_private(work.customer, json.dumps({"key": key, "project": begun["project"]}))
    with stage("internal addresses refuse requests from outside"):
        check_closed(work)
    with stage("manage.py doctor"):
        report = manage(work, "doctor")
    for warning in re.findall(r"^ +warning +(.*)$", report, re.MULTILINE):
        say(f"  ({warning})")


def first_key(work: Work, link: str) -> str:
    password = secrets.token_urlsafe(16)
    with visitor(work) as browser:
        _fill_in(browser, link, {"password": password, "again": password})
        _fill_in(browser, "/accounts/login/", {"login": EMAIL, "password": password})
        page = _fill_in(browser, "/keys/", {"name": "rehearsal", "lasts": "30", "scopes": SCOPES})
    [key] = re.findall(r'<code id="secret"[^>]*>([^<]+)</code>', page)
    return str(key)


def check_closed(work: Work) -> None:
    with visitor(work) as stranger:
        open_ = {path: status for path in INSIDE if (status := stranger.get(path).status_code) != 404}
    if open_:
        raise Refusal(f"answered to people, and not by 404: {open_}")


@contextmanager
def visitor(work: Work, headers: Mapping[str, str] | None = None) -> Iterator[httpx.Client]:
    """Somebody who comes by the public address and believes the rehearsal's own authority."""
    believed = ssl.create_default_context(cafile=work.certificate)
    address = value_of(work, "LAMINAR_PUBLIC_URL")
    with httpx.Client(base_url=address, headers=headers, verify=believed, timeout=60, follow_redirects=True) as client:
        yield client


def _fill_in(browser: httpx.Client, address: str, fields: Mapping[str, str | list[str]]) -> str:
    """The page that comes of a form with these fields."""
    form = browser.get(address)
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form.text)
    if form.status_code != 200 or found is None:
        raise Refusal(f"{form.url.path}: answered {form.status_code}, without a form")
    values = {**fields, "csrfmiddlewaretoken": found[1]}
    answer = browser.post(str(form.url), data=values, headers={"Referer": str(form.url)})
    if answer.status_code != 200:
        raise Refusal(f"{form.url.path}, filled in: answered {answer.status_code}")
    return answer.text
