"""Calls of every operation of the OpenAPI document with what it allows and what it forbids, as each role and
anonymously: no 5xx, no status, content type or body that the document does not declare.

    python -m infra.local.testing -- python -m tests.bench.site.schema_calls --calls 50000

Real uvicorns over a throw-away Postgres; `tests/backend/test_schemathesis.py` runs a few calls of the same.
"""

import argparse
import copy
import json
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count, product
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.bench.site import hostile
from tests.bench.site.schema_world import Owned, api_document, new_team
from tests.uvicorn_server import run_uvicorn

ENDLESS = {"/api/v1/events", "/api/v1/jobs/{job_id}/logs/stream"}
"""Streams that do not end by themselves: tests/backend/feeds/test_sse.py and test_log_stream.py listen to them."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
AnyCase = Case[Any]
PATIENCE_S = 30
HOSTILE_BODIES = (
    b"", b"null", b"[]", b"\x00", b'{"a":"\\u0000"}', b'{"a":"\\ud800"}', b"\xff\xfe", b'{"a":1e999}', b"[" * 5_000,
    b'{"a":' * 40 + b"1" + b"}" * 40, b'{"a":' + b"9" * 6_000 + b"}", b'{"a":NaN}', b'{"a":1,"a":2}',
)  # fmt: skip
"""Sent to every operation that takes a body, whatever its schema: each must be an answer below 500."""


@dataclass(slots=True)
class Tally:
    calls: int = 0
    by_status: Counter[int] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    """The first of each kind: operation and what was wrong, with how it was called."""

    def fail(self, kind: str, told: str) -> None:
        self.failures.setdefault(kind, told[:2_000])

    def add(self, found: "Tally") -> None:
        self.calls += found.calls
        self.by_status.update(found.by_status)
        for kind, told in found.failures.items():
            self.fail(kind, told)


def operations(document: Mapping[str, Any]) -> list[APIOperation[Any, Any, Any, Any]]:
    """Without the security scheme, or schemathesis would write its own Authorization header over ours."""
    bare = _with_loose_tuples(copy.deepcopy(dict(document)))
    bare["components"].pop("securitySchemes", None)
    for path in ENDLESS:
        bare["paths"].pop(path, None)
    for methods in bare["paths"].values():
        for operation in methods.values():
            operation.pop("security", None)
    schema = schemathesis.openapi.from_dict(bare)
    return [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]


def _with_loose_tuples(schema: Any) -> Any:
    """Schemathesis 4.32 spells the tuples of answers as draft 4 does, and then refuses its own spelling."""
    if isinstance(schema, list):
        return [_with_loose_tuples(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    loose = {name: _with_loose_tuples(one) for name, one in schema.items() if name != "prefixItems"}
    if "prefixItems" in schema:
        loose["items"] = {"anyOf": schema["prefixItems"]}
    return loose


def call_everything(
    document: Mapping[str, Any],
    base_url: str,
    *,
    roles: Sequence[str] | None = None,
    examples: int,
    start: int = 0,
    until: int | None = None,
    session: requests.Session | None = None,
    only_team: Owned | None = None,
) -> Tally:
    """`examples` of what is allowed, and as many of what is not, for each operation and role (`roles`, or all);
    half of the calls name things that exist, and half hold one hostile value. `only_team`: where a `session` forgets
    what every call did, one team lasts for all of them."""
    caller = Caller(base_url=base_url, rng=random.Random(start), session=session or requests.Session())
    for operation in operations(document):
        if until is not None and caller.tally.calls >= until:
            break
        owned = only_team or new_team()
        asked = [role for role in owned.keys if roles is None or role in roles]
        caller.rng.shuffle(asked)  # the role that may delete it is not always first
        modes = list(GenerationMode) if _can_be_wrong(operation) else [GenerationMode.POSITIVE]
        for role, mode in product(asked, modes):
            caller.call_often(operation, owned, role, mode, examples, start)
    return caller.tally


def _can_be_wrong(operation: APIOperation[Any, Any, Any, Any]) -> bool:
    """Any string will do in a path. Hypothesis would look hundreds of times for one that will not."""
    return bool(operation.body) or any(
        each.location != "path"
        or set(each.definition["schema"]) - {"title", "type"}
        or each.definition["schema"]["type"] != "string"
        for each in operation.iter_parameters()
    )


@dataclass(slots=True)
class Caller:
    base_url: str
    rng: random.Random
    session: requests.Session = field(default_factory=requests.Session)
    tally: Tally = field(default_factory=Tally)

    def call_often(
        self, operation: APIOperation[Any, Any, Any, Any], owned: Owned, role: str, mode: GenerationMode, examples: int,
        start: int,
    ) -> None:  # fmt: skip
        @seed(start)
        @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(case=operation.as_strategy(generation_mode=mode))
        def one(case: AnyCase) -> None:
            self.call(case, owned, role)

        with suppress(Unsatisfiable):  # what takes nothing cannot be called wrongly
            one()

    def call(self, case: AnyCase, owned: Owned, role: str) -> None:
        for name in case.path_parameters or {}:
            if name in owned.ids and self.rng.random() < 0.5:
                case.path_parameters[name] = owned.ids[name]
        if self.rng.random() < 0.5:
            self._poison(case)
        key = owned.keys[role]
        label, headers = f"{case.operation.label} as {role}", {"Authorization": f"Bearer {key}"} if key else {}
        self.tally.calls += 1
        try:
            answer = case.call(self.base_url, self.session, headers, timeout=PATIENCE_S)
            self.tally.by_status[answer.status_code] += 1
            case.validate_response(answer, checks=CHECKS)
        except (FailureGroup, Failure) as failure:
            for one in failure.exceptions if isinstance(failure, FailureGroup) else [failure]:
                self.tally.fail(f"{label}: {type(one).__name__} {getattr(one, 'status_code', '')}", str(failure))
        except requests.RequestException as error:
            self.tally.fail(f"{label}: {type(error).__name__}", f"{error} for {case.as_curl_command()}")

    def _poison(self, case: AnyCase) -> None:
        """One hostile value in a place that the operation has."""
        places = [name for name in ("path_parameters", "query", "body") if isinstance(getattr(case, name), dict)]
        places = [name for name in places if getattr(case, name)]
        if not places:
            return
        name = self.rng.choice(places)
        sent = getattr(case, name)
        if name == "body":
            case.body = hostile.poisoned(sent, self.rng)
            return
        word = hostile.word(self.rng)
        part = word[:200].replace("/", "")  # one of dots alone leads elsewhere before it is sent
        sent[self.rng.choice(list(sent))] = word if name == "query" else part if part.strip(".") else "x"


def send_hostile_bodies(document: Mapping[str, Any], base_url: str) -> Tally:
    """Bodies that no schema describes: bytes that are no JSON, JSON that is forbidden, types that are not announced."""
    tally, session, owned = Tally(), requests.Session(), new_team()
    for path, methods in document["paths"].items():
        address = path
        for name, its_id in owned.ids.items():
            address = address.replace(f"{{{name}}}", its_id)
        for method, operation in methods.items():
            if "requestBody" not in operation:
                continue
            for body, kind in product(
                HOSTILE_BODIES, ("application/json", "text/plain", "application/json; charset=x")
            ):
                headers = {"Authorization": f"Bearer {owned.keys['owner']}", "Content-Type": kind}
                answer = session.request(method, base_url + address, data=body, headers=headers, timeout=PATIENCE_S)
                tally.calls += 1
                tally.by_status[answer.status_code] += 1
                if answer.status_code >= 500 or str(answer.status_code) not in operation["responses"]:
                    told = f"{method} {address} {kind} {body[:60]!r}: {answer.status_code} {answer.text[:300]}"
                    tally.fail(f"{method} {path}: {answer.status_code}", told)
    return tally


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=5_000)
    parser.add_argument("--examples", type=int, default=20, help="of each operation, role and mode in one round")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="each with a web server of its own")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    os.environ["LAMINAR_RATE_SCALE"] = "100000"  # rate limits are not tested here
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "backend.settings")
    _migrate()

    began, total = time.monotonic(), Tally()
    share = -(-options.calls // options.processes)
    with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as processes:
        for found in processes.map(partial(_share, calls=share, examples=options.examples), range(options.processes)):
            total.add(found)
    for line in _report(total, time.monotonic() - began, as_json=options.json):
        print(line)
    return 1 if total.failures else 0


def _migrate() -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def _share(rank: int, *, calls: int, examples: int) -> Tally:
    from backend.asgi import application  # reads the environment

    total = Tally()
    with run_uvicorn(application, log_level="error", timeout_graceful_shutdown=2) as base_url:
        document = api_document()
        for start in count(rank * 1_000):
            if total.calls >= calls:
                break
            told = f"process {rank}: {total.calls} of {calls} calls, {len(total.failures)} kinds of failure"
            print(told, file=sys.stderr, flush=True)
            total.add(call_everything(document, base_url, examples=examples, start=start, until=calls - total.calls))
        total.add(send_hostile_bodies(document, base_url))
    return total


def _report(total: Tally, seconds: float, *, as_json: bool) -> Iterator[str]:
    if as_json:
        yield json.dumps(asdict(total) | {"seconds": round(seconds, 1)})
        return
    yield f"{total.calls} calls in {seconds:.0f} s ({total.calls / seconds:.0f} a second)"
    yield "  ".join(f"{status}: {number}" for status, number in sorted(total.by_status.items()))
    for kind, told in total.failures.items():
        yield f"\n{kind}\n{told}"
    yield f"{len(total.failures)} kinds of failure"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
