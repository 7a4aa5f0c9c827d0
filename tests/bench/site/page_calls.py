"""Calls of every page with input that no user would type: parts of addresses, queries, forms, headers and cookies, as
each role and anonymously. No 5xx, no traceback, no path of this machine.

    python -m infra.local.testing -- python -m tests.bench.site.page_calls --calls 10000

In this process, without a network: the middleware, views and templates are the real ones over a real Postgres, and each
call is rolled back, so that one team lasts for all of them. `tests/backend/test_page_calls.py` runs a tenth.
"""

import argparse
import copy
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from tests.bench.site import hostile
from tests.bench.site.schema_world import NOBODY

ROOT: Final = Path(__file__).resolve().parents[3]
_ASKED: Final = re.compile(r"""(?:GET|POST|posted|sent|asked)\.get(?:list)?\(\s*"(\w+)\"""")
METHODS: Final = ("GET", "GET", "GET", "POST", "POST", "HEAD", "PUT", "OPTIONS")
TYPES: Final = (
    "application/x-www-form-urlencoded", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
    "multipart/form-data", "application/json", "text/plain; charset=nonsense", "",
)  # fmt: skip
RAW_PARTS: Final = ("%00", "%ED%A0%80", "%FF", "a%00b", "%E2%80%AE", "%2e%2e", "%", "%zz", "a%0d%0ab")
COOKIES: Final = ("sessionid", "csrftoken", "messages", "theme", "x")
HEADERS: Final = ("X-Request-Id", "X-Forwarded-For", "Accept-Language", "Accept", "Referer", "Range", "If-None-Match")


@dataclass(slots=True)
class Found:
    calls: int = 0
    by_status: Counter[int] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Address:
    route: str
    names: tuple[str, ...]


