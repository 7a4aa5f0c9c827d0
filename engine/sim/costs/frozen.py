"""When the constants were frozen, and every change of them since, with its reason.

The report of a comparison carries this list. A test compares the newest line with the constants, so that no constant
changes without a line here that gives the reason.

Invariant: the first line is older than the first run of the grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from engine.sim.costs.constants import Constant
from engine.sim.costs.devices import DEVICES
from engine.sim.costs.models import MODELS


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    commit: str
    """The commit with these constants."""
    fingerprint: str
    reason: str


FREEZES: Final[Sequence[Freeze]] = (
    Freeze(
        commit="14bc5af",
        fingerprint="cce3e37d3ff780a5",
        reason="frozen before the grid was run for the first time",
    ),
    Freeze(
        commit="e73a8b7",
        fingerprint="155de5a95c74f442",
        reason="three more, for versions that are no whole copies, before any cell of the grid was run with them",
    ),
)


def fingerprint(constants: Sequence[Constant]) -> str:
    """A hash of everything that costs depend on except the formulas: constants, devices, models. Texts are left out."""
    values = [(each.name, each.value, each.origin, each.sweep) for each in constants]
    return sha256(repr((values, DEVICES, MODELS)).encode()).hexdigest()[:16]
