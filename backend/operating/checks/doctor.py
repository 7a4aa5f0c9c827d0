"""All looks, one after another, for a terminal and for the status page.

Invariants:
- one look that breaks hides no other;
- every fault has one name, told of in infra/OPERATING.md.
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
from backend.operating.checks.findings import Fault, Finding, Look, Verdict

BROKEN = Fault(
    name="doctor.broken",
    cure="This look itself failed: what it needs may be away (see the others), or it is our fault.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    title: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        found = {finding.verdict for finding in self.findings}
        return next((each for each in (Verdict.WRONG, Verdict.WARNING) if each in found), Verdict.GOOD)


NEAR: Final[dict[str, Look]] = {
    "This site": site.look_at_site,
    "Certificates": authorities.look_at_authorities,
    "Postgres": postgres.look_at_postgres,
    "Valkey": broker.look_at_broker,
    "Background work": work.look_at_work,
    "Ray": ray.look_at_ray,
    "Store": store.look_at_store,
    "Disks": disks.look_at_disks,
    "Mail": mail.look_at_mail,
    "Clock": clock.look_at_clock,
    "Addresses": address.look_at_addresses,
}
NODES: Final[dict[str, Look]] = {"Nodes of Ray": nodes.look_at_nodes}
"""Starts a job on the cluster."""
_MODULES: Final[Sequence[ModuleType]] = (
    *(site, authorities, postgres, broker, work, ray, nodes, store, disks, mail, clock, address),
)


def examine(environment: Environment, looks: dict[str, Look], *, send_to: str = "") -> Iterator[Part]:
    for title, look in looks.items():
        chosen = partial(mail.look_at_mail, send_to=send_to) if look is mail.look_at_mail else look
        yield Part(title=title, findings=tuple(_found(chosen, environment)))


def known_faults() -> list[Fault]:
    """All that there are, in the order in which they are looked for."""
    named = [value for module in _MODULES for value in vars(module).values() if isinstance(value, Fault)]
    return [*named, BROKEN]


def row_of(fault: Fault) -> str:
    """Of the table in the document."""
    return f"| `{fault.name}` | {fault.verdict} | {fault.cure} |"


def _found(look: Look, environment: Environment) -> Iterator[Finding]:
    try:
        yield from look(environment)
    except (DatabaseError, InterfaceError):
        yield BROKEN.found("the database did not answer")
    except Exception as error:  # noqa: BLE001  # what is broken in one part must not hide the others
        yield BROKEN.found(f"{type(error).__name__}: {error}")
