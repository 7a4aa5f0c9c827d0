"""The data sets and models that specs may name. They belong to an app above jobs: `AssetCatalog` is the port that
`backend.assets` provides, and decides who may use them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from backend.accounts.models import Team
from backend.jobs.models import Job
from backend.ports import Port
from engine.spec.assets.named_assets import NamedAsset
from engine.spec.control import OrderedAssets


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedAsset:
    pointer: str
    """Place in the spec."""
    id: str
    reference: str
    """Reference that names exactly this version."""


class AssetCatalog(Protocol):
    def find(self, team: Team, project: str | None, named: Sequence[NamedAsset]) -> list[ResolvedAsset]:
        """Resolves the names that exist, for jobs of this project; None: of any."""

    def keep(self, job: Job, found: Sequence[ResolvedAsset]) -> None:
        """Keeps the assets until the job has ended. Runs in the transaction that creates the job."""

    def order_for(self, job: Job, *, attempt: int, fence: int) -> OrderedAssets | None:
        """None if the job uses none."""

    def config_of(self, team: Team, source: str) -> dict[str, Any] | None:
        """A model's config.json."""


asset_catalog: Port[AssetCatalog] = Port("the data sets and models that specs name")
