"""Runs all checks, one after another, for the terminal and the status page.

Invariants:
- a check that raises hides no other;
- every fault has one name, documented in infra/OPERATING.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Final

from django.db import DatabaseError, InterfaceError

from backend.environment import Environment
from backend.operating.checks import (
    address,
    authorities,
    broker,
    clock,
    disks,
    mail,
    nodes,
    postgres,
    ray,
    site,
    store,
    work,
)
from backend.operating.checks.findings import Check, Fault, Finding, Verdict

BROKEN = Fault(
    name="doctor.broken",
    cure="The check itself failed. A service that it needs may be down (see the other checks); otherwise report a bug.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    title: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        verdicts = {finding.verdict for finding in self.findings}
        return next((each for each in (Verdict.WRONG, Verdict.WARNING) if each in verdicts), Verdict.GOOD)


NEAR: Final[dict[str, Check]] = {
    "This site": site.check_site,
    "Certificates": authorities.check_authorities,
    "Postgres": postgres.check_postgres,
    "Valkey": broker.check_broker,
    "Background work": work.check_work,
    "Ray": ray.check_ray,
    "Store": store.check_store,
    "Disks": disks.check_disks,
    "Mail": mail.check_mail,
    "Clock": clock.check_clock,
    "Addresses": address.check_addresses,
}
NODES: Final[dict[str, Check]] = {"Nodes of Ray": nodes.check_nodes}
"""Starts a job on the cluster."""
_MODULES: Final[Sequence[ModuleType]] = (
    *(site, authorities, postgres, broker, work, ray, nodes, store, disks, mail, clock, address),
)


def examine(environment: Environment, checks: dict[str, Check], *, send_to: str = "") -> Iterator[Part]:
    for title, check in checks.items():
        chosen = partial(mail.check_mail, send_to=send_to) if check is mail.check_mail else check
        yield Part(title=title, findings=tuple(_run_check(chosen, environment)))


def known_faults() -> list[Fault]:
    """All faults, in the order of the checks."""
    named = [value for module in _MODULES for value in vars(module).values() if isinstance(value, Fault)]
    return [*named, BROKEN]


def row_of(fault: Fault) -> str:
    """The fault's row in the table of the document."""
    return f"| `{fault.name}` | {fault.verdict} | {fault.cure} |"


def _run_check(check: Check, environment: Environment) -> Iterator[Finding]:
    try:
        yield from check(environment)
    except (DatabaseError, InterfaceError):
        yield BROKEN.found("the database did not respond")
    except Exception as error:  # noqa: BLE001  # a broken check must not hide the others
        yield BROKEN.found(f"{type(error).__name__}: {error}")
