"""The data sets and models that specs may name. They belong to an app above this one: what jobs need of them stands in
`Library`, a port that `backend.assets` fills; which of them somebody may use is its to say."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from backend.accounts.models import Team
from backend.jobs.models import Job
from backend.ports import Port
from engine.spec.control import OrderedAssets
from engine.spec.named_assets import NamedAsset


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAsset:
    pointer: str
    """Into the spec."""
    id: str
    reference: str
    """As a spec says this version and no other."""


class Library(Protocol):
    def find(self, team: Team, project: str | None, named: Sequence[NamedAsset]) -> list[FoundAsset]:
        """Those that are there, for jobs of this project; None: of any."""

    def keep(self, job: Job, found: Sequence[FoundAsset]) -> None:
        """For as long as the job is not over. In the transaction that makes it."""

    def order_for(self, job: Job, *, attempt: int, fence: int) -> OrderedAssets | None:
        """None: it uses none."""

    def config_of(self, team: Team, said: str) -> dict[str, Any] | None:
        """A model's config.json."""


library: Port[Library] = Port("the data sets and models that specs name")
