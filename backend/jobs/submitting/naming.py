"""The names of data sets and models in a spec: looked up when it is submitted, and held to that version from then on.

Invariants:
- a name leads to something of the team's, or of everybody's; what is another team's does not exist;
- the spec that is stored says the version, so whoever reads it, or tries the job again, gets the same bytes.
"""

from backend.accounts.models import Team
from backend.errors import FieldError
from backend.jobs.attempts.library import FoundAsset, library
from backend.jobs.submitting.refusals import SpecRefused
from engine.spec.job import JobSpec
from engine.spec.named_assets import NamedAsset, named_assets, saying


def looked_up(spec: JobSpec, team: Team, project: str | None) -> tuple[JobSpec, list[FoundAsset]]:
    """The spec with the versions that it will use, and those. `project`: None: of any. Raises `SpecRefused`, with every
    name that is not there."""
    named = named_assets(spec)
    if not named:
        return spec, []
    found = library().find(team, project, named)
    there = {each.pointer for each in found}
    errors = [_unknown(each) for each in named if each.pointer not in there]
    if errors:
        raise SpecRefused(errors[0].message, code=errors[0].code, errors=errors)
    return saying(spec, {each.pointer: each.reference for each in found}), found


def _unknown(named: NamedAsset) -> FieldError:
    what = "model" if named.kind == "model" else "data set"
    message = (
        f"your team has no {what} {named.said[:120]!r}: name one that was uploaded or registered (GET /assets), as "
        "NAME or NAME@VERSION" + (", or demo" if named.kind == "model" else "")
    )
    return FieldError(pointer=named.pointer, code=f"{named.kind}_unknown", message=message)