def addresses() -> list[Address]:
    """Of every page: ours, allauth's, the admin's, downloads; the API has a fuzzer of its own."""
    from django.urls import URLPattern, get_resolver

    def below(resolver: Any, prefix: str) -> Iterator[Address]:
        for each in resolver.url_patterns:
            route = prefix + str(each.pattern)
            if route.startswith(("api/", "internal/", "readyz")):  # 503 is what it is for
                continue
            if isinstance(each, URLPattern):
                names = tuple(re.findall(r"<(?:\w+:)?(\w+)>", route))
                yield Address(re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", route.replace("^", "").replace("$", "")), names)
            else:
                yield from below(each, route)

    return list(below(get_resolver(), ""))


def names_asked_for() -> tuple[str, ...]:
    """Of queries and forms, by the source of the pages; forms of allauth and of a job's spec have others."""
    found = {name for path in (ROOT / "backend/pages").rglob("*.py") for name in _ASKED.findall(path.read_text())}
    return (*sorted(found), "login", "password", "next", "code", "training.steps", "name", "q", "page", "check", "part")


class Pages:
    """One team with one of everything, and a client of each role's."""

    def __init__(self, rng: random.Random) -> None:
        from datetime import UTC, datetime

        from django.test import Client

        from tests.backend.tenant_world import make_world

        self._rng = rng
        self._addresses, self._asked = addresses(), names_asked_for()
        world = make_world(datetime.now(UTC), label=f"-{rng.getrandbits(64):x}")
        self._ids: Mapping[str, str] = world.ids
        self._clients = {NOBODY: Client(raise_request_exception=False)}
        for role, person in world.people.items():
            self._clients[role] = Client(raise_request_exception=False)
            self._clients[role].force_login(person, backend="allauth.account.auth_backends.AuthenticationBackend")
        self.found = Found()

    def call(self) -> None:
        from django.db import connection, transaction

        role, method, path = self._rng.choice(list(self._clients)), self._rng.choice(METHODS), self._path()
        client = self._clients[role]
        cookies = copy.deepcopy(client.cookies)
        kind, body = self._form() if method in {"POST", "PUT"} else ("", b"")
        with transaction.atomic():
            answer: Any = client.generic(method, path, body, content_type=kind, headers=self._headers(cookies))
            content = b"" if answer.streaming else answer.content
            if not connection.needs_rollback:
                transaction.set_rollback(True)
        client.cookies = cookies
        self._judge(f"{method} {path[:300]} as {role}, {kind} {body[:300]!r}", answer.status_code, content)

    def _judge(self, told: str, status: int, content: bytes) -> None:
        self.found.calls += 1
        self.found.by_status[status] += 1
        wrong = f"{status}" if status >= 500 else ""
        for leak in (b"Traceback (most", str(ROOT).encode(), b"psycopg"):
            wrong = wrong or (f"tells {leak!r}" if leak in content else "")
        if wrong:
            kind = f"{wrong}: {re.sub('[^ ]*[0-9%][^ ]*', '…', told)[:60]}"
            self.found.failures.setdefault(kind, told)

    def _path(self) -> str:
        address = self._rng.choice(self._addresses)
        parts = {name: self._part(name) for name in address.names}
        path = "/" + re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], address.route)
        path = re.sub(r"\(\?P<\w+>[^)]*\)", lambda _: self._part(""), path).replace("\\", "")
        asked = [(self._name(), self._word()) for _ in range(self._rng.choice((0, 1, 1, 2, 3)))]
        return path + (f"?{urlencode(asked, errors='replace')}" if asked else "")

    def _part(self, name: str) -> str:
        if name in self._ids and self._rng.random() < 0.6:
            return self._ids[name]
        if self._rng.random() < 0.5:
            return self._rng.choice(RAW_PARTS)
        return quote(hostile.word(self._rng)[:200], safe="", errors="replace") or "x"

    def _name(self) -> str:
        return self._rng.choice(self._asked) if self._rng.random() < 0.9 else hostile.word(self._rng)[:50]

    def _word(self) -> str:
        return self._rng.choice(list(self._ids.values())) if self._rng.random() < 0.3 else hostile.word(self._rng)

    def _form(self) -> tuple[str, bytes]:
        kind = self._rng.choice(TYPES)
        fields = [(self._name(), self._word()) for _ in range(self._rng.randrange(8))]
        if kind.startswith("multipart") and "boundary" in kind:
            parts = [f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in fields]
            return kind, ("".join(parts) + "--x--\r\n").encode(errors="replace")
        return kind, urlencode(fields, errors="replace").encode()

    def _headers(self, cookies: Any) -> dict[str, str]:
        headers = {}
        if self._rng.random() < 0.3:
            headers[self._rng.choice(HEADERS)] = self._word()[:500].replace("\r", "").replace("\n", "")
        if self._rng.random() < 0.2:
            mine = "; ".join(f"{name}={morsel.value}" for name, morsel in cookies.items())
            octal = "".join(f"\\{ord(each):03o}" if ord(each) < 256 else each for each in self._word()[:50])
            headers["Cookie"] = f'{mine}; {self._rng.choice(COOKIES)}="{octal}"'
        # As a server hands bytes on: each is a letter of Latin-1.
        return {name: text.encode(errors="replace").decode("latin-1") for name, text in headers.items()}


def call_pages(num_calls: int, *, seed: int) -> Found:
    pages = Pages(random.Random(seed))
    for _ in range(num_calls):
        pages.call()
    return pages.found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    os.environ["LAMINAR_RATE_SCALE"] = "100000"
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "backend.settings")
    import django
    from django.core.management import call_command
    from django.test.utils import setup_test_environment

    django.setup()
    setup_test_environment()
    call_command("migrate", verbosity=0)
    began = time.monotonic()
    found = call_pages(options.calls, seed=options.seed)
    seconds = time.monotonic() - began
    print(f"{found.calls} calls in {seconds:.0f} s ({found.calls / seconds:.0f} a second)")
    print("  ".join(f"{status}: {number}" for status, number in sorted(found.by_status.items())))
    for kind, told in found.failures.items():
        print(f"\n{kind}\n{told}")
    print(f"{len(found.failures)} kinds of failure")
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
