"""Resolves the names of data sets and models in a spec at submission, and pins them to that version.

Invariants:
- a name resolves to something of the team's or something public; another team's assets do not exist here;
- the stored spec names the version, so a reader or a retry gets the same bytes.
"""

from backend.accounts.models import Team
from backend.errors import FieldError
from backend.jobs.attempts.asset_catalog import ResolvedAsset, asset_catalog
from engine.spec.assets.named_assets import NamedAsset, named_assets, with_references
from engine.spec.job import JobSpec


def resolve_assets(
    spec: JobSpec, team: Team, project: str | None
) -> tuple[JobSpec, list[ResolvedAsset], list[FieldError]]:
    """Returns the spec with pinned versions, the assets, and an error for each unknown name. `project` None: of any
    project."""
    named = named_assets(spec)
    if not named:
        return spec, [], []
    assets = asset_catalog().find(team, project, named)
    resolved = {each.pointer for each in assets}
    unknown = [_error_of(each) for each in named if each.pointer not in resolved]
    return with_references(spec, {each.pointer: each.reference for each in assets}), assets, unknown


def _error_of(named: NamedAsset) -> FieldError:
    what = "model" if named.kind == "model" else "data set"
    message = (
        f"your team has no {what} {named.name[:120]!r}: use an uploaded or registered one (GET /assets), as "
        "NAME or NAME@VERSION" + (", or demo" if named.kind == "model" else "")
    )
    return FieldError(pointer=named.pointer, code=f"{named.kind}_unknown", message=message)
